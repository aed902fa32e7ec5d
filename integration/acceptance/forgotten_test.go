package acceptance

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// forgetful is the only copy of the data, on a server that is killed before it has synced what it acknowledged.
type forgetful struct {
	storage.Store
	// forgets says that the server will have forgotten what it acknowledges now.
	forgets bool
	// doubts counts how often it was restarted.
	doubts int64
}

// Doubts implements storage.Registry.
func (f *forgetful) Doubts() int64 { return f.doubts }

// write does what is acknowledged, unless it will have been forgotten.
func (f *forgetful) write(do func() error) error {
	if f.forgets {
		return nil
	}
	return do()
}

// Write implements storage.Store.
func (f *forgetful) Write(ctx context.Context, b *storage.Batch) error {
	return f.write(func() error { return f.Store.Write(ctx, b) })
}

// WriteRollups implements storage.Runs.
func (f *forgetful) WriteRollups(ctx context.Context, fence storage.Fence, level metric.Bucket, rows []metric.RollupRow) error {
	return f.write(func() error { return f.Store.WriteRollups(ctx, fence, level, rows) })
}

// PackRaw implements storage.Runs.
func (f *forgetful) PackRaw(ctx context.Context, fence storage.Fence, packed storage.RawChunk, of []blocks.ID) error {
	return f.write(func() error { return f.Store.PackRaw(ctx, fence, packed, of) })
}

// DeleteCacheBlock implements storage.Runs.
func (f *forgetful) DeleteCacheBlock(ctx context.Context, fence storage.Fence, k storage.CacheKey) error {
	return f.write(func() error { return f.Store.DeleteCacheBlock(ctx, fence, k) })
}

// DeleteMarks implements storage.Runs.
func (f *forgetful) DeleteMarks(ctx context.Context, fence storage.Fence, p storage.IndexPartition, marks []storage.Mark) error {
	return f.write(func() error { return f.Store.DeleteMarks(ctx, fence, p, marks) })
}

// BeginSlice implements storage.Runs.
func (f *forgetful) BeginSlice(ctx context.Context, k storage.SliceKey) error {
	return f.write(func() error { return f.Store.BeginSlice(ctx, k) })
}

// startForgetful starts a system at 10:30 over such a server.
func startForgetful(t *testing.T, cfg Config) (*System, *forgetful) {
	var server forgetful
	stores := lastWriteWins{wrap: func(st storage.Store) storage.Store {
		server.Store = st
		return &server
	}}
	s := Start(t, Backend{Believes: true, Open: stores.open}, cfg)
	s.Clock.Set(time.UnixMilli(at(s, 10, 30)))
	return s, &server
}

// loses has the server forget one report, which it acknowledges.
func (f *forgetful) loses(s *System, p Point) {
	f.forgets = true
	_, err := s.engine.Ingest.Append(s.t.Context(), []ingest.Report{{Source: source, Measurements: []ingest.Measurement{
		{Metric: p.Series, TimeMs: p.TimeMs, Value: p.Value},
	}}})
	require.NoError(s.t, err) // it is lost, as docs/cassandra.md says
	f.forgets = false
	f.doubts++
}

// TestForgottenOpening: the server forgets the seconds in which the slice of 11:00 was opened, and with them the first
// marks. Ingest believes that both are there. What is acknowledged after that is ground with the hour.
func TestForgottenOpening(t *testing.T) {
	s, server := startForgetful(t, Config{})
	s.MustReport(s.point("A", 10, 29, 1))
	s.setClock(11, 0)
	s.Advance(2 * time.Second)
	server.loses(s, s.point("A", 11, 0, 5))
	for minute := 1; minute < 60; minute += 10 {
		s.setClock(11, minute)
		require.NoError(t, s.engine.Ingest.Settle(t.Context()))
		s.MustReport(s.point("A", 11, minute, float64(minute)))
	}
	s.Drain()
	s.MustCheck(Raw)
}

// TestForgottenMark: the server forgets the first mark of a block, of samples on time or late. What is acknowledged for
// the block after that is ground, although ingest ends in order long before the hour does, or the seal fails.
func TestForgottenMark(t *testing.T) {
	for name, late := range map[string]bool{"on time": false, "late": true} {
		for how, then := range map[string]func(*System){
			"it goes on": func(*System) {},
			"it ends before it settles": func(s *System) {
				s.Restart()
			},
			"it ends later": func(s *System) {
				require.NoError(s.t, s.engine.Ingest.Settle(s.t.Context()))
				s.setClock(11, 40)
				s.Restart()
			},
			"the seal fails": func(s *System) {
				require.NoError(s.t, s.engine.Ingest.Settle(s.t.Context()))
				s.setClock(12, 0)
				s.Store.Fail("Write", blocks.Range{}, 1, storage.ErrTimeout)
				s.setClock(12, 1)
			},
			"each write fails until the hour has ended": func(s *System) {
				s.Store.Fail("Write", blocks.Range{}, -1, storage.ErrTimeout)
				require.ErrorIs(s.t, s.engine.Ingest.Settle(s.t.Context()), storage.ErrTimeout)
				s.setClock(12, 1)
				s.Store.Heal()
				require.NoError(s.t, s.engine.Ingest.Settle(s.t.Context()))
			},
		} {
			t.Run(name+"/"+how, func(t *testing.T) {
				s, server := startForgetful(t, Config{})
				hour := 11
				if late {
					hour = 9
				}
				s.MustReport(s.point("A", 10, 29, 1))
				s.setClock(11, 20)
				s.MustRun()
				server.loses(s, s.point("A", hour, 10, 5))
				s.setClock(11, 25)
				s.MustReport(s.point("A", hour, 15, 7))
				then(s)
				s.Drain()
				s.MustCheck(Raw)
			})
		}
	}
}

// TestForgottenRun: the server is killed while a run grinds its last shard, and forgets what the run has written in the
// shards before: rows, and that their marks are deleted. The marks are back, and are ground again.
func TestForgottenRun(t *testing.T) {
	for name, inRun := range map[string]bool{"it is back for the next run": false, "it is back before the run gives up": true} {
		t.Run(name, func(t *testing.T) {
			s, server := startForgetful(t, Config{BlockSize: 1})
			names := []string{"A", "B", "C", "D", "E", "F", "G", "H"} // each in a block of its own, in all shards
			for _, n := range names {
				s.MustReport(s.point(n, 10, 29, 1))
			}
			before := 0 // blocks in the shards before the last
			for _, id := range s.IDs() {
				if blocks.ShardOf(id, s.cfg.IndexPartitions) < s.cfg.IndexPartitions-1 {
					before++
				}
			}
			require.Positive(t, before)
			require.Less(t, before, len(names))
			s.setClock(11, 2)
			server.forgets = true
			read := 0
			s.Store.Add(storagetest.Rule{Op: "CacheBlock", Times: -1, Before: func() error {
				if read++; read != before+1 {
					return nil
				}
				if inRun {
					server.forgets, server.doubts = false, 1
					return nil
				}
				s.Store.Fail("CacheBlock", blocks.Range{}, -1, storage.ErrUnavailable)
				s.Store.Fail("Write", blocks.Range{}, -1, storage.ErrUnavailable)
				return storage.ErrUnavailable
			}})
			_, err := s.Run()
			require.ErrorIs(t, err, storage.ErrUnavailable)
			s.Store.Heal()
			server.forgets, server.doubts = false, 1
			s.MustRun()
			s.Drain()
			s.MustCheck(Raw)
		})
	}
}
