package acceptance

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/operate/reaggregate"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// rawChunks returns all raw chunks of a series' group, oldest first.
func (s *System) rawChunks(series string) []storage.RawChunk {
	s.t.Helper()
	from, to := s.timesMs()
	group := int(s.IDs()[series]) / s.cfg.GroupSize * s.cfg.GroupSize
	var out []storage.RawChunk
	for ch, err := range storagetest.Kept(s.inspect().RawChunks(s.t.Context(), s.allIDs(), from, to)) {
		require.NoError(s.t, err)
		if ch.Group == metric.ScheduleID(group) {
			out = append(out, ch)
		}
	}
	return out
}

// overwrite replaces chunks with the same keys.
func (s *System) overwrite(chunks ...storage.RawChunk) {
	require.NoError(s.t, s.inspect().Write(s.t.Context(), &storage.Batch{Raw: chunks}))
}

// damageRaw flips a bit in each of the chunks, and returns the originals.
func (s *System) damageRaw(chunks ...storage.RawChunk) (were []storage.RawChunk) {
	for _, ch := range chunks {
		bad := ch
		bad.Data = slices.Clone(ch.Data)
		bad.Data[len(bad.Data)/2] ^= 0x10
		s.overwrite(bad)
		were = append(were, ch)
	}
	return were
}

// reaggregate requests that all closed slices are ground again. takeBack says to take back rows
// without samples.
func (s *System) reaggregate(takeBack bool) {
	s.t.Helper()
	index := query.NewIndex()
	require.NoError(s.t, index.Refresh(s.t.Context(), s.Store))
	sels, err := query.ParseSelectors(s.t.Context(), []string{`{__name__=~".+"}`})
	require.NoError(s.t, err)
	from, to := s.timesMs()
	_, err = reaggregate.New(reaggregate.Parts{
		Store: s.Store, Index: index, Cache: s.engine.Cache, Clock: s.Clock, Logger: slog.New(slog.DiscardHandler),
	}).
		Run(s.t.Context(), sels, from, to, takeBack, func(reaggregate.Progress) error { return nil })
	require.NoError(s.t, err)
}

// row returns a stored row, or one without samples if there is none.
func (s *System) row(level metric.Bucket, series string, timeMs int64) metric.RollupRow {
	id := s.IDs()[series]
	for _, r := range s.storedRows(level) {
		if r.Schedule == id && r.TimeMs == timeMs {
			return r
		}
	}
	return metric.RollupRow{}
}

// rowIs requires a row with the given number of samples and sum.
func (s *System) rowIs(level metric.Bucket, series string, timeMs int64, count uint64, sum float64, partial bool) {
	s.t.Helper()
	r := s.row(level, series, timeMs)
	require.Equal(s.t, count, r.Count, "%s row of %s", s.cfg.Ladder.Name(level), series)
	require.Equal(s.t, sum, r.Sum, "%s row of %s", s.cfg.Ladder.Name(level), series)
	require.Equal(s.t, partial, r.Partial, "%s row of %s", s.cfg.Ladder.Name(level), series)
}

// errorsOf returns the last errors that contain all of the words.
func (s *System) errorsOf(words ...string) (out []string) {
	found, err := storage.RecentErrors(s.t.Context(), s.inspect())
	require.NoError(s.t, err)
	for _, e := range found {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(e.Message, w) }) {
			require.Equal(s.t, "aggregator", e.Component)
			out = append(out, e.Message)
		}
	}
	return out
}

// allWhole grinds everything, and requires that the rows of every level are right and not partial.
func (s *System) allWhole() {
	s.t.Helper()
	s.Drain()
	s.MustCheck(Raw)
	require.Empty(s.t, s.Leftovers())
	for _, level := range s.cfg.Ladder.Levels() {
		for _, r := range s.storedRows(level) {
			require.False(s.t, r.Partial, "%s row of schedule %d", s.cfg.Ladder.Name(level), r.Schedule)
		}
	}
}

