package integration

import (
	"cmp"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/process"
)

// TestAgent starts the agent before its server. What it measures meanwhile waits.
func TestAgent(t *testing.T) {
	t.Parallel()
	// A port that exists from the beginning, with nothing behind it yet. A free port that is used
	// later might be taken by then.
	var behind atomic.Pointer[httputil.ReverseProxy]
	var refused atomic.Int32
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if proxy := behind.Load(); proxy != nil {
			proxy.ServeHTTP(w, r)
			return
		}
		if refused.Add(1)%2 == 1 {
			panic(http.ErrAbortHandler) // the connection breaks
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer front.Close()

	a := start(t, "agent", "--url", front.URL, "--interval", "500ms", "--source", "it-host")
	a.Wrote(`msg=measuring source=it-host`)
	a.Wrote(`the server did not accept a report; retrying`)
	process.Eventually(t, "several attempts", func() error {
		if n := refused.Load(); n < 3 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})

	p := serve(t, t.TempDir())
	up := time.Now()
	target, err := url.Parse(p.URL)
	require.NoError(t, err)
	behind.Store(httputil.NewSingleHostReverseProxy(target))

	const selector = `{source="it-host",__name__="host_uptime_seconds"}`
	var got []process.Sample
	process.Eventually(t, "measurements from before and after", func() error {
		got, err = p.Export(selector, time.Hour)
		if err == nil && (len(got) < 5 || got[len(got)-1].Ms < up.UnixMilli()+1000) {
			err = fmt.Errorf("there are %d", len(got))
		}
		return err
	})
	slices.SortFunc(got, func(a, b process.Sample) int { return cmp.Compare(a.Ms, b.Ms) })
	first := time.UnixMilli(got[0].Ms)
	assert.Less(t, first, up, "measured while the server was away")

	a.Signal(syscall.SIGTERM)
	assert.Equal(t, 0, a.ExitCode())
	counts := a.Wrote(`msg=stopped delivered=(\d+) rejected=0 refused=0 dropped=0`)
	all, err := p.Export(`{source="it-host"}`, time.Hour)
	require.NoError(t, err)
	assert.Equal(t, counts[1], fmt.Sprint(len(all)), "all that the agent says it delivered is stored, and nothing else")
	p.Stop()
}

// TestHostMetrics: a server measures its own host by default.
func TestHostMetrics(t *testing.T) {
	t.Parallel()
	p := start(t, "serve", "--listen", "127.0.0.1:0", "--data-dir", t.TempDir(), "--host-metrics-interval", "500ms", "--source", "it-self")
	p.Ready()
	process.Eventually(t, "two measurements", func() error {
		got, err := p.Export(`{source="it-self",__name__="host_cpus"}`, time.Hour)
		if err == nil && len(got) < 2 {
			err = fmt.Errorf("%d", len(got))
		}
		return err
	})
	p.Stop()
}
