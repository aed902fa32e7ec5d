package integration

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/process"
)

// TestExportImport: after another store imports an export, it has the same samples and roll-ups,
// even for data beyond that store's age cap.
func TestExportImport(t *testing.T) {
	t.Parallel()
	from := serve(t, t.TempDir(), seconds...)
	now := time.Now().Truncate(time.Minute)
	var samples []process.Sample
	for i := range 600 {
		for _, age := range []time.Duration{2 * time.Hour, 5 * time.Minute} {
			at := now.Add(-age).UnixMilli() + int64(i)*50
			samples = append(samples, process.Sample{Source: "a", Metric: fmt.Sprintf("it_%d", i%3), Ms: at, Value: float64(i*i%97) / 7})
		}
	}
	_, err := from.Report(t.Context(), samples)
	require.NoError(t, err)

	asked := url.Values{"match[]": {process.OfTests}, "start": {"-3h"}, "end": {"now"}}
	read := func(p *process.Process, path, level string) (string, error) {
		q := url.Values{"level": {level}}
		for k, v := range asked {
			q[k] = v
		}
		r, err := p.Get(path, q)
		if err == nil && r.Code != 200 {
			err = fmt.Errorf("%d: %s", r.Code, r.Body)
		}
		lines := strings.Split(string(r.Body), "\n")
		slices.Sort(lines)
		return strings.Join(lines, "\n"), err
	}
	r, err := from.Get("/api/v1/export", asked)
	require.NoError(t, err)
	require.Equal(t, 200, r.Code)

	to := serve(t, t.TempDir(), append(slices.Clone(seconds), "--age-cap", "1h")...)
	reply, err := to.Post("/api/v1/import", r.Body)
	require.NoError(t, err)
	assert.Equal(t, 200, reply.Code)
	assert.Contains(t, string(reply.Body), fmt.Sprintf(`{"accepted":%d,"rejected":[],`, len(samples)))
	again, err := to.Get("/api/v1/export", asked)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(r.Body, again.Body), "the same export")

	for _, level := range []string{"1s", "2s", "4s"} {
		process.Eventually(t, "the roll-ups of "+level, func() error {
			want, err := read(from, "/api/v1/rollups", level)
			if err != nil {
				return err
			}
			got, err := read(to, "/api/v1/rollups", level)
			// Both stretches of half a minute, for three series.
			rows := map[string]int{"1s": 180, "2s": 90, "4s": 45}[level]
			switch {
			case err != nil:
				return err
			case strings.Count(want, `"level"`) < rows:
				return fmt.Errorf("%d rows", strings.Count(want, `"level"`))
			case want != got:
				return errors.New("they are not the same")
			}
			return nil
		})
	}
}

// TestGraphite: lines over TCP can be queried. Lines that the process has read when it is stopped
// are there afterwards.
func TestGraphite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := serve(t, dir, "--graphite-listen", "127.0.0.1:0")
	addr := p.Wrote(`msg="serving Graphite".* graphite_address=(\S+)`)[1]
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "it_a.b 1 -1\nit_c;source=g 2 %d\n", time.Now().Unix())
	require.NoError(t, err)
	process.Eventually(t, "two samples", func() error {
		got, err := p.Export(process.OfTests, time.Hour)
		if err == nil && len(got) != 2 {
			err = fmt.Errorf("%v", got)
		}
		return err
	})
	p.Stop()
	p = serve(t, dir)
	got, err := p.Export(`{__name__="it_c",source="g"}`, time.Hour)
	require.NoError(t, err)
	assert.Len(t, got, 1)
}
