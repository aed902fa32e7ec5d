package explain_test

import (
	"bytes"
	"context"
	"encoding/json"
	"iter"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/access/bound"
	"github.com/quern/quern/internal/app/engine"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/operate/explain"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/shards"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const day = 24 * time.Hour

var keep = storage.Retention{7 * day, 90 * day, 365 * day, 5 * 365 * day}

// midnight begins the day of all tests.
var midnight = time.Date(2025, time.November, 21, 0, 0, 0, 0, time.UTC)

func clockAt(hour, minute int) time.Time {
	return midnight.Add(time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute)
}

// world is a store with a writer and a runner. Series 0 is a, series 1 is b, both in one block.
type world struct {
	*testing.T
	store  *storagetest.Faulty
	clk    *clock.Simulated
	cache  *cache.Cache
	writer *cache.Writer
	member *shards.Member
	runner *rollup.Runner
	index  *query.Index
	x      *explain.Explainer
	parts  explain.Parts
}

// maxSamples is how many samples a test's request may hold.
const maxSamples = 100_000

func newWorld(t *testing.T, wrap func(storage.Store) storage.Store) *world {
	w := &world{T: t, clk: clock.NewSimulated(clockAt(10, 30)), index: query.NewIndex()}
	settings := storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: 8, IndexPartitions: 4, Epochs: blocks.Epochs{{BlockSize: 4}},
	}
	w.store = storagetest.NewFaulty(storagetest.NewModel(settings, keep, w.clk))
	e := engine.New(engine.Options{
		Store: w.store, Clock: w.clk, Writer: 1,
		Worker: storage.Worker{ID: "one", Aggregates: true}, Timeout: time.Hour, Rollup: &rollup.Options{Attempts: 1},
	})
	w.cache, w.member, w.runner = e.Cache, e.Member, e.Runner
	w.writer = cache.NewWriter(w.cache)
	for id, name := range []string{"a", "b"} {
		w.index.Add([]storage.Schedule{{ID: metric.ScheduleID(id), Labels: metric.Labels{
			{Name: metric.NameLabel, Value: name}, {Name: metric.SourceLabel, Value: "web-1"},
		}}})
	}
	var st storage.Store = w.store
	if wrap != nil {
		st = wrap(st)
	}
	w.parts = explain.Parts{Store: st, Index: w.index, Cache: w.cache, Recovery: e.Recovery, Clock: w.clk}
	w.x = explain.New(w.parts, maxSamples)
	return w
}

// report flushes a sample of a.
func (w *world) report(t time.Time, v float64) {
	w.Helper()
	slice := metric.DefaultLadder().SliceAt(metric.Raw, t.UnixMilli())
	require.NoError(w, w.writer.Flush(w.Context(), []cache.BlockSamples{{
		Slice: slice, Block: blocks.Range{Start: 0, End: 4}, Samples: []metric.Sample{{TimeMs: t.UnixMilli(), Value: v}},
	}}))
}

// smuggle writes a sample of a into raw only, without a mark.
func (w *world) smuggle(t time.Time, v float64) {
	w.Helper()
	slice := metric.DefaultLadder().SliceAt(metric.Raw, t.UnixMilli())
	ids := blocks.NewIDs(2)
	require.NoError(w, w.store.Write(w.Context(), &storage.Batch{Raw: []storage.RawChunk{{
		SliceMs: slice.StartMs,
		Chunk:   storage.Chunk{ID: ids.Next(clock.NowMs(w.clk)), Data: blocks.AppendSamples(nil, []metric.Sample{{TimeMs: t.UnixMilli(), Value: v}})},
	}}}))
}

func (w *world) run() {
	w.Helper()
	_, err := w.runner.RunDue(w.Context())
	require.NoError(w, err)
}

func (w *world) set(hour, minute int) { w.clk.Set(clockAt(hour, minute)) }