// testDamagedChunk: a raw chunk is damaged after its slice was ground, and late data makes a run
// read the block again. The block is ground even so. Its rows are partial, and lose nothing that
// they had. Once the chunk is repaired by hand, a request makes the rows whole.
func testDamagedChunk(t *testing.T, b Backend) {
	s := Start(t, b, Config{Unpacked: true}) // several chunks, of which one is damaged
	at10 := at(s, 10, 0)
	s.Clock.Set(time.UnixMilli(at(s, 10, 50)))
	s.MustReport(s.point("A", 10, 10, 1), s.point("B", 10, 10, 1), s.point("C", 10, 11, 1), s.point("D", 9, 30, 1), s.point("E", 10, 10, 1))
	s.MustReport(s.point("A", 10, 20, 2), s.point("A", 10, 25, 4), s.point("C", 10, 20, 5), s.point("E", 10, 20, 1))
	s.setClock(11, 2)
	s.MustRun()
	s.rowIs(1, "A", at10, 3, 7, false)

	var inTen []storage.RawChunk
	for _, ch := range s.rawChunks("A") {
		if ch.SliceMs == at10 {
			inTen = append(inTen, ch)
		}
	}
	require.Len(t, inTen, 2)
	were := s.damageRaw(inTen[1])
	s.setClock(11, 30)
	s.MustReport(s.point("A", 10, 40, 8), s.point("B", 10, 40, 8), s.point("D", 10, 40, 8), s.point("E", 10, 40, 8))
	s.setClock(12, 2)
	runs := s.MustRun()
	require.Zero(t, runs[0].Rescheduled)
	s.rowIs(1, "A", at10, 3, 7, true)  // two can be read, three could before
	s.rowIs(1, "B", at10, 2, 9, true)  // it may have had samples in the damaged chunk
	s.rowIs(1, "C", at10, 2, 6, false) // no mark names it
	s.rowIs(1, "D", at10, 1, 8, true)
	s.rowIs(1, "E", at10, 3, 10, false) // no chunk of its group is damaged
	named := []string{inTen[1].ID.String(), "of group 0", "slice " + s.cfg.Ladder.SliceAt(metric.Raw, at10).String()}
	require.Len(t, s.errorsOf(named...), 1)

	s.MustReport(s.point("B", 10, 45, 1))
	s.setClock(13, 2)
	s.MustRun()
	s.rowIs(1, "B", at10, 3, 10, true)
	require.Len(t, s.errorsOf(named...), 1, "told once, however often it is met")

	s.setClock(18, 2)
	s.MustRun()
	s.rowIs(2, "A", at(s, 6, 0), 3, 7, true)
	s.rowIs(2, "C", at(s, 6, 0), 2, 6, false)
	s.rowIs(2, "E", at(s, 6, 0), 3, 10, false)

	for _, ch := range s.rawChunks("A") {
		if ch.ID == were[0].ID {
			require.NotEqual(t, were[0].Data, ch.Data, "what is damaged stays as it is")
		}
	}
	s.overwrite(were...)
	s.reaggregate(false)
	s.allWhole()
	s.rowIs(1, "A", at10, 4, 15, false)
}

// testDamagedBlock: all chunks of a block are damaged. There is nothing to grind, so the only new
// rows are those that tell the rows above. No existing row is taken back.
func testDamagedBlock(t *testing.T, b Backend) {
	s := Start(t, b, Config{})
	at10 := at(s, 10, 0)
	s.Clock.Set(time.UnixMilli(at(s, 10, 30)))
	s.MustReport(s.point("A", 10, 10, 1), s.point("B", 10, 10, 2))
	first := s.damageRaw(s.rawChunks("A")...)
	s.Restart() // the block stays unsealed, so that raw is read
	s.setClock(11, 2)
	s.MustRun()
	require.Empty(t, s.Rows(1))
	s.rowIs(1, "A", at10, 0, 0, true)
	s.rowIs(1, "B", at10, 0, 0, true)
	require.Len(t, s.errorsOf(first[0].ID.String()), 1)

	s.overwrite(first...)
	s.reaggregate(false)
	s.setClock(12, 2)
	s.MustRun()
	s.rowIs(1, "A", at10, 1, 1, false)
	s.rowIs(1, "B", at10, 1, 2, false)

	s.MustReport(s.point("A", 10, 20, 3))
	all := s.damageRaw(s.rawChunks("A")...)
	s.setClock(13, 2)
	s.MustRun()
	s.rowIs(1, "A", at10, 1, 1, true)
	s.rowIs(1, "B", at10, 1, 2, false)

	s.overwrite(all...)
	s.reaggregate(false)
	s.allWhole()
	s.rowIs(1, "A", at10, 2, 4, false)

	// A block over two storage groups: the other group is not in doubt.
	s = Start(t, b, Config{BlockSize: 8})
	s.Clock.Set(time.UnixMilli(at(s, 10, 30)))
	for _, name := range []string{"A", "B", "C", "D", "E", "F", "G", "H"} {
		s.MustReport(s.point(name, 10, 10, 1))
	}
	s.damageRaw(s.rawChunks("A")[0])
	s.Restart()
	s.setClock(11, 2)
	s.MustRun()
	s.rowIs(1, "A", at10, 0, 0, true)
	s.setClock(12, 2)
	s.MustRun()
	s.rowIs(2, "A", at(s, 6, 0), 0, 0, true)
	for name := range s.IDs() {
		if name != "A" {
			s.rowIs(1, name, at10, 1, 1, name < "E")
		}
	}
}

