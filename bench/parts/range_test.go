package parts

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/api/promapi"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/promquery"
	"github.com/quern/quern/internal/query/querytest"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/pebble"
)

// BenchmarkRange asks over the loopback for one of the 128 series of a block, which have a sample every 15 s, packed and ground as
// at rest.
func BenchmarkRange(b *testing.B) {
	const (
		series = 128
		step   = 15 * time.Second
		group  = 128
	)
	end := time.Date(2026, 1, 8, 0, 0, 0, 0, time.UTC)
	clk := clock.NewSimulated(end)
	st, err := pebble.Open(b.TempDir(), pebble.Options{
		Settings: storage.Settings{Ladder: metric.DefaultLadder(), GroupSize: group, IndexPartitions: 16, Epochs: blocks.Epochs{{BlockSize: group}}},
		Clock:    clk, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, st.Close()) })
	w := querytest.NewOn(b, st, clk)
	for i := range series {
		w.ID(querytest.Named("temperature", metric.Label{Name: "i", Value: fmt.Sprint(i)}))
	}
	var set blocks.SampleSet
	var packer blocks.Packer
	block := blocks.Range{End: group}
	for slice := end.Add(-7 * 24 * time.Hour); slice.Before(end); slice = slice.Add(time.Hour) {
		set.Reset(block)
		var samples []metric.Sample
		bySeries := make(map[metric.ScheduleID][]metric.Sample)
		for i := range int64(series) {
			for t := slice; t.Before(slice.Add(time.Hour)); t = t.Add(step) {
				// Hundredths that look like noise.
				v := float64((t.Unix()/15*7919+i*104_729)%1000) / 100
				samples = append(samples, metric.Sample{Schedule: metric.ScheduleID(i), TimeMs: t.UnixMilli(), Value: v})
			}
			bySeries[metric.ScheduleID(i)] = samples[len(samples)-int(time.Hour/step):]
		}
		require.NoError(b, set.Add(blocks.AppendSamples(nil, samples)))
		chunk, err := packer.Pack(&set, block, 1<<20)
		require.NoError(b, err)
		replaced := []blocks.ID{w.Chunks.Next(slice.UnixMilli())}
		require.NoError(b, st.PackRaw(b.Context(), 0, storage.RawChunk{
			SliceMs: slice.UnixMilli(), Chunk: storage.Chunk{ID: blocks.PackedID(replaced), Data: chunk},
		}, replaced))
		w.Grind(1, slice.UnixMilli(), slice.Add(time.Hour).UnixMilli(), bySeries)
	}
	require.NoError(b, st.CompleteSlice(b.Context(), storage.SliceKey{StartMs: end.UnixMilli()}))

	engine, queryable := promquery.New(w.Querier, promquery.Options{})
	mux := route.NewTable()
	promapi.New(promapi.Options{Engine: engine, Queryable: queryable, Clock: clk, Querier: w.Querier, Logger: slog.New(slog.DiscardHandler)}).Register(mux)
	server := httptest.NewServer(mux)
	b.Cleanup(server.Close)
	for _, q := range []struct {
		name, promql string
		span, step   time.Duration
	}{
		{"1h", "%s", time.Hour, step},
		{"24h", "%s", 24 * time.Hour, time.Minute},
		{"24h/averages", "avg_over_time(%s[1h])", 23 * time.Hour, time.Hour},
		{"7d/averages", "avg_over_time(%s[1h])", 7*24*time.Hour - time.Hour, time.Hour},
	} {
		b.Run(q.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				resp, err := server.Client().Get(server.URL + "/api/v1/query_range?" + url.Values{ //nolint:noctx // it is a benchmark's
					"query": {fmt.Sprintf(q.promql, fmt.Sprintf(`temperature{i="%d"}`, i*7%series))},
					"start": {fmt.Sprint(end.Add(-q.span).Unix())}, "end": {fmt.Sprint(end.Unix())}, "step": {fmt.Sprint(q.step.Seconds())},
				}.Encode())
				require.NoError(b, err)
				body, err := io.ReadAll(resp.Body)
				require.NoError(b, err)
				require.NoError(b, resp.Body.Close())
				require.Equal(b, http.StatusOK, resp.StatusCode, "%s", body)
				require.Contains(b, string(body), `"values":[[`)
			}
		})
	}
}