// explain returns the explanation of a's rows around a time.
func (w *world) explain(t time.Time) []explain.Level {
	w.Helper()
	sels, err := query.ParseSelectors(w.Context(), []string{"a"})
	require.NoError(w, err)
	answer, err := w.x.Explain(w.Context(), sels, t.UnixMilli(), explain.Limit)
	require.NoError(w, err)
	require.Len(w, answer.Series, 1)
	require.Len(w, answer.Series[0].Levels, 3)
	// It must be readable for people and for programs.
	var text bytes.Buffer
	require.NoError(w, answer.WriteText(&text))
	for _, l := range answer.Series[0].Levels {
		require.Contains(w, text.String(), l.Why)
	}
	_, err = json.Marshal(answer)
	require.NoError(w, err)
	return answer.Series[0].Levels
}

// expect checks the conclusion of a level. next is the zero time if nothing comes by itself.
func (w *world) expect(l explain.Level, v explain.Verdict, why string, next time.Time) {
	w.Helper()
	require.Equal(w, v, l.Verdict, "%+v", l)
	require.Equal(w, why, l.Why)
	require.NotEmpty(w, l.Next)
	if next.IsZero() {
		require.Zero(w, l.NextAt)
	} else {
		require.Equal(w, next.Format(time.RFC3339), time.UnixMilli(l.NextAt).UTC().Format(time.RFC3339))
	}
}

func TestWaiting(t *testing.T) {
	w := newWorld(t, nil)
	w.report(clockAt(10, 10), 1)
	require.NoError(t, w.member.Beat(t.Context()))
	ls := w.explain(clockAt(10, 20))
	w.expect(ls[0], explain.Waiting, "the slice ends at 2025-11-21T11:00:00Z and is ground at 2025-11-21T11:02:00Z", clockAt(11, 2))
	w.expect(ls[1], explain.Waiting, "the slice ends at 2025-11-21T12:00:00Z and is ground at 2025-11-21T12:02:00Z", clockAt(12, 2))
	w.expect(ls[2], explain.Waiting, "the slice ends at 2025-11-22T00:00:00Z and is ground at 2025-11-22T00:02:00Z", clockAt(24, 2))
	require.Equal(t, explain.Open, ls[0].State)
	require.Equal(t, explain.NeverOpened, ls[1].State)
	require.Equal(t, "1h", ls[0].Level)
	require.Equal(t, "one", ls[0].Worker)
	require.Equal(t, explain.Input{Bucket: "raw", Chunks: 1, Samples: 1, Finite: 1, Expires: clockAt(10, 0).Add(7 * day).UnixMilli()}, ls[0].Input)
	require.Len(t, ls[0].Marks, 1)
	require.Equal(t, "open", ls[0].Marks[0].Kind)
	require.Nil(t, ls[0].Row)

	// Over, and not yet due.
	w.set(11, 1)
	w.expect(w.explain(clockAt(10, 20))[0], explain.Waiting, "the slice ends at 2025-11-21T11:00:00Z and is ground at 2025-11-21T11:02:00Z", clockAt(11, 2))
	// Ahead of the clock.
	w.expect(w.explain(clockAt(30, 0))[0], explain.Waiting, "the slice ends at 2025-11-22T07:00:00Z and is ground at 2025-11-22T07:02:00Z", clockAt(31, 2))
}

// TestBound: a client that is bound to some series gets no name that tells how much others do. Others get them all.
func TestBound(t *testing.T) {
	w := newWorld(t, nil)
	w.report(clockAt(10, 10), 1)
	require.NoError(t, w.member.Beat(t.Context()))
	w.set(11, 5)
	w.run()
	w.report(clockAt(10, 20), 2) // leaves a late mark
	sels, err := query.ParseSelectors(t.Context(), []string{"a"})
	require.NoError(t, err)
	only, err := bound.Parse([]string{"a"}, 0)
	require.NoError(t, err)
	explained := func(ctx context.Context) (text, line string) {
		answer, err := w.x.Explain(ctx, sels, clockAt(10, 30).UnixMilli(), explain.Limit)
		require.NoError(t, err)
		form, err := json.Marshal(answer)
		require.NoError(t, err)
		var again explain.Answer // what a command reads
		require.NoError(t, json.Unmarshal(form, &again))
		var out bytes.Buffer
		require.NoError(t, again.WriteText(&out))
		return out.String(), string(form)
	}
	allText, all := explained(t.Context())
	text, line := explained(bound.WithBound(t.Context(), only))
	for _, name := range []string{"schedule", "block", "block_end", "shard", "worker", "runs", "blocks", "rescheduled", "dropped", "seconds", "chunks", "schedules"} {
		require.Contains(t, all, `"`+name+`":`)
		require.NotContains(t, line, `"`+name+`":`)
	}
	for _, word := range []string{"schedule 0 of source web-1", "shard", "worker", "chunks", "schedules 1", "    run "} {
		require.Contains(t, allText, word)
		require.NotContains(t, text, word)
	}
	for _, word := range []string{"of source web-1", "late data", "samples 2, finite 2", "mark "} {
		require.Contains(t, text, word)
	}
}