// testDamagedCache: a block with a damaged cache is ground from raw, and the damage is reported. A
// block with a whole cache is not read from raw, so its rows are whole whatever has become of raw.
func testDamagedCache(t *testing.T, b Backend) {
	s := Start(t, b, Config{})
	s.Clock.Set(time.UnixMilli(at(s, 10, 30)))
	s.MustReport(s.point("A", 10, 10, 1), s.point("B", 10, 10, 2))
	cached := s.CacheBlocks(metric.Raw)
	require.Len(t, cached, 1)
	s.DamageCache()
	s.setClock(11, 2)
	runs := s.MustRun()
	require.Equal(t, 2, runs[0].BlockQueries, "the cache, then raw")
	s.rowIs(1, "A", at(s, 10, 0), 1, 1, false)
	s.rowIs(1, "B", at(s, 10, 0), 1, 2, false)
	require.Len(t, s.errorsOf("the cache cannot serve the block", cached[0].Chunks[0].ID.String(), "2025-11-21T10:00:00Z"), 1)

	s.Clock.Set(time.UnixMilli(at(s, 11, 30)))
	s.MustReport(s.point("A", 11, 10, 5))
	chunks := s.rawChunks("A")
	were := s.damageRaw(chunks[len(chunks)-1])
	s.setClock(12, 2)
	s.MustRun()
	s.rowIs(1, "A", at(s, 11, 0), 1, 5, false)
	require.Empty(t, s.errorsOf(were[0].ID.String()))
	s.overwrite(were...)
	s.allWhole()
}

// vandal writes rows by hand.
func (s *System) vandal(level metric.Bucket, rows ...metric.RollupRow) {
	s.t.Helper()
	var fence storage.Fence
	for shard := range s.cfg.IndexPartitions {
		lease, err := s.inspect().AcquireShard(s.t.Context(), shard, "vandal", time.Minute)
		require.NoError(s.t, err)
		fence = max(fence, lease.Fence)
	}
	require.NoError(s.t, s.inspect().WriteRollups(s.t.Context(), fence, level, rows))
	for shard := range s.cfg.IndexPartitions {
		require.NoError(s.t, s.inspect().ReleaseShard(s.t.Context(), shard, "vandal"))
	}
}

// testDamagedSketches: a row's sketch is damaged on each level. A request makes all rows whole
// again.
func testDamagedSketches(t *testing.T, b Backend) {
	s := Start(t, b, Config{})
	s.Clock.Set(time.UnixMilli(at(s, 10, 30)))
	s.MustReport(s.point("A", 10, 10, 1), s.point("B", 10, 10, 2))
	s.Drain()
	for _, level := range s.cfg.Ladder.Levels() {
		bad := s.row(level, "A", s.cfg.Ladder.SliceAt(level-1, at(s, 10, 0)).StartMs)
		require.EqualValues(t, 1, bad.Count)
		bad.Sketch = []byte("damaged")
		s.vandal(level, bad)
	}
	require.Len(t, s.Check(Raw), 3)
	s.reaggregate(false)
	s.allWhole()
}

