package cassandra

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
)

// The tests of this file run processes with different clocks, on a real server.

// startAt is start for a process whose clock is off by d.
func startAt(t *testing.T, o Options, d time.Duration) *process {
	t.Helper()
	o.Clock = clock.NewSimulated(time.Now().Add(d))
	return start(t, o)
}

// A fence lies above all earlier fences, including those of a process whose clock is ahead.
// Otherwise the next run could neither overwrite nor delete what that process wrote.
func TestFencesAscendOverProcesses(t *testing.T) {
	o := place(t)
	ahead, behind := startAt(t, o, time.Hour), startAt(t, o, -time.Hour)
	var newest storage.Fence
	for shard, p := range []*process{ahead, behind, behind, ahead, behind} {
		l, err := p.AcquireShard(t.Context(), shard, "worker", time.Hour)
		require.NoError(t, err)
		require.Greater(t, l.Fence, newest, "shard %d", shard)
		newest = l.Fence
	}
	// A new process continues from the newest fence, whatever its own clock says.
	l, err := startAt(t, o, -2*time.Hour).AcquireShard(t.Context(), 5, "worker", time.Hour)
	require.NoError(t, err)
	require.Greater(t, l.Fence, newest)
}

// What a process writes is there, even if a run with a clock ahead deleted the same rows before the
// process started.
func TestWritesAfterARunOfAClockAhead(t *testing.T) {
	o := place(t)
	ahead := startAt(t, o, time.Hour)
	lease, err := ahead.AcquireShard(t.Context(), 0, "ahead", time.Hour)
	require.NoError(t, err)
	r := newRound(1)
	require.NoError(t, ahead.DeleteCacheBlock(t.Context(), lease.Fence, storage.CacheKey{SliceKey: r.part.SliceKey}))
	require.NoError(t, ahead.DeleteMarks(t.Context(), lease.Fence, r.part, r.full().Marks))

	p := start(t, o)
	require.NoError(t, p.Write(t.Context(), r.batch(0)))
	got, want := r.read(t, p), r.full()
	require.Equal(t, want.Marks, got.Marks)
	require.Equal(t, want.Cache, got.Cache)
}

// A process learns of another's new block size within half a slice. Blocks that were cut by the old
// size are then refused once, to be cut anew. A worker reads the new size before it gets a lease,
// so that it does not read marks by the old one.
func TestEpochsOfAnotherProcess(t *testing.T) {
	o := place(t)
	other := start(t, o)
	clk := clock.NewSimulated(time.Now())
	o.Clock = clk
	half := time.Duration(other.ladder.WidthMs(1)) * time.Millisecond / 2
	p := start(t, o)
	next := func() blocks.Epochs {
		n := len(other.Settings().Epochs)
		require.NoError(t, other.AddEpoch(t.Context(), blocks.Epoch{FromMs: int64(n+1) * dayMs, BlockSize: 4 << (n % 2)}))
		return other.Settings().Epochs
	}
	write := func() error { return p.Write(t.Context(), newRound(1).batch(0)) }
	require.NoError(t, write())

	before, after := p.Settings().Epochs, next()
	clk.Set(clk.Now().Add(half - time.Second))
	require.NoError(t, write())
	require.Equal(t, before, p.Settings().Epochs, "a commit does not ask each time")
	clk.Set(clk.Now().Add(time.Second))
	require.ErrorIs(t, write(), storage.ErrUnavailable)
	require.Equal(t, after, p.Settings().Epochs)
	require.NoError(t, write())

	after = next()
	clk.Set(clk.Now().Add(half))
	_, err := p.AcquireShard(t.Context(), 0, "worker", time.Hour)
	require.NoError(t, err)
	require.Equal(t, after, p.Settings().Epochs)

	// A clock that was ahead and steps back does not delay the next read of the epochs.
	after = next()
	clk.Jump(-half / 2)
	clk.Set(clk.Now().Add(half))
	require.ErrorIs(t, write(), storage.ErrUnavailable)
	require.Equal(t, after, p.Settings().Epochs)
}

// interjected calls first, once, between its user's read and the decision that follows from the
// read.
type interjected struct {
	session
	first func()
}

func (i *interjected) cas(ctx context.Context, stmts ...statement) (bool, error) {
	if i.first != nil {
		i.first()
		i.first = nil
	}
	return i.session.cas(ctx, stmts...)
}

// Two processes set a block size at the same moment: one gets an error, and the other's block size
// stays.
func TestEpochsAddedMeanwhile(t *testing.T) {
	o := place(t)
	p, other := start(t, o), start(t, o)
	theirs := blocks.Epoch{FromMs: 2 * dayMs, BlockSize: 8}
	p.session = &interjected{session: p.session, first: func() {
		require.NoError(t, other.AddEpoch(t.Context(), theirs))
	}}
	mine := blocks.Epoch{FromMs: 3 * dayMs, BlockSize: 16}
	require.ErrorIs(t, p.AddEpoch(t.Context(), mine), storage.ErrConflict)
	require.ErrorIs(t, p.AddEpoch(t.Context(), mine), storage.ErrConflict, "it has read them now, to be looked at before it is tried again")
	require.NoError(t, p.AddEpoch(t.Context(), mine))
	require.Equal(t, append(o.Settings.Epochs, theirs, mine), p.Settings().Epochs)
}
