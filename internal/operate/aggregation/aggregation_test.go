package aggregation_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/operate/aggregation"
	"github.com/quern/quern/internal/recovery"
	"github.com/quern/quern/internal/rollup/packing"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
	"github.com/quern/quern/internal/wire"
)

// now is 12:10 UTC: the raw slices up to 12:00 have ended.
var now = time.Date(2025, 11, 21, 12, 10, 0, 0, time.UTC)

// world is a Reader over a store that fails as told.
type world struct {
	*testing.T
	*storagetest.Faulty
	r *aggregation.Reader
}

func newWorld(t *testing.T) *world {
	clk := clock.NewSimulated(now)
	ladder, err := metric.ParseLadder("1h,6h")
	require.NoError(t, err)
	w := &world{T: t, Faulty: storagetest.NewFaulty(storagetest.NewModel(storage.Settings{
		Ladder: ladder, GroupSize: 4, IndexPartitions: 2, Epochs: blocks.Epochs{{BlockSize: 4}},
	}, storage.Retention{7 * 24 * time.Hour}, clk))}
	c := cache.New(w.Faulty, clk, 1, cache.DefaultTiming())
	w.r = aggregation.New(w.Faulty, recovery.New(w.Faulty, c, clk, recovery.Options{}), clk)
	return w
}

// raw returns the raw slice that begins hours after midnight.
func raw(hours int) storage.SliceKey {
	return storage.SliceKey{StartMs: now.Truncate(24 * time.Hour).Add(time.Duration(hours) * time.Hour).UnixMilli()}
}

// mark puts marks of data in the slice of into the index of the slice in.
func (w *world) mark(in, slice storage.SliceKey, shards ...int) {
	w.Helper()
	b := &storage.Batch{Open: []storage.SliceKey{in}}
	for i, shard := range shards {
		b.Marks = append(b.Marks, storage.PlacedMark{
			Partition: storage.IndexPartition{SliceKey: in, Shard: shard},
			Mark:      storage.Mark{Start: metric.ScheduleID(4 * i), TimeMs: slice.StartMs, ID: blocks.KeyID(slice.StartMs, uint64(i))},
		})
	}
	require.NoError(w, w.Write(w.Context(), b))
}

func (w *world) status(waiting bool) string {
	w.Helper()
	st, err := w.r.AggregationStatus(w.Context(), waiting)
	require.NoError(w, err)
	text, err := json.Marshal(st)
	require.NoError(w, err)
	return string(text)
}

const (
	levels = `"levels":[{"level":"raw","width_seconds":0,"retention_seconds":604800,"whole_from":1763122200000},
		{"level":"1h","width_seconds":3600,"retention_seconds":0},{"level":"6h","width_seconds":21600,"retention_seconds":0}]`
	nobody = `"workers":[],"shards":[{"shard":0,"worker":""},{"shard":1,"worker":""}]`
	idle   = `"buckets":[{"bucket":"raw","outstanding":[],"lag_seconds":0},{"bucket":"1h","outstanding":[],"lag_seconds":0}]`
)

func TestNothing(t *testing.T) {
	w := newWorld(t)
	require.JSONEq(t, `{`+levels+`,`+idle+`,"runs":[],`+nobody+`,"errors":[]}`, w.status(false))
}