func TestDue(t *testing.T) {
	w := newWorld(t, nil)
	w.report(clockAt(10, 10), 1)
	w.set(11, 5)
	ls := w.explain(clockAt(10, 20))
	w.expect(ls[0], explain.Due, "the run that was due at 2025-11-21T11:02:00Z has not ended; no aggregating worker is alive", time.Time{})
	require.NoError(t, w.member.Beat(t.Context()))
	w.expect(w.explain(clockAt(10, 20))[0], explain.Due, "the run that was due at 2025-11-21T11:02:00Z has not ended", time.Time{})

	w.store.Fail("WriteRollups", blocks.Range{End: 100}, 1, storage.ErrUnavailable)
	w.store.Fail("Write", blocks.Range{End: 100}, 1, storage.ErrUnavailable) // and it cannot be put off
	_, err := w.runner.RunDue(t.Context())
	require.ErrorIs(t, err, storage.ErrUnavailable)
	ls = w.explain(clockAt(10, 20))
	require.Equal(t, explain.Due, ls[0].Verdict)
	require.Contains(t, ls[0].Why, "; the last attempt, at 2025-11-21T11:05:00Z, failed: run of raw slice 2025-11-21T10:00:00Z: ")
	require.Len(t, ls[0].Runs, 1)
	// The row above that waits for it says so.
	w.set(13, 0)
	w.expect(w.explain(clockAt(10, 20))[1], explain.Below,
		"the 1h row of 2025-11-21T10:00:00Z, which it is made from, is computed by the run that was due at 2025-11-21T11:02:00Z and has not ended", clockAt(12, 2))
}

func TestComplete(t *testing.T) {
	w := newWorld(t, nil)
	w.report(clockAt(10, 10), 1)
	w.report(clockAt(10, 20), 3)
	w.report(clockAt(10, 30), math.NaN())
	for _, hour := range []int{11, 12, 24} {
		w.set(hour, 2)
		w.run()
	}
	for _, l := range w.explain(clockAt(10, 50)) {
		w.expect(l, explain.Done, "complete and up to date", time.Time{})
		require.Equal(t, explain.Complete, l.State)
		require.EqualValues(t, 2, l.Row.Count)
		require.InDelta(t, 4, *l.Row.Sum, 0)
		require.Equal(t, 2, l.Input.Finite)
		require.Len(t, l.Runs, 1)
		require.Empty(t, l.Marks)
	}
	require.Equal(t, 1, w.explain(clockAt(10, 50))[0].Input.NotFinite)
	require.Equal(t, 1, w.explain(clockAt(10, 50))[1].Input.Rows)

	// When the input has expired, the row stays.
	w.clk.Set(clockAt(11, 0).Add(7 * day))
	w.expect(w.explain(clockAt(10, 50))[0], explain.Done, "complete; its input has expired, so it can no longer be compared", time.Time{})
}

