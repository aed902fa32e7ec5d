package acceptance

import (
	"math"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/value"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// testUnacknowledged: if a store writes a batch row by row, a process may die between raw chunk and
// cache chunk. If the client does not send again, the raw table holds unacknowledged samples that
// the roll-ups must have too: invariant 2.
func testUnacknowledged(t *testing.T, b Backend) {
	for k := 1; ; k += b.stride() {
		s := Start(t, b, eventfulConfig)
		s.Clock.Set(time.UnixMilli(at(s, 10, 0)))
		s.Store.Tear(true)
		s.Store.CrashAt(k)
		crashed := false
		for _, report := range flushes(s) {
			if report() != nil {
				crashed = true
				s.Restart()
			}
		}
		s.Store.CrashAt(-1)
		s.Drain()
		s.MustCheck(Raw)
		s.End()
		if !crashed {
			return
		}
	}
}

// testStraggler tests this case: a run has ground a block and deleted its cache, but is aborted
// before it deletes the mark. Just then a flush that began in time writes its chunk into the cache,
// and its process dies before it adds the late mark. The next run finds a fresh mark and a cache
// with only that chunk. If it used the cache, it would overwrite a right row, and acknowledged
// samples would be missing: invariant 2.
func testStraggler(t *testing.T, b Backend) {
	s := Start(t, b, Config{})
	s.Clock.Set(time.UnixMilli(at(s, 10, 30)))
	s.MustReport(s.point("A", 10, 10, 1), s.point("A", 10, 20, 2))
	s.Clock.Set(time.UnixMilli(at(s, 10, 59)))
	dead := func() error { return storagetest.ErrCrashed }
	s.Store.Add(storagetest.Rule{Op: "Write", Unfenced: true, Times: 1, Before: func() error {
		s.Clock.Set(time.UnixMilli(at(s, 11, 2)))
		s.Store.Add(storagetest.Rule{Op: "DeleteMarks", Times: -1, Before: func() error { return storage.ErrUnavailable }})
		_, err := s.Run()
		if err == nil {
			t.Error("the run was not aborted")
		}
		return nil
	}, After: dead})
	_, err := s.Report(s.point("A", 10, 50, 3))
	require.Error(t, err)
	s.Restart()
	s.MustRun()
	s.MustCheck(Acknowledged)
}

// testEmptied: the only sample of a row is corrected to NaN, or to a stale marker. No finite sample is left, so there
// must be no row. A run that wrote no row would leave the old one.
func testEmptied(t *testing.T, b Backend) {
	s := Start(t, b, Config{})
	s.Clock.Set(time.UnixMilli(at(s, 10, 30)))
	s.MustReport(s.point("A", 10, 10, 1), s.point("B", 10, 10, 1), s.point("C", 10, 10, 1))
	s.setClock(11, 2)
	s.MustRun()
	nan, stale := s.point("A", 10, 10, 0), s.point("C", 10, 10, 0)
	nan.Value, stale.Value = math.NaN(), math.Float64frombits(value.StaleNaN)
	s.MustReport(nan, stale)
	s.Drain()
	s.MustCheck(Raw)
}

// testCacheLost: the cache is lost in the middle of a slice, and later chunks are cached as usual.
// Only their number tells that cache from a whole one. The same holds for the coarser levels, whose
// cache collects for hours.
func testCacheLost(t *testing.T, b Backend) {
	s := Start(t, b, Config{})
	s.Clock.Set(time.UnixMilli(at(s, 10, 10)))
	s.MustReport(s.point("A", 10, 10, 1))
	s.DeleteCache()
	s.MustReport(s.point("A", 10, 10, 2), s.point("B", 10, 10, 3))
	s.Clock.Set(time.UnixMilli(at(s, 10, 20)))
	s.MustReport(s.point("B", 10, 20, 4))
	s.DeleteCache()
	s.MustReport(s.point("A", 10, 20, 5))
	s.setClock(11, 2)
	s.MustRun()
	s.MustCheck(Raw)
}

// testLitter: a flush that stalls over its slice's run leaves its mark in a slice that no run reads
// again. The mark does no harm, but would never go: only Cassandra's marks have a TTL.
func testLitter(t *testing.T, b Backend) {
	s := Start(t, b, Config{BlockSize: 2})
	s.Clock.Set(time.UnixMilli(at(s, 10, 58)))
	s.MustReport(s.point("A", 10, 10, 1), s.point("B", 10, 10, 2))
	s.Store.Add(storagetest.Rule{Op: "Write", Unfenced: true, Times: 1, Before: func() error {
		s.Clock.Set(time.UnixMilli(at(s, 11, 2)))
		_, err := s.Run()
		return err
	}})
	s.MustReport(s.point("C", 10, 50, 3))
	s.DrainAndCheck()
}

// testLargeCommit: a commit has more samples of one block than fit into a chunk. The cache holds
// all chunks and is used.
func testLargeCommit(t *testing.T, b Backend) {
	s := Start(t, b, Config{})
	s.Clock.Set(time.UnixMilli(at(s, 10, 58)))
	points := make([]Point, 150_000)
	for i := range points {
		points[i] = Point{Series: "A", TimeMs: at(s, 10, 0) + int64(20*i), Value: float64(i % 1000)}
	}
	s.MustReport(points...)
	s.setClock(11, 2)
	runs := s.MustRun()
	require.Len(t, runs, 1)
	require.Equal(t, 1, runs[0].BlockQueries, "read from the cache, and from nothing else")
	s.MustCheck(Raw)
	require.EqualValues(t, len(points), s.Rows(1)[0].Count)
}
