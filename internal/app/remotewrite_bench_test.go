package app

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
)

// BenchmarkRemoteWrite measures remote write from a request to the disk, without a network.
// Concurrent senders each have 20 targets of their own. A request has 2,000 series of 4 labels, and
// is one operation.
func BenchmarkRemoteWrite(b *testing.B) {
	const series = 2000
	clk := clock.System{}
	s, stop := benchServer(b, metric.SourceLabels{"instance", "job"})
	send := func(body []byte) {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/api/v1/write", bytes.NewReader(body)))
		if w.Code != http.StatusNoContent {
			b.Error(w.Body.String())
		}
	}

	// The requests are encoded beforehand and repeat in rounds, so that the timed part encodes
	// nothing.
	bodies := make([][][]byte, 8)
	for i := range bodies {
		for round := range 8 {
			body := scrape(b, i, series, clk.Now().Add(time.Duration(round-20)*15*time.Second))
			bodies[i] = append(bodies[i], body)
		}
		send(bodies[i][0]) // registers the series
	}
	b.SetBytes(int64(len(bodies[0][0])))
	b.ReportAllocs()
	var sent atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	for _, rounds := range bodies {
		wg.Go(func() {
			for n := 1; sent.Add(1) <= int64(b.N); n++ {
				send(rounds[n%len(rounds)])
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)*series/b.Elapsed().Seconds(), "samples/s")
	b.StopTimer()
	stop()
}

// scrape returns a compressed request with one sample of each series of a sender.
func scrape(b *testing.B, sender, series int, at time.Time) []byte {
	b.Helper()
	var r prompb.WriteRequest
	for i := range series {
		r.Timeseries = append(r.Timeseries, prompb.TimeSeries{
			Labels: []prompb.Label{
				{Name: "__name__", Value: fmt.Sprintf("node_things_%d_total", i%100)},
				{Name: "instance", Value: fmt.Sprintf("10.0.%d.%d:9100", sender, i/100)},
				{Name: "job", Value: "node"},
				{Name: "mode", Value: "user"},
			},
			Samples: []prompb.Sample{{Timestamp: at.UnixMilli(), Value: float64(i) * 1.5}},
		})
	}
	body, err := r.Marshal()
	require.NoError(b, err)
	return snappy.Encode(nil, body)
}