func TestLate(t *testing.T) {
	w := newWorld(t, nil)
	w.report(clockAt(10, 10), 1)
	for _, hour := range []int{11, 12} {
		w.set(hour, 2)
		w.run()
	}
	w.set(14, 30)
	w.report(clockAt(10, 20), 2)
	ls := w.explain(clockAt(10, 50))
	w.expect(ls[0], explain.Late, "late data: will be recomputed by the run at 2025-11-21T15:02:00Z", clockAt(15, 2))
	w.expect(ls[1], explain.Below, "the 1h row of 2025-11-21T10:00:00Z, which it is made from, is computed by the run at 2025-11-21T15:02:00Z", clockAt(18, 2))
	require.Equal(t, "late", ls[0].Marks[0].Kind)
	require.Equal(t, 1, *ls[0].Marks[0].Schedules)
	require.Equal(t, clockAt(14, 0).UnixMilli(), ls[0].Marks[0].Slice)
	require.EqualValues(t, 1, ls[0].Row.Count, "the old one")
	// The 6h row says so for another of its hours too.
	w.expect(w.explain(clockAt(7, 0))[1], explain.Below, "the 1h row of 2025-11-21T10:00:00Z, which it is made from, is computed by the run at 2025-11-21T15:02:00Z", clockAt(18, 2))
	// The run does what was predicted.
	w.set(15, 2)
	w.run()
	ls = w.explain(clockAt(10, 50))
	w.expect(ls[0], explain.Done, "complete and up to date", time.Time{})
	w.expect(ls[1], explain.Late, "late data: will be recomputed by the run at 2025-11-21T18:02:00Z", clockAt(18, 2))
	w.set(18, 2)
	w.run()
	w.expect(w.explain(clockAt(10, 50))[1], explain.Done, "complete and up to date", time.Time{})
}

// TestLateOfAnother: a mark that names another series of the block says nothing about this one.
func TestLateOfAnother(t *testing.T) {
	w := newWorld(t, nil)
	w.report(clockAt(10, 10), 1)
	w.set(11, 2)
	w.run()
	require.NoError(t, w.cache.Put(t.Context(), 0, metric.Raw, []storage.Mark{
		{TimeMs: clockAt(10, 0).UnixMilli(), Kind: storage.MarkLate, Schedules: []metric.ScheduleID{1}},
	}))
	require.Equal(t, explain.Done, w.explain(clockAt(10, 0))[0].Verdict)
}

func TestPutOff(t *testing.T) {
	w := newWorld(t, nil)
	w.report(clockAt(10, 10), 1)
	w.set(11, 2)
	w.store.Fail("RawChunks", blocks.Range{End: 4}, 1, storage.ErrTimeout)
	w.run()
	l := w.explain(clockAt(10, 50))[0]
	require.Equal(t, explain.PutOff, l.Verdict)
	require.Contains(t, l.Why, "put off after the error: read raw samples of block 0: ")
	require.Contains(t, l.Why, "; attempt 2 is at 2025-11-21T12:02:00Z")
	require.Equal(t, clockAt(12, 2).UnixMilli(), l.NextAt)
	require.Equal(t, 1, l.Marks[0].Attempt)
	require.Equal(t, clockAt(11, 0).UnixMilli(), l.Marks[0].Due)
	require.Len(t, l.Errors, 1)
	w.set(12, 2)
	w.run()
	require.Equal(t, explain.Done, w.explain(clockAt(10, 50))[0].Verdict)
}

// TestFailsOnAndOn: work that has failed for longer than any age cap is still retried.
func TestFailsOnAndOn(t *testing.T) {
	w := newWorld(t, nil)
	w.report(clockAt(10, 10), 1)
	w.set(11, 2)
	w.run()
	w.smuggle(clockAt(10, 20), 2)
	w.set(40, 10)
	require.NoError(t, w.cache.Put(t.Context(), 0, metric.Raw, []storage.Mark{
		{TimeMs: clockAt(10, 0).UnixMilli(), Kind: storage.MarkRetry, DueMs: clockAt(11, 0).UnixMilli(), Attempt: 20, LastError: "no"},
	}))
	w.expect(w.explain(clockAt(10, 0))[0], explain.PutOff,
		"put off after the error: no; attempt 21 is at 2025-11-22T17:02:00Z", clockAt(41, 2))
	w.set(41, 2)
	w.run()
	l := w.explain(clockAt(10, 0))[0]
	w.expect(l, explain.Done, "complete and up to date", time.Time{})
	require.EqualValues(t, 2, l.Row.Count)
}

