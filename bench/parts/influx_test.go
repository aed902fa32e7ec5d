// Package parts measures parts of Quern by themselves: go test ./bench/parts -run '^$' -bench NAME.
package parts

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/app/engine"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/pebble"
)

// BenchmarkInflux measures line protocol from a request to the disk, without a network. Concurrent
// senders each have hosts of their own, with bodies as in TSBS. An operation is one body.
func BenchmarkInflux(b *testing.B) {
	const hosts, fields = 1000, 10
	clk := clock.System{}
	s, stop := benchServer(b, metric.SourceLabels{"host", "instance", "hostname", "server"})

	senders := make([]*tsbsSender, 8)
	for i := range senders {
		senders[i] = newTSBSSender(i*hosts, hosts, clk.Now().Add(-5*time.Minute))
		require.Equal(b, http.StatusNoContent, senders[i].send(b.Context(), s).Code) // registers the series
	}
	b.SetBytes(int64(len(senders[0].bodies[0])))
	b.ReportAllocs()
	var sent atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	for _, sender := range senders {
		wg.Go(func() {
			for sent.Add(1) <= int64(b.N) {
				if w := sender.send(b.Context(), s); w.Code != http.StatusNoContent {
					b.Error(w.Body.String())
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)*hosts*fields/b.Elapsed().Seconds(), "values/s")
	b.StopTimer()
	stop()
}

// tsbsSender sends a point of each of its hosts at a time. The next time is 100 ms later.
type tsbsSender struct {
	bodies [][]byte // with different values
	times  [][]int  // positions of the times in the bodies
	at     time.Time
	n      int
}

func newTSBSSender(first, hosts int, at time.Time) *tsbsSender {
	s := &tsbsSender{at: at}
	r := rand.New(rand.NewPCG(uint64(first), 1))
	for range 8 {
		var b []byte
		var times []int
		for host := first; host < first+hosts; host++ {
			b = fmt.Appendf(b, "cpu,hostname=host_%d,region=eu-central-1,datacenter=eu-central-1a,rack=%d,os=Ubuntu15.10,arch=x86,team=SF,"+
				"service=%d,service_version=1,service_environment=test ", host, host%100, host%20)
			for i, f := range []string{"user", "system", "idle", "nice", "iowait", "irq", "softirq", "steal", "guest", "guest_nice"} {
				if i > 0 {
					b = append(b, ',')
				}
				b = fmt.Appendf(b, "usage_%s=%di", f, r.IntN(101))
			}
			b = append(b, ' ')
			times = append(times, len(b))
			b = append(strconv.AppendInt(b, at.UnixNano(), 10), '\n')
		}
		s.bodies, s.times = append(s.bodies, b), append(s.times, times)
	}
	return s
}

func (s *tsbsSender) send(ctx context.Context, h http.Handler) *httptest.ResponseRecorder {
	body := s.bodies[s.n%len(s.bodies)]
	now := strconv.FormatInt(s.at.UnixNano(), 10)
	for _, i := range s.times[s.n%len(s.bodies)] {
		copy(body[i:], now)
	}
	s.n++
	s.at = s.at.Add(100 * time.Millisecond)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/write", bytes.NewReader(body)))
	return w
}

// benchServer returns a server that accepts all protocols into a store on disk, and a function that
// stops it.
func benchServer(b *testing.B, sources metric.SourceLabels) (s *api.Server, stop func()) {
	b.Helper()
	clk, log := clock.System{}, slog.New(slog.DiscardHandler)
	st, err := pebble.Open(b.TempDir(), pebble.Options{
		Settings: storage.Settings{Ladder: metric.DefaultLadder(), GroupSize: 128, IndexPartitions: 16, Epochs: blocks.Epochs{{BlockSize: 128}}},
		Clock:    clk, Logger: log, OnFatal: func(err error) { panic(err) },
	})
	require.NoError(b, err)
	e := engine.New(engine.Options{Store: st, Clock: clk, Writer: 1})
	e.Start(b.Context(), registry.Options{}, ingest.Options{})
	s, err = api.New(api.Options{Clock: clk, Logger: log, Appender: e.Ingest, Sources: sources})
	require.NoError(b, err)
	return s, func() {
		require.NoError(b, e.Close())
	}
}
