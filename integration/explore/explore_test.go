package explore

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/pebble"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	whole  = flag.Bool("whole", false, "give each scenario all of its preemptions")
	replay = flag.String("schedule", "", "run this schedule only, of the scenario that -run picks")
)

// late flushes a sample of the hour being ground, after the end of that hour.
func late(ctx context.Context, p *process) { p.flush(ctx, sample(0, 11, 5, 1)) }

// straggler is a flush that begins in time, and whose write takes effect when the run may have
// begun.
func straggler(ctx context.Context, p *process) {
	p.clk.Set(at(11, 59))
	p.stall = func() { p.clk.Set(at(12, 2).Add(p.w.sc.skew)) }
	p.flush(ctx, sample(0, 11, 5, 1))
}

// opensNext flushes a sample of the next hour.
func opensNext(ctx context.Context, p *process) { p.flush(ctx, sample(1, 12, 1, 1)) }

// settled is a straggler, and the look that follows within a second.
func settled(ctx context.Context, p *process) {
	straggler(ctx, p)
	if err := p.writer.Settle(ctx); err != nil && !p.w.over {
		p.w.failed("settle: %v", err)
	}
}

// answeredLate is a flush whose write is stamped and begins in time, and ends when the run may have
// begun.
func answeredLate(ctx context.Context, p *process) {
	p.clk.Set(at(11, 59))
	p.stalled = func() { p.clk.Set(at(12, 2).Add(p.w.sc.skew)) }
	p.flush(ctx, sample(0, 11, 5, 1))
}

// slowSeal seals just before the run may begin, and is done after that.
func slowSeal(ctx context.Context, p *process) {
	p.clk.Set(at(12, 2).Add(-time.Second))
	p.stall = func() { p.clk.Set(at(12, 2).Add(p.w.sc.skew)) }
	if err := p.writer.Seal(ctx); err != nil && !p.w.over {
		p.w.failed("seal: %v", err)
	}
}

// landed is a flush that begins in time and fails when the run may have begun. Its chunk is on one
// copy only. Ingest writes the chunk again.
func landed(ctx context.Context, p *process) {
	p.clk.Set(at(11, 59))
	p.stall = func() { p.clk.Set(at(12, 2).Add(p.w.sc.skew)) }
	landedLate(ctx, p)
}

// landedLate is the same flush with late data.
func landedLate(ctx context.Context, p *process) {
	p.copies.Land(1, errLanded)
	if err := p.writer.Flush(ctx, p.groups(sample(0, 11, 5, 1))); !errors.Is(err, errLanded) {
		if !p.w.over {
			p.w.failed("flush: %v", err)
		}
		return
	}
	if err := p.writer.Settle(ctx); err != nil && !p.w.over {
		p.w.failed("settle: %v", err)
	}
}

var errLanded = errors.New("one copy has answered")