func TestExpired(t *testing.T) {
	w := newWorld(t, nil)
	w.smuggle(clockAt(10, 10), 1)
	w.clk.Set(clockAt(10, 1).Add(7 * day))
	w.expect(w.explain(clockAt(10, 0))[0], explain.Expired, "there is no row, and its input has expired, so it can no longer be computed", time.Time{})
	require.NoError(t, w.cache.Put(t.Context(), 0, metric.Raw, []storage.Mark{{TimeMs: clockAt(10, 0).UnixMilli(), Kind: storage.MarkLate}}))
	w.expect(w.explain(clockAt(10, 0))[0], explain.Expired,
		"its input has partly expired by the run at 2025-11-28T11:02:00Z, and a row is not computed from the rest", time.Time{})
	w.clk.Set(clockAt(11, 2).Add(7 * day))
	w.run()
	w.expect(w.explain(clockAt(10, 0))[0], explain.Expired, "given up at 2025-11-28T11:02:00Z: its input has expired", time.Time{})

	w.clk.Set(clockAt(11, 2).Add(91 * day))
	w.expect(w.explain(clockAt(10, 0))[0], explain.RowExpired, "rows of this level are kept until 2026-02-19T10:00:00Z", time.Time{})
}

// TestGap: a row that can no longer be computed makes the rows above partial, and they say where it
// is.
func TestGap(t *testing.T) {
	w := newWorld(t, nil)
	require.NoError(t, w.store.Write(t.Context(), &storage.Batch{Open: []storage.SliceKey{{StartMs: clockAt(10, 0).UnixMilli()}}}))
	w.report(clockAt(10, 10), 1)
	w.clk.Set(clockAt(11, 30).Add(7 * day))
	_, err := w.store.ClaimSchedules(t.Context(), storagetest.ClaimsOf("web-1", []storage.Schedule{{ID: 0, Labels: w.index.Labels(0)}}))
	require.NoError(t, err)
	w.run()
	levels := w.explain(clockAt(10, 0))
	w.expect(levels[0], explain.Expired, "given up at 2025-11-28T11:30:00Z: its input has expired", time.Time{})
	require.Nil(t, levels[0].Row)
	for i, below := range []string{"the 1h row of 2025-11-21T10:00:00Z", "the 6h row of 2025-11-21T06:00:00Z"} {
		w.expect(levels[i+1], explain.Partial, "no row: "+below+", which it would be made from, could not be computed", time.Time{})
		require.Nil(t, levels[i+1].Row)
	}
}

func TestNoSamples(t *testing.T) {
	w := newWorld(t, nil)
	w.set(11, 10)
	l := w.explain(clockAt(10, 0))[0]
	w.expect(l, explain.NoSamples, "no samples: the series has none in the slice", time.Time{})
	require.Equal(t, explain.NeverOpened, l.State)
	w.smuggle(clockAt(10, 0), math.Inf(1))
	w.expect(w.explain(clockAt(10, 0))[0], explain.NoSamples, "no samples: all 1 are NaN or infinite, which roll-ups skip", time.Time{})
	w.set(12, 10)
	w.expect(w.explain(clockAt(10, 0))[1], explain.NoSamples, "no samples: there is no 1h row in the slice", time.Time{})
}

func TestMissingAndDiffers(t *testing.T) {
	w := newWorld(t, nil)
	w.smuggle(clockAt(8, 0), 1)
	w.report(clockAt(10, 10), 1)
	w.set(11, 2)
	w.run()
	w.smuggle(clockAt(10, 10), 2)
	w.expect(w.explain(clockAt(8, 0))[0], explain.Missing, "there is no row for 1 sample, and no mark leads a run to it", time.Time{})
	l := w.explain(clockAt(10, 0))[0]
	w.expect(l, explain.Differs, "the row (1 sample) differs from its input (1 sample); no mark leads a run to it", time.Time{})
	require.Contains(t, l.Next, "quern reaggregate")
}

func TestDamaged(t *testing.T) {
	w := newWorld(t, nil)
	require.NoError(t, w.store.Write(t.Context(), &storage.Batch{Raw: []storage.RawChunk{
		{SliceMs: clockAt(10, 0).UnixMilli(), Chunk: storage.Chunk{ID: blocks.NewIDs(3).Next(1), Data: []byte("damaged")}},
	}}))
	w.set(11, 10)
	w.expect(w.explain(clockAt(10, 0))[0], explain.Missing, "the input is damaged", time.Time{})
}

