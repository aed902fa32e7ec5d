package query_test

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks/columns"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/query/querytest"
	"github.com/quern/quern/internal/storage"
)

// TestDenseColumnsAreReadInFewParts: to read a part of a column, all of it is decoded. So smaller parts do not help once most of what a
// read takes is that.
func TestDenseColumnsAreReadInFewParts(t *testing.T) {
	const n, stepMs = 300_000, 10
	w := newWorld(t, querytest.Settings(), retention)
	var all []columns.Series
	for id := range metric.ScheduleID(2) {
		w.series(id, "cpu", strconv.Itoa(int(id)))
		s := columns.Series{Schedule: id}
		for i := range int64(n) {
			s.Times, s.Values = append(s.Times, midnight+i*stepMs+int64(id)), append(s.Values, float64(i%1000))
		}
		all = append(all, s)
	}
	var encoder columns.Encoder
	require.NoError(t, w.store.Write(t.Context(), &storage.Batch{
		Open: []storage.SliceKey{{Bucket: metric.Raw, StartMs: midnight}},
		Raw:  []storage.RawChunk{{SliceMs: midnight, Chunk: storage.Chunk{ID: w.ids.Next(midnight), Data: encoder.Append(nil, all)}}},
	}))
	for name, read := range w.denseReads() {
		t.Run(name, func(t *testing.T) {
			want, err := read(t.Context(), query.New(w.parts(), query.Options{}))
			require.NoError(t, err)
			reads := 0
			w.store.before = func(context.Context) error {
				if reads++; reads > 300 { // a millisecond at a time, there are 3,600,000
					return errors.New("it reads very small parts")
				}
				return nil
			}
			defer func() { w.store.before = nil }()
			got, err := read(t.Context(), query.New(w.parts(), query.Options{MaxSamples: n}))
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}