// testSurplus: rows without raw samples, of each level, with and without rows below. They stay
// until a request takes them back, and then no other row goes.
func testSurplus(t *testing.T, b Backend) {
	s := Start(t, b, Config{BlockSize: 2, GroupSize: 2})
	s.Clock.Set(time.UnixMilli(at(s, 10, 30)))
	s.MustReport(s.point("A", 10, 10, 1), s.point("B", 10, 10, 2), s.point("C", 10, 10, 4))
	s.Drain()
	ladder, ids := s.cfg.Ladder, s.IDs()
	surplus := func(series string, level metric.Bucket, hour int) metric.RollupRow {
		row := s.row(level, "C", ladder.SliceAt(level-1, at(s, 10, 0)).StartMs)
		row.Schedule, row.TimeMs = ids[series], ladder.SliceAt(level-1, at(s, hour, 0)).StartMs
		return row
	}
	s.vandal(1, surplus("A", 1, 2), surplus("B", 1, 11)) // B has a row for 6:00, which the new row does not fit
	s.vandal(2, surplus("A", 2, 2), surplus("B", 2, 14))
	require.Len(t, s.Check(Raw), 4)
	s.reaggregate(false)
	s.Drain()
	problems := s.Check(Raw)
	require.GreaterOrEqual(t, len(problems), 4, "%v", problems)
	s.reaggregate(true)
	s.allWhole()

	// A day without any data, of a series that has only this row.
	yesterday := surplus("A", 3, 10)
	yesterday.TimeMs -= 24 * time.Hour.Milliseconds()
	s.vandal(3, yesterday)
	require.Len(t, s.Check(Raw), 1)
	s.reaggregate(true)
	s.allWhole()
	s.rowIs(1, "C", at(s, 10, 0), 1, 4, false)
}

// testSurplusPutOff: a request to take back rows survives when the block fails and is put off,
// together with other work.
func testSurplusPutOff(t *testing.T, b Backend) {
	s := Start(t, b, Config{})
	s.Clock.Set(time.UnixMilli(at(s, 10, 30)))
	s.MustReport(s.point("A", 10, 10, 1), s.point("B", 10, 10, 2))
	s.Drain()
	bad := s.row(1, "A", at(s, 10, 0))
	bad.TimeMs = at(s, 8, 0)
	s.vandal(1, bad)
	s.reaggregate(true)
	s.Store.Add(storagetest.Rule{Op: "WriteRollups", Times: 3, Before: func() error { return errInjected }})
	s.allWhole()
	s.rowIs(1, "A", at(s, 10, 0), 1, 1, false)
}

// testDamagedIndex: the index of one slice cannot be read. Later slices are ground even so, and
// this slice is ground once it can be read.
func testDamagedIndex(t *testing.T, b Backend) {
	s := startAt(t, b, 10, 30)
	s.MustReport(s.point("A", 10, 30, 1))
	s.Clock.Set(time.UnixMilli(at(s, 11, 30)))
	s.MustReport(s.point("A", 11, 30, 2))
	s.setClock(12, 2)
	// One failure in each shard of the first slice.
	s.Store.Add(storagetest.Rule{Op: "Marks", Times: s.cfg.IndexPartitions, Before: func() error { return storage.ErrCorrupt }})
	_, err := s.Run()
	require.ErrorIs(t, err, storage.ErrCorrupt)
	rows := s.Rows(1)
	require.Len(t, rows, 1)
	require.Equal(t, at(s, 11, 0), rows[0].TimeMs)
	require.Empty(t, s.Rows(2), "a slice is not run before its parts are complete")
	s.DrainAndCheck()
}

// testGapClosed: a row says that samples may be missing, and has none. A mark that stands for its whole block, or that
// names it, has it computed again. All of its input is there, and it has no samples, so nothing is missing.
func testGapClosed(t *testing.T, b Backend) {
	for name, names := range map[string]bool{"the mark is for the block": false, "the mark names it": true} {
		t.Run(name, func(t *testing.T) {
			s := startAt(t, b, 10, 30)
			s.MustReport(s.point("A", 10, 29, 1))
			s.setClock(11, 10)
			s.MustReport(s.point("B", 11, 9, 1))
			s.setClock(12, 2)
			s.MustRun()
			hour := at(s, 10, 0)
			gap := metric.RollupRow{Schedule: s.IDs()["B"], TimeMs: hour, Rollup: metric.Rollup{Partial: true}}
			lease, err := s.inspect().AcquireShard(t.Context(), 0, "another", time.Minute)
			require.NoError(t, err)
			require.NoError(t, s.inspect().WriteRollups(t.Context(), lease.Fence, 1, []metric.RollupRow{gap}))
			require.NoError(t, s.inspect().ReleaseShard(t.Context(), 0, "another"))
			require.NotEmpty(t, s.Check(Raw))
			block := s.inspect().Settings().Epochs.BlockAt(gap.Schedule, hour)
			require.True(t, block.Contains(s.IDs()["A"]))
			mark := storage.Mark{Start: block.Start, TimeMs: hour, Kind: storage.MarkLate}
			if names {
				mark.Schedules = []metric.ScheduleID{gap.Schedule}
			}
			require.NoError(t, s.engine.Cache.Put(t.Context(), 0, metric.Raw, []storage.Mark{mark}))
			s.DrainAndCheck()
		})
	}
}