// TestPartial: a row that was ground from part of its samples says so, and what would make it
// whole.
func TestPartial(t *testing.T) {
	w := newWorld(t, nil)
	w.report(clockAt(10, 10), 1)
	w.set(11, 2)
	w.run()
	bad := storage.RawChunk{SliceMs: clockAt(10, 0).UnixMilli(), Chunk: storage.Chunk{ID: blocks.NewIDs(3).Next(1), Data: []byte("damaged")}}
	put := func() { require.NoError(t, w.store.Write(t.Context(), &storage.Batch{Raw: []storage.RawChunk{bad}})) }
	put()
	w.expect(w.explain(clockAt(10, 0))[0], explain.Done, "complete; part of its input is damaged, so it cannot be compared", time.Time{})
	w.report(clockAt(10, 20), 2)
	w.set(18, 2)
	w.run()
	levels := w.explain(clockAt(10, 0))
	w.expect(levels[0], explain.Partial, "partial: 1 of the raw chunks are damaged, and samples may be missing", time.Time{})
	require.Contains(t, levels[0].Next, "quern reaggregate")
	require.True(t, levels[0].Row.Partial)
	w.expect(levels[1], explain.Partial, "partial: the 1h row of 2025-11-21T10:00:00Z, which it is made from, is partial, so samples may be missing", time.Time{})
	var text strings.Builder
	require.NoError(t, (&explain.Answer{Series: []explain.Series{{Levels: levels}}}).WriteText(&text))
	require.Contains(t, text.String(), "count 2, sum 3, min 1, max 2, partial true")

	bad.Data = blocks.AppendSamples(nil, []metric.Sample{{Schedule: 1 << 20, TimeMs: 1}})
	put()
	w.expect(w.explain(clockAt(10, 0))[0], explain.Partial, "partial: its input was damaged when it was computed, and can be read now", time.Time{})
}

// TestDamagedSketch: the row above a row with a damaged sketch is partial until that row is
// computed again.
func TestDamagedSketch(t *testing.T) {
	w := newWorld(t, nil)
	w.report(clockAt(10, 10), 1)
	w.set(11, 2)
	w.run()
	lease, err := w.store.AcquireShard(t.Context(), 0, "by hand", time.Minute)
	require.NoError(t, err)
	row := *w.explain(clockAt(10, 0))[0].Row
	require.NoError(t, w.store.WriteRollups(t.Context(), lease.Fence, 1, []metric.RollupRow{{
		TimeMs: clockAt(10, 0).UnixMilli(),
		Rollup: metric.Rollup{Count: row.Count, Sum: 1, Min: 1, Max: 1, First: 1, Last: 1, Sketch: []byte("damaged")},
	}}))
	six := storage.SliceKey{Bucket: 1, StartMs: clockAt(6, 0).UnixMilli()}
	require.NoError(t, w.store.DeleteCacheBlock(t.Context(), lease.Fence, storage.CacheKey{SliceKey: six}))
	require.NoError(t, w.store.ReleaseShard(t.Context(), 0, "by hand"))
	w.set(12, 2)
	w.run()
	l := w.explain(clockAt(10, 0))[1]
	w.expect(l, explain.Partial, "partial: a 1h row that it is made from, or the sketch of that row, is damaged, so percentiles lack its samples", time.Time{})
	require.Equal(t, "the row follows when the 1h row is recomputed", l.Next)
	require.EqualValues(t, 1, l.Row.Count)
}

// ahead grinds between the first look at the marks and the look at the row.
type ahead struct {
	storage.Store
	run func()
}

func (a *ahead) RawChunks(ctx context.Context, ids blocks.Range, fromMs, toMs int64) iter.Seq2[storage.RawChunk, error] {
	return func(yield func(storage.RawChunk, error) bool) {
		for ch, err := range a.Store.RawChunks(ctx, ids, fromMs, toMs) {
			if !yield(ch, err) {
				return
			}
		}
		if run := a.run; run != nil {
			a.run = nil
			run()
		}
	}
}

