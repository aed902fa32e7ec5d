package promquery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/query/querytest"
	"github.com/quern/quern/internal/storage"
)

// ranges notes the ranges of time in which raw chunks are read, and fails the reads of those from failFromMs on.
type ranges struct {
	storage.Store
	failFromMs int64

	mu   sync.Mutex
	seen [][2]int64
}

var errRead = errors.New("cannot be read")

func (r *ranges) RawChunks(ctx context.Context, ids blocks.Range, fromMs, toMs int64) iter.Seq2[storage.RawChunk, error] {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, [2]int64{fromMs, toMs})
	if fromMs >= r.failFromMs {
		return func(yield func(storage.RawChunk, error) bool) { yield(storage.RawChunk{}, errRead) }
	}
	return r.Store.RawChunks(ctx, ids, fromMs, toMs)
}

// TestStretches: a long range of few series, which two goroutines read, has all samples, by time; and an error in any stretch is that of the
// query.
func TestStretches(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	clk := clock.NewSimulated(time.UnixMilli(now))
	st := &ranges{Store: querytest.Stores["model"](t, retention, clk), failFromMs: now}
	w := newWorldOn(t, st, clk)
	const length = 6 * day
	var all []metric.Sample
	for i := range 3 {
		id := w.ID(querytest.Named("m", metric.Label{Name: "i", Value: fmt.Sprint(i)}))
		for at := now - length; at < now; at += 7 * minute * int64(1+i) {
			all = append(all, metric.Sample{Schedule: id, TimeMs: at, Value: float64(at%1000) + float64(i)})
		}
	}
	w.Put(all...)
	engine, queryable := New(w.Querier, Options{})
	levels := new(query.Levels)
	ask := func() *promql.Result {
		q, err := engine.NewInstantQuery(query.WithLevels(t.Context(), levels), queryable, nil, fmt.Sprintf("m[%dms]", length+1), time.UnixMilli(now))
		require.NoError(t, err)
		return q.Exec(t.Context())
	}
	r := ask()
	require.NoError(t, r.Err)
	var got []metric.Sample
	for _, s := range r.Value.(promql.Matrix) {
		for _, p := range s.Floats {
			got = append(got, metric.Sample{Schedule: all[len(got)].Schedule, TimeMs: p.T, Value: p.F})
		}
	}
	require.Equal(t, all, got)
	read, _ := levels.List()
	require.Len(t, read, 1)
	require.Equal(t, []query.LevelPart{{StartMs: now - length, EndMs: now + 1, Series: 3}}, read[0].Parts)

	require.Len(t, st.seen, 4)
	slices.SortFunc(st.seen, func(a, b [2]int64) int { return cmp.Compare(a[0], b[0]) })
	for i := range st.seen[1:] {
		require.Equal(t, st.seen[i][1], st.seen[i+1][0])
		require.InDelta(t, now-length+int64(i+1)*length/4, st.seen[i+1][0], float64(hour))
	}

	for _, st.failFromMs = range []int64{0, now - length/2 - hour, now - length/4 - hour} {
		require.ErrorContains(t, ask().Err, errRead.Error())
	}
}