// scenarios have one preemption less without -whole, if they have more than one. That takes seconds,
// and the whole takes minutes.
var scenarios = []scenario{
	// A stale worker continues at any point of its successor's run, and of the next bucket's.
	{name: "takeover", lww: true, leaseEnds: 1, preemptions: 2},
	{name: "takeover checked", lww: true, checks: true, leaseEnds: 1, preemptions: 2},
	{name: "takeover refused", leaseEnds: 1, preemptions: 2},
	{name: "takeover unsealed", lww: true, oneBlock: true, unsealed: true, leaseEnds: 1, preemptions: 3},
	{name: "takeover torn", lww: true, torn: true, oneBlock: true, leaseEnds: 1, preemptions: 3},
	{name: "two takeovers", lww: true, oneBlock: true, leaseEnds: 2, preemptions: 3},
	{name: "death", lww: true, mortal: true, leaseEnds: 1, preemptions: 2},
	// The stale worker continues when late data has been ground, an hour or two later.
	{name: "next hours", lww: true, oneBlock: true, leaseEnds: 1, hours: 2, before: late, preemptions: 3},
	{name: "next hours refused", oneBlock: true, leaseEnds: 1, hours: 2, before: late, preemptions: 2},
	// The index of the first hour goes away. One worker leaves it, and another finishes later hours
	// meanwhile.
	{name: "index away", lww: true, oneBlock: true, leaseEnds: 1, hours: 2, before: late, gone: true, preemptions: 2},
	{name: "index away refused", oneBlock: true, leaseEnds: 1, hours: 2, before: late, gone: true, preemptions: 2},
	// Ingest writes at the same time.
	{name: "late data", lww: true, oneBlock: true, leaseEnds: 1, hours: 1, ingest: late, preemptions: 2},
	{name: "straggler", lww: true, oneBlock: true, leaseEnds: 1, ingest: straggler, preemptions: 3},
	{name: "straggler ahead", lww: true, oneBlock: true, unsealed: true, skew: 20 * time.Second, leaseEnds: 1, ingest: straggler, preemptions: 2},
	{name: "straggler torn", lww: true, torn: true, oneBlock: true, leaseEnds: 1, ingest: straggler, preemptions: 2},
	{name: "straggler refused", oneBlock: true, leaseEnds: 1, ingest: straggler, preemptions: 2},
	{name: "answered late", lww: true, torn: true, oneBlock: true, skew: -20 * time.Second, leaseEnds: 1, ingest: answeredLate, preemptions: 2},
	// The slice that late marks go to is ground meanwhile, by a clock that is ahead of that of ingest.
	{name: "put and a beginning", oneBlock: true, unsealed: true, hours: 1, before: opensNext, ingest: settled, preemptions: 2},
	{name: "slow seal", lww: true, unsealed: true, oneBlock: true, leaseEnds: 1, ingest: slowSeal, preemptions: 2},
	// A write of ingest fails, and data on one copy comes to light before a run, during it or after
	// it.
	{name: "landed", lww: true, oneBlock: true, lands: true, ingest: landed, preemptions: 2},
	{name: "landed late", lww: true, oneBlock: true, unsealed: true, lands: true, ingest: landedLate, preemptions: 2},
	// A stale worker packs the group that two blocks share.
	{name: "shared group", lww: true, torn: true, shared: true, leaseEnds: 1, preemptions: 2},
	// The embedded store, without comparing its states.
	{name: "pebble", oneBlock: true, leaseEnds: 1, ingest: late, preemptions: 1, open: openPebble},
}

func openPebble(clk clock.Clock, s storage.Settings) storage.Store {
	st, err := pebble.Open("data", pebble.Options{
		Settings: s, Clock: clk, FS: vfs.NewMem(), Logger: slog.New(slog.DiscardHandler),
		CacheBytes: 1 << 20, MemTableBytes: 1 << 20, ReserveBytes: 1,
	})
	must(err)
	return st
}

// TestInterleavings: in every order, within the bound, everything matches the raw samples in the
// end.
func TestInterleavings(t *testing.T) {
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			if *replay != "" {
				f := again(t, &sc, *replay)
				t.Log(f)
				require.NoError(t, f.Err)
				return
			}
			r, f := explore(t, &sc)
			t.Logf("%+v", r)
			if f != nil {
				t.Fatal(f)
			}
			require.Greater(t, r.Complete, 30)
		})
	}
}

func explore(t *testing.T, sc *scenario) (r Result, f *Failure) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := &Explorer{Preemptions: sc.preemptions, Start: func() System { return newWorld(t.Context(), sc) }}
		if !*whole {
			e.Preemptions = max(1, e.Preemptions-1)
		}
		r, f = e.Run()
	})
	return r, f
}

func again(t *testing.T, sc *scenario, schedule string) (f *Failure) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := &Explorer{Start: func() System { return newWorld(t.Context(), sc) }}
		f = e.Replay(schedule)
	})
	return f
}