// TestHistory: the status has the workers, who holds which shard, and the last runs and errors.
func TestHistory(t *testing.T) {
	w := newWorld(t)
	for _, wk := range []storage.Worker{{ID: "w1", Host: "h", StartedMs: 1, SeenMs: 2, Aggregates: true}, {ID: "w2"}} {
		require.NoError(t, storage.Heartbeat(t.Context(), w, wk, time.Hour))
	}
	_, err := w.AcquireShard(t.Context(), 1, "w2", time.Second)
	require.NoError(t, err)
	for _, r := range []storage.Run{{
		SliceKey: storage.SliceKey{Bucket: 1, StartMs: 21600000}, Worker: "w1", StartedMs: 5, Duration: 1500 * time.Millisecond,
		Blocks: 1, Schedules: 2, BlockQueries: 3, IndexQueries: 4, Late: 5, Rescheduled: 6, Dropped: 7, Err: "gone",
	}, {}} {
		require.NoError(t, storage.RecordRun(t.Context(), w, r))
	}
	require.NoError(t, storage.NewErrorLog(w, "lease", "").Record(t.Context(), storage.ComponentError{Start: -1}))
	require.NoError(t, storage.NewErrorLog(w, "run", "w1").Record(t.Context(), storage.ComponentError{
		TimeMs: 4, SliceKey: storage.SliceKey{Bucket: 2, StartMs: 6}, Start: 128, Message: "no",
	}))
	require.JSONEq(t, `{`+levels+`,`+idle+`,
		"runs":[
			{"bucket":"1h","slice":21600000,"worker":"w1","started":5,"seconds":1.5,"blocks":1,"schedules":2,"block_queries":3,
			 "index_queries":4,"late":5,"rescheduled":6,"dropped":7,"error":"gone"},
			{"bucket":"raw","slice":0,"worker":"","started":0,"seconds":0,"blocks":0,"schedules":0,"block_queries":0,
			 "index_queries":0,"late":0,"rescheduled":0,"dropped":0}],
		"workers":[{"id":"w1","host":"h","started":1,"seen":2,"aggregates":true},{"id":"w2","host":"","started":0,"seen":0,"aggregates":false}],
		"shards":[{"shard":0,"worker":"w1"},{"shard":1,"worker":"w1","owner":"w2","fence":1763727000000000,"expires":1763727001000}],
		"errors":[
			{"component":"run","worker":"w1","time":4,"bucket":"6h","slice":6,"start":128,"message":"no"},
			{"component":"lease","worker":"","time":0,"bucket":"raw","slice":0,"message":""}]}`, w.status(false))
}

// TestBuckets: outstanding are slices that have ended. What waits counts by the slice that it is of,
// wherever its marks lie.
func TestBuckets(t *testing.T) {
	w := newWorld(t)
	w.mark(raw(10), raw(10), 0, 1)
	w.mark(raw(11), raw(11))
	w.mark(raw(12), raw(9), 0, 0, 1)
	w.mark(storage.SliceKey{Bucket: 1, StartMs: raw(6).StartMs}, raw(6), 1)
	const outstanding = `"outstanding":[{"slice":1763719200000,"marks":2},{"slice":1763722800000,"marks":0}],"lag_seconds":4200`
	const coarser = `"outstanding":[{"slice":1763704800000,"marks":1}],"lag_seconds":600`
	require.JSONEq(t, `{`+levels+`,"buckets":[{"bucket":"raw",`+outstanding+`},{"bucket":"1h",`+coarser+`}],
		"runs":[],`+nobody+`,"errors":[]}`, w.status(false))
	require.JSONEq(t, `{`+levels+`,"buckets":[
		{"bucket":"raw",`+outstanding+`,"waiting":[{"slice":1763715600000,"marks":3},{"slice":1763719200000,"marks":2}]},
		{"bucket":"1h",`+coarser+`,"waiting":[{"slice":1763704800000,"marks":1}]}],
		"runs":[],`+nobody+`,"errors":[]}`, w.status(true))
	require.NoError(t, w.CompleteSlice(t.Context(), storage.SliceKey{Bucket: 1, StartMs: raw(6).StartMs}))
	require.Contains(t, w.status(true), `{"bucket":"1h","outstanding":[],"waiting":[],"lag_seconds":0}`)
}

