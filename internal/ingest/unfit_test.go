package ingest_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// TestUnfit: a process whose clock is in doubt writes nothing at all: no report, no deletion, no
// torn chunks, no queued samples, and no seal, even at its end.
func TestUnfit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var wrong atomic.Bool
		errClock := errors.New("it is late")
		in, g := start(t, ingest.Options{Window: time.Second, Unfit: func() error {
			if wrong.Load() {
				return errClock
			}
			return nil
		}}, registry.Options{})
		_, err := in.Append(t.Context(), report(1))
		require.NoError(t, err)
		g.Fail("Write", blocks.Range{}, 1, storage.ErrTimeout)
		_, err = in.Append(t.Context(), report(2))
		require.ErrorIs(t, err, storage.ErrTimeout)
		waits := make(chan error)
		go func() {
			_, err := in.Append(t.Context(), report(3))
			waits <- err
		}()
		synctest.Wait()

		wrong.Store(true)
		g.Forget()
		require.ErrorIs(t, <-waits, errClock)
		for name, try := range map[string]func() error{
			"append":   func() error { _, err := in.Append(t.Context(), report(4)); return err },
			"backfill": func() error { _, err := in.BackFill(t.Context(), report(4)); return err },
			"delete":   func() error { return in.Delete(t.Context(), nil, []metric.Sample{{TimeMs: time.Now().UnixMilli()}}) },
			"settle":   func() error { return in.Settle(t.Context()) },
			"seal":     func() error { return in.Seal(t.Context()) },
		} {
			err := try()
			require.ErrorIs(t, err, errClock, name)
			require.ErrorIs(t, err, storage.ErrUnavailable, name)
		}
		require.NoError(t, in.Close())
		require.Zero(t, g.Count("Write"))
	})
}

// TestPlaceFollowsCommits: a place in the order is taken behind the commit under way, whose samples cannot be read yet.
func TestPlaceFollowsCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clk := clock.System{}
		store := newStore(clk)
		in := ingest.Start(t.Context(), parts(store, clk, registry.Options{}), ingest.Options{})
		written, taken := make(chan struct{}), make(chan struct{})
		store.Add(storagetest.Rule{Op: "Write", Times: 1, Before: func() error { <-written; return nil }})
		go func() { _, _ = in.Append(t.Context(), report(1)) }()
		synctest.Wait()
		go func() {
			defer close(taken)
			_, err := in.Place(t.Context())
			assert.NoError(t, err)
		}()
		synctest.Wait()
		select {
		case <-taken:
			t.Error("the place was taken before the commit was over")
		default:
		}
		close(written)
		<-taken
		require.NoError(t, in.Close())
		_, err := in.Place(t.Context())
		require.ErrorIs(t, err, ingest.ErrClosed)
	})
}

// slow confirms no clock before a context ends.
type slow struct {
	storage.Store
	until context.Context
}

func (s *slow) Confirms(ctx context.Context, at clock.Reading) error {
	<-s.until.Done()
	return s.Store.Confirms(ctx, at)
}

// TestPlaceWithoutItsCaller: a caller gives up in the middle of a placement. What it gets is no memory of the goroutine that goes on,
// as the race detector sees, and the next caller has a place of its own.
func TestPlaceWithoutItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clk := clock.System{}
		caller, leave := context.WithCancel(t.Context())
		in := ingest.Start(t.Context(), parts(&slow{newStore(clk), caller}, clk, registry.Options{}), ingest.Options{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			at, err := in.Place(caller)
			assert.True(t, at == nil && errors.Is(err, context.Canceled) || at != nil && err == nil, "%v", err)
		}()
		synctest.Wait()
		leave()
		<-done
		at, err := in.Place(t.Context())
		require.NoError(t, err)
		require.NotNil(t, at)
		require.NoError(t, in.Close())
	})
}
