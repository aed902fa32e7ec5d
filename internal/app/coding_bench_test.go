package app

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/wire"
)

// BenchmarkCompressed asks over the loopback for 200 series × 1,000 points, by query_range and as an export, plain and in
// each coding in turns. Values walk by up to 1.00, in cents. It reports the bytes on the wire and the median time until they
// are read, also compared with that of the plain answer.
func BenchmarkCompressed(b *testing.B) {
	const series, points, step = 200, 1000, 5 * time.Second
	s := testServer(b)
	ctx, cancel := context.WithCancel(b.Context())
	addr, end := serving(ctx, b, s)
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}}
	defer func() {
		client.CloseIdleConnections()
		cancel()
		require.NoError(b, <-end)
	}()
	last := s.clk.Now().Truncate(step)
	first := last.Add(-(points - 1) * step)
	random := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // the same each time
	for n := range series {
		body := fmt.Appendf(nil, `{"source":"host-%03d","measurements":[`, n)
		v := 50.0
		for i := range points {
			v += math.Round(200*random.Float64()-100) / 100
			if i > 0 {
				body = append(body, ',')
			}
			body = fmt.Appendf(body, `{"metric":"usage","value":%.2f,"time":%d}`, v, first.Add(time.Duration(i)*step).UnixMilli())
		}
		resp, err := client.Post(addr+wire.ReportsPath, "application/json", bytes.NewReader(append(body, "]}"...))) //nolint:noctx // it is a benchmark's
		require.NoError(b, err)
		require.Equal(b, http.StatusOK, resp.StatusCode)
		require.NoError(b, resp.Body.Close())
	}
	at := func(t time.Time) string { return fmt.Sprint(t.Unix()) }
	for name, path := range map[string]string{
		"query_range": "/api/v1/query_range?" + url.Values{"query": {"usage"}, "start": {at(first)}, "end": {at(last)}, "step": {"5"}}.Encode(),
		"export":      wire.ExportPath + "?" + url.Values{"match[]": {"usage"}, "start": {at(first)}, "end": {at(last.Add(step))}}.Encode(),
	} {
		b.Run(name, func(b *testing.B) {
			codings := []string{"identity", "gzip", "zstd"}
			size := make([]int64, len(codings))
			var ways []func() time.Duration
			for i, coding := range codings {
				ways = append(ways, func() time.Duration {
					r, err := http.NewRequestWithContext(ctx, http.MethodGet, addr+path, http.NoBody)
					require.NoError(b, err)
					r.Header.Set("Accept-Encoding", coding)
					began := s.clk.Elapsed()
					resp, err := client.Do(r)
					require.NoError(b, err)
					size[i], err = io.Copy(io.Discard, resp.Body)
					took := s.clk.Elapsed() - began
					require.NoError(b, err)
					require.NoError(b, resp.Body.Close())
					require.Equal(b, http.StatusOK, resp.StatusCode)
					return took
				})
			}
			took := inTurns(b, ways...)
			for i, coding := range codings {
				b.ReportMetric(float64(size[i]), coding+"-bytes")
				b.ReportMetric(took[i].Seconds()*1000, coding+"-ms")
				b.ReportMetric(float64(took[i])/float64(took[0]), coding+"/plain-time")
			}
		})
	}
}
