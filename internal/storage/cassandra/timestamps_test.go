package cassandra

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
)

var noon = time.Date(2025, time.November, 21, 12, 0, 0, 0, time.UTC)

func TestTimestampsAscend(t *testing.T) {
	clk := clock.NewSimulated(noon)
	ts := new(timestamps)
	last := ts.next(clock.Read(clk))
	require.Equal(t, noon.UnixMicro(), last, "µs since 1970")
	for _, step := range []struct {
		name string
		to   time.Time
	}{
		{"the clock stands still", noon},
		{"it goes on by less than was given out", noon.Add(2 * time.Microsecond)},
		{"it goes back", noon.Add(-time.Hour)},
		{"it goes on, to before where it was", noon.Add(-time.Minute)},
	} {
		clk.Set(step.to)
		for range 5 {
			next := ts.next(clock.Read(clk))
			require.Equal(t, last+1, next, step.name)
			last = next
		}
	}
	clk.Set(noon.Add(time.Hour))
	require.Equal(t, noon.Add(time.Hour).UnixMicro(), ts.next(clock.Read(clk)), "it is right again")
}

// What is written after a run's fence was seen is not covered by the run's deletes.
func TestTimestampsLieAboveFences(t *testing.T) {
	clk := clock.NewSimulated(noon)
	ts := new(timestamps)
	ahead := storage.Fence(noon.Add(time.Hour).UnixMicro()) // of a worker whose clock is ahead
	ts.observe(ahead)
	require.Equal(t, int64(ahead)+1, ts.next(clock.Read(clk)))
	ts.observe(ahead) // seen again
	require.Equal(t, int64(ahead)+2, ts.next(clock.Read(clk)))
	ts.observe(0)
	ts.observe(storage.Fence(noon.UnixMicro()))
	require.Equal(t, int64(ahead)+3, ts.next(clock.Read(clk)))
}

func TestTimestampOfAFence(t *testing.T) {
	s := storeOver(t, &recorder{})
	stamp := func(f storage.Fence) int64 {
		us, err := s.timestamp(t.Context(), f)
		require.NoError(t, err)
		return us
	}
	require.EqualValues(t, 42, stamp(42), "a run writes with its fence, whatever the time")
	s.clk = clock.NewSimulated(noon)
	first := stamp(0)
	require.Equal(t, noon.UnixMicro(), first)
	require.Equal(t, first+1, stamp(0))
}

// timed is a recorder over a server with a clock.
type timed struct {
	recordedReads
	server, clk *clock.Simulated
	away        error
}

func (s *timed) clocks(context.Context) ([]reading, error) {
	now := s.clk.Now()
	return []reading{readingOf("a", s.server.Now().UnixMilli(), now, now)}, s.away
}

// TestNoTimestampByAClockThatWasSet: the clock is ahead for a moment between two heartbeats. Nothing is written then,
// so what comes after that has timestamps of its time, and the deletes of runs cover it.
func TestNoTimestampByAClockThatWasSet(t *testing.T) {
	slice := storage.SliceKey{StartMs: noon.UnixMilli()}
	writes := map[string]func(context.Context, *Store) error{
		"a batch": func(ctx context.Context, s *Store) error {
			return s.Write(ctx, &storage.Batch{Open: []storage.SliceKey{slice}})
		},
		"marks deleted": func(ctx context.Context, s *Store) error {
			return s.DeleteMarks(ctx, 0, storage.IndexPartition{SliceKey: slice}, []storage.Mark{{}})
		},
		"a series": func(ctx context.Context, s *Store) error { return s.list(ctx, map[string][]*claim{"host": {{}}}) },
		"items": func(ctx context.Context, s *Store) error {
			return s.PutItems(ctx, []storage.Item{{ItemKey: storage.ItemKey{Kind: "kind", ID: "a"}}})
		},
		"items deleted": func(ctx context.Context, s *Store) error {
			return s.DeleteItems(ctx, []storage.ItemKey{{Kind: "kind", ID: "a"}})
		},
		"a state": func(ctx context.Context, s *Store) error { return s.CompleteSlice(ctx, slice) },
	}
	for _, c := range []struct {
		name         string
		ours, theirs time.Duration // by how much the clocks are set
		away         error
		refused      bool
	}{
		{name: "it goes on"},
		{name: "as much as clocks may differ", ours: 30 * time.Second},
		{name: "3 h ahead", ours: 3 * time.Hour, refused: true},
		{name: "3 h behind", ours: -3 * time.Hour, refused: true},
		{name: "nobody can say", ours: 3 * time.Hour, away: storage.ErrTimeout, refused: true},
		{name: "the machine slept", ours: 3 * time.Hour, theirs: 3 * time.Hour},
	} {
		for name, write := range writes {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				clk := clock.NewSimulated(noon)
				servers := &timed{server: clock.NewSimulated(noon), clk: clk}
				s := storeOver(t, servers)
				s.clk = clk
				s.epochsRead = clock.Read(clock.NewSimulated(noon.Add(day))) // no jump is a reason to read them again
				s.policies = storage.Policies(nil).Set(storage.Policy{Grace: time.Minute, Delay: 2 * time.Minute}, 0)
				require.NoError(t, s.checkClock(t.Context()))

				clk.Jump(c.ours)
				servers.server.Jump(c.theirs)
				servers.away = c.away
				err := write(t.Context(), s)
				if c.refused {
					require.ErrorIs(t, err, storage.ErrUnavailable)
					require.ErrorContains(t, err, "the clock was set")
					require.Empty(t, servers.written)
					clk.Jump(-c.ours)
					require.NoError(t, write(t.Context(), s), "it is as it was confirmed: nobody is asked")
				} else {
					require.NoError(t, err)
				}
				require.Equal(t, clk.Now().UnixMicro(), servers.written[0].tsUs)
			})
		}
	}
}

func TestTimestampsOfMany(t *testing.T) {
	ts, clk := new(timestamps), clock.NewSimulated(noon)
	const writers, each = 16, 500
	var mu sync.Mutex
	seen := map[int64]bool{}
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			last := int64(0)
			for range each {
				next := ts.next(clock.Read(clk))
				if next <= last {
					t.Errorf("%d after %d", next, last)
				}
				last = next
				mu.Lock()
				seen[next] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.Len(t, seen, writers*each)
}
