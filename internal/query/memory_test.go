package query_test

import (
	"context"
	"errors"
	"iter"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/admission"
	"github.com/quern/quern/internal/columns"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/query/querytest"
	"github.com/quern/quern/internal/storage"
)

// left returns what nobody holds of a budget of limit bytes.
func left(b *admission.Budget, limit int64) (n int64) {
	claim := b.Claim(admission.Client{})
	defer claim.Release()
	for more := limit; more > 0; {
		if claim.Grow(more) {
			n += more
		} else {
			more /= 2
		}
	}
	return n
}

// TestReadsShareMemory: what a read holds is claimed from what all queries may hold together, before it
// is held. A read that finds less room than a slice takes reads the slice in parts.
func TestReadsShareMemory(t *testing.T) {
	const mb = 1 << 20
	w := newDenseWorld(t) // about 48 MB, if it is read at once
	querier := func(memory *admission.Budget) *query.Querier {
		return query.New(w.parts(), query.Options{Memory: memory})
	}
	for name, read := range w.denseReads() {
		t.Run(name, func(t *testing.T) {
			want, err := read(t.Context(), querier(nil))
			require.NoError(t, err)

			t.Run("alone", func(t *testing.T) {
				const room = 64 * mb
				memory := admission.NewBudget(room, room/2)
				before := int64(inUse())
				most, more := int64(0), int64(0)
				var measure func()
				measure = func() { // at the end of each read, when most is held
					used := int64(inUse()) - before
					most, more = max(most, used), max(more, used-(room-left(memory, room)))
					w.store.after = measure
				}
				w.store.after = measure
				got, err := read(t.Context(), querier(memory))
				w.store.after = nil
				require.NoError(t, err)
				require.Equal(t, want, got)
				require.Equal(t, int64(room), left(memory, room), "all is given back")
				if name != "export" && name != "deletion" { // of those the test holds the answer
					t.Logf("%d bytes at a time, %d of them not claimed", most, more)
					require.Less(t, more, int64(2*mb))
				}
			})
			t.Run("others hold all", func(t *testing.T) {
				const room = 64 * mb
				memory := admission.NewBudget(room, room/2)
				other := memory.Claim(admission.Client{})
				require.True(t, other.Grow(room))
				_, err := read(t.Context(), querier(memory))
				require.ErrorIs(t, err, admission.ErrNoRoom)
				other.Release()
				require.EqualValues(t, room, left(memory, room))
			})
			t.Run("never", func(t *testing.T) {
				const room = mb
				memory := admission.NewBudget(room, room/2)
				_, err := read(t.Context(), querier(memory))
				var never *query.RequestError
				require.ErrorAs(t, err, &never, "it would not fit if it were alone")
				require.EqualValues(t, room, left(memory, room))
			})
		})
	}
}

// TestDenseColumnsAreReadInFewParts: to read a part of a column, all of it is decoded. So smaller parts do not help once most of what a
// read takes is that.
func TestDenseColumnsAreReadInFewParts(t *testing.T) {
	const n, stepMs, room = 300_000, 10, 64 << 20
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
			memory := admission.NewBudget(room, room/2)
			got, err := read(t.Context(), query.New(w.parts(), query.Options{Memory: memory}))
			require.NoError(t, err)
			require.Equal(t, want, got)
			// Where there is no room to decode a column, that is said at once.
			reads = 0
			_, err = read(t.Context(), query.New(w.parts(), query.Options{Memory: admission.NewBudget(room/8, room/16)}))
			require.ErrorAs(t, err, new(*query.RequestError))
		})
	}
}

// TestReadsTogetherShareMemory: of reads at the same time, those that find room answer, and at least
// one does.
func TestReadsTogetherShareMemory(t *testing.T) {
	const room = 32 << 20
	w := newDenseWorld(t)
	for name, read := range w.denseReads() {
		t.Run(name, func(t *testing.T) {
			want, err := read(t.Context(), query.New(w.parts(), query.Options{}))
			require.NoError(t, err)
			memory := admission.NewBudget(room, room/2)
			q := query.New(w.parts(), query.Options{Memory: memory})
			var wg sync.WaitGroup
			answers, errs := make([]any, 4), make([]error, 4)
			for i := range answers {
				wg.Go(func() { answers[i], errs[i] = read(t.Context(), q) })
			}
			wg.Wait()
			answered := 0
			for i := range answers {
				if !errors.Is(errs[i], admission.ErrNoRoom) {
					require.NoError(t, errs[i])
					require.Equal(t, want, answers[i])
					answered++
				}
			}
			require.Positive(t, answered, "the last one has all room")
			require.EqualValues(t, room, left(memory, room))
		})
	}
}

// TestSlowReadersShareMemory: what clients read slowly is held until they have read it.
func TestSlowReadersShareMemory(t *testing.T) {
	const mb, room = 1 << 20, 64 << 20
	w := newDenseWorld(t)
	memory := admission.NewBudget(room, room/2)
	q := query.New(w.parts(), query.Options{Memory: memory})
	before := int64(inUse())
	var ends []func()
	defer func() {
		for _, end := range ends {
			end()
		}
		require.EqualValues(t, room, left(memory, room))
	}()
	for {
		r, err := q.Export(t.Context(), w.sel("cpu"), midnight-hour, midnight+2*hour)
		require.NoError(t, err)
		next, end := iter.Pull2(r.All())
		ends = append(ends, end)
		_, err, ok := next()
		require.True(t, ok)
		if err != nil {
			require.ErrorIs(t, err, admission.ErrNoRoom)
			break
		}
		require.Less(t, len(ends), 10)
		require.Less(t, int64(inUse())-before, room-left(memory, room)+2*mb)
	}
	require.Greater(t, len(ends), 2, "more than one finds room")
}

// TestPointsShareMemory: points are held until the client has those of their group.
func TestPointsShareMemory(t *testing.T) {
	const room, series, bytes = 64 << 20, 8, 32
	w := newWorld(t, querytest.Settings(), retention)
	ids := make([]metric.ScheduleID, series)
	for i := range ids {
		ids[i] = metric.ScheduleID(i)
		w.series(ids[i], "cpu", strconv.Itoa(i))
	}
	w.fill(ids, midnight, midnight+hour, minute, wave)
	read := func(room int64) (held int64, err error) {
		memory := admission.NewBudget(room, room/2)
		q := query.New(w.parts(), query.Options{Memory: memory})
		r, err := q.Points(t.Context(), w.sel("cpu"), query.Range{StartMs: midnight, EndMs: midnight + hour, N: query.MaxPoints})
		require.NoError(t, err)
		n := 0
		for _, err := range r.All() {
			if err != nil {
				return held, err
			}
			held = max(held, room-left(memory, room))
			n++
		}
		require.Equal(t, series, n)
		require.Equal(t, room, left(memory, room))
		return held, nil
	}
	held, err := read(room)
	require.NoError(t, err)
	require.GreaterOrEqual(t, held, int64(series*query.MaxPoints*bytes))
	held, err = read(room / 16)
	require.NoError(t, err, "with less memory, it reads fewer series at a time")
	require.Less(t, held, int64(room/16))
	_, err = read(256 << 10)
	var never *query.RequestError
	require.ErrorAs(t, err, &never, "the points of one series do not fit")
}
