package query_test

import (
	"context"
	"iter"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/query/querytest"
	"github.com/quern/quern/internal/storage"
)

// readingStore knows whether raw chunks are being read.
type readingStore struct {
	query.Store
	reading bool
	reads   int
}

func (s *readingStore) RawChunks(ctx context.Context, ids blocks.Range, fromMs, toMs int64) iter.Seq2[storage.RawChunk, error] {
	return func(yield func(storage.RawChunk, error) bool) {
		s.reading = true
		s.reads++
		defer func() { s.reading = false }()
		s.Store.RawChunks(ctx, ids, fromMs, toMs)(yield)
	}
}

// TestNothingIsReadMeanwhile: whoever takes pieces may be slow, for example a client far away, or wait for a full disk. The store
// would keep what was deleted as long as it is read.
func TestNothingIsReadMeanwhile(t *testing.T) {
	w := newWorld(t, querytest.Settings(), retention)
	const slices, each = 6, 4
	w.series(1, "cpu", "web")
	for s := range int64(slices) {
		for i := range int64(each) {
			w.put(metric.Sample{Schedule: 1, TimeMs: midnight + s*hour + i, Value: float64(i)})
		}
	}
	parts := w.parts()
	st := &readingStore{Store: parts.Store}
	parts.Store = st
	q := query.New(parts, query.Options{MaxSamples: 2 * each})
	r, err := q.Export(t.Context(), w.sel("cpu"), midnight, noon)
	require.NoError(t, err)
	var times []int64
	for s, err := range r.All() {
		require.NoError(t, err)
		require.False(t, st.reading)
		for i := range s.Samples {
			times = append(times, s.Samples[i].TimeMs)
		}
	}
	require.Equal(t, slices/2, st.reads, "each time as much as may be held")
	require.Len(t, times, slices*each)
	require.IsIncreasing(t, times)
	// A consumer that has enough ends the reading.
	st.reads = 0
	r, err = q.Export(t.Context(), w.sel("cpu"), midnight, noon)
	require.NoError(t, err)
	for s, err := range r.All() {
		require.NoError(t, err)
		if len(s.Samples) > 0 {
			break
		}
	}
	require.Equal(t, 1, st.reads)
	require.False(t, st.reading)
}
