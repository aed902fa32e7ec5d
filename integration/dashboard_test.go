package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/process"
	"github.com/quern/quern/internal/wire"
)

// TestDashboardsKilled kills a server while a dashboard is put again and again: every acknowledged version is there, and the
// next writer goes on from the newest one.
func TestDashboardsKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	acknowledged := int64(0)
	for round := range 3 {
		p := serve(t, dir, seconds...)
		newest := newestDashboard(t, p)
		require.GreaterOrEqual(t, newest, acknowledged, "round %d", round)
		var now atomic.Int64
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for base := newest; ; base++ {
				if putDashboard(p, base) != http.StatusOK {
					return
				}
				now.Store(base + 1)
			}
		}()
		process.Eventually(t, "puts", func() error {
			if n := now.Load() - newest; n < 20 {
				return fmt.Errorf("only %d", n)
			}
			return nil
		})
		p.Kill()
		<-ended
		acknowledged = now.Load()
	}
	p := serve(t, dir, seconds...)
	require.GreaterOrEqual(t, newestDashboard(t, p), acknowledged)
	r, err := p.Get(wire.DashboardsPath+"/kept", url.Values{"version": {fmt.Sprint(acknowledged)}})
	require.NoError(t, err)
	require.Equal(t, 200, r.Code, "%s", r.Body)
	var got wire.Data[wire.Dashboard]
	require.NoError(t, json.Unmarshal(r.Body, &got))
	require.Contains(t, string(got.Data.Dashboard), fmt.Sprintf(`"title":"after %d"`, acknowledged-1))
	p.Stop()
}

func putDashboard(p *process.Process, base int64) (code int) {
	body := strings.NewReader(fmt.Sprintf(`{"format":1,"title":"after %d"}`, base))
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPut, fmt.Sprintf("%s%s/kept?base=%d", p.URL, wire.DashboardsPath, base), body)
	if err != nil {
		return 0
	}
	resp, err := process.Client.Do(r)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// newestDashboard returns the newest version, 0 if there is none.
func newestDashboard(t *testing.T, p *process.Process) int64 {
	t.Helper()
	r, err := p.Get(wire.DashboardsPath+"/kept/versions", nil)
	require.NoError(t, err)
	if r.Code == http.StatusNotFound {
		return 0
	}
	require.Equal(t, 200, r.Code, "%s", r.Body)
	var all wire.Data[[]wire.DashboardHead]
	require.NoError(t, json.Unmarshal(r.Body, &all))
	require.LessOrEqual(t, len(all.Data), 20)
	return all.Data[0].Version
}