// TestUnread: the status does without what is out of reach, and names it.
func TestUnread(t *testing.T) {
	away := fmt.Errorf("%w: its copies are gone", storage.ErrUnavailable)
	for op, want := range map[string]string{
		"run":   `"unread":["the last runs: `,
		"error": `"unread":["the last errors: `,
		"Marks": `"unread":["marks of raw slice `,
	} {
		w := newWorld(t)
		w.mark(raw(10), raw(10), 0)
		w.fail(op, away)
		require.Contains(t, w.status(false), want)
	}
	for op, err := range map[string]error{
		"worker": away, "Leases": away, "Marks": storage.ErrCorrupt,
	} {
		w := newWorld(t)
		w.mark(raw(10), raw(10), 0)
		w.fail(op, err)
		_, got := w.r.AggregationStatus(t.Context(), false)
		require.ErrorIs(t, got, err, op)
	}
}

// fail makes the reads of one of the journal's kinds fail, or those that have a method of their own.
func (w *world) fail(read string, err error) {
	rule := storagetest.Rule{Op: read, Times: -1, Before: func() error { return err }}
	if slices.Contains([]string{storage.KindRun, storage.KindError, storage.KindWorker}, read) {
		rule.Op, rule.Kind = "Items", read
	}
	w.Add(rule)
}

// TestDamagedRecords: of runs and errors the status has what can be read, and names what cannot. Of heartbeats none is
// damaged for long.
func TestDamagedRecords(t *testing.T) {
	w := newWorld(t)
	for n, kind := range []string{storage.KindRun, storage.KindError, storage.KindWorker} {
		w.status(false)
		require.NoError(t, w.PutItems(t.Context(), []storage.Item{{ItemKey: storage.ItemKey{Kind: kind, ID: "by hand"}, Value: []byte("{")}}))
		require.Equal(t, min(n+1, 2), strings.Count(w.status(false), `item \"by hand\" of the kind`))
	}
	require.NoError(t, storage.RecordRun(t.Context(), w, storage.Run{Worker: "w1"}))
	require.NoError(t, storage.NewErrorLog(w, "run", "w2").Record(t.Context(), storage.ComponentError{}))
	require.NoError(t, storage.Heartbeat(t.Context(), w, storage.Worker{ID: "w3"}, time.Hour))
	for _, worker := range []string{`"worker":"w1"`, `"worker":"w2"`, `"id":"w3"`} {
		require.Contains(t, w.status(false), worker)
	}
}

// TestPackingLeft: as many slices are left as the shard has that is least far. What has expired is not left.
func TestPackingLeft(t *testing.T) {
	w := newWorld(t)
	read := func() *wire.Packing {
		t.Helper()
		st, err := w.r.AggregationStatus(t.Context(), false)
		require.NoError(t, err)
		return st.Packing
	}
	keep := func(shard, from, to int) {
		t.Helper()
		span := packing.Span{FromMs: raw(from).StartMs, ToMs: raw(to).StartMs}
		require.NoError(t, packing.Keep(t.Context(), w.Faulty, map[int]packing.Done{shard: {span}}, raw(-1000).StartMs, now.UnixMilli()))
	}
	require.Nil(t, read())
	const all = 7*24 - 1 // the first hour is kept in part
	keep(0, 10, 12)
	require.Equal(t, &wire.Packing{Slices: all, Left: all}, read(), "nothing of the other shard")
	keep(1, 9, 11)
	require.Equal(t, &wire.Packing{Slices: all, Left: all - 2}, read())
	keep(0, -500, 12)
	require.Equal(t, &wire.Packing{Slices: all, Left: all - 2}, read())
	keep(1, -200, 11)
	require.Equal(t, &wire.Packing{Slices: all, Left: 1}, read(), "the newest")
	keep(1, -200, 12)
	require.Equal(t, &wire.Packing{Slices: all}, read())

	w.Fail("Document", blocks.Range{}, 1, storage.ErrUnavailable)
	st, err := w.r.AggregationStatus(t.Context(), false)
	require.NoError(t, err)
	require.Nil(t, st.Packing)
	require.Contains(t, st.Unread[0], "the progress of packing")
}