// TestUnderWay: a row that is computed during the look is not called wrong.
func TestUnderWay(t *testing.T) {
	var a *ahead
	w := newWorld(t, func(st storage.Store) storage.Store {
		a = &ahead{Store: st}
		return a
	})
	w.report(clockAt(10, 10), 1)
	w.set(11, 2)
	w.run()
	w.smuggle(clockAt(10, 20), 2) // seen already
	a.run = func() {
		w.smuggle(clockAt(10, 30), 2) // not seen, and ground
		require.NoError(t, w.cache.Put(t.Context(), 0, metric.Raw, []storage.Mark{{TimeMs: clockAt(10, 0).UnixMilli(), Kind: storage.MarkLate}}))
		w.set(12, 2)
		w.run()
	}
	w.expect(w.explain(clockAt(10, 0))[0], explain.Done, "complete and up to date", time.Time{})
}

func TestSeveral(t *testing.T) {
	w := newWorld(t, nil)
	ask := func(limit int, at int64) (explain.Answer, error) {
		sels, err := query.ParseSelectors(t.Context(), []string{`{source="web-1"}`})
		require.NoError(t, err)
		return w.x.Explain(t.Context(), sels, at, limit)
	}
	answer, err := ask(1, clockAt(10, 0).UnixMilli())
	require.NoError(t, err)
	require.Equal(t, 2, answer.Matched)
	require.Len(t, answer.Series, 1)
	require.Equal(t, map[string]string{"__name__": "a", "source": "web-1"}, answer.Series[0].Metric)
	var text bytes.Buffer
	require.NoError(t, answer.WriteText(&text))
	require.Contains(t, text.String(), "1 more series match; --limit shows more")
	answer, err = ask(2, clockAt(10, 0).UnixMilli())
	require.NoError(t, err)
	require.Len(t, answer.Series, 2)

	var bad *query.RequestError
	_, err = ask(1, math.MaxInt64)
	require.ErrorAs(t, err, &bad)
}

// TestTooManySamples: a series with more samples in an hour than a request may hold is refused.
func TestTooManySamples(t *testing.T) {
	w := newWorld(t, nil)
	slice := metric.DefaultLadder().SliceAt(metric.Raw, clockAt(10, 0).UnixMilli())
	ids := blocks.NewIDs(2)
	for i := range int64(2) {
		samples := make([]metric.Sample, 0, maxSamples)
		for n := range int64(maxSamples) {
			samples = append(samples, metric.Sample{TimeMs: slice.StartMs + i*maxSamples + n, Value: 1})
		}
		require.NoError(t, w.store.Write(t.Context(), &storage.Batch{Raw: []storage.RawChunk{{
			SliceMs: slice.StartMs, Chunk: storage.Chunk{ID: ids.Next(clock.NowMs(w.clk)), Data: blocks.AppendSamples(nil, samples)},
		}}}))
	}
	sels, err := query.ParseSelectors(t.Context(), []string{"a"})
	require.NoError(t, err)
	_, err = w.x.Explain(t.Context(), sels, clockAt(10, 10).UnixMilli(), 1)
	var bad *query.RequestError
	require.ErrorAs(t, err, &bad)
	require.ErrorContains(t, err, "--query-max-samples")
	_, err = w.x.Explain(t.Context(), sels, clockAt(9, 10).UnixMilli(), 1)
	require.NoError(t, err)
}

// TestAway: an error of any store operation is the answer.
func TestAway(t *testing.T) {
	for _, op := range []string{"Items", "Leases", "Slices", "Marks", "RawChunks", "Rollups"} {
		w := newWorld(t, nil)
		w.report(clockAt(10, 10), 1)
		w.store.Add(storagetest.Rule{Op: op, Times: -1, Before: func() error { return storage.ErrUnavailable }})
		sels, err := query.ParseSelectors(t.Context(), []string{"a"})
		require.NoError(t, err)
		_, err = w.x.Explain(t.Context(), sels, clockAt(10, 0).UnixMilli(), 1)
		require.ErrorIs(t, err, storage.ErrUnavailable, op)
	}
}
