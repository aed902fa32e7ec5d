package backend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// embedded names a store on this machine.
func embedded(t *testing.T) config.Config {
	return config.Config{Store: config.Pebble, DataDir: t.TempDir()}
}

// shared is an Opener of a store that other processes use too.
func shared(clk clock.Clock) Opener {
	cfg := config.Config{Store: config.Cassandra, Cluster: config.Cluster{Hosts: []string{"db-1", "db-2"}, Keyspace: "quern"}}
	return Opener{Config: cfg, Clock: clk, Logger: slog.New(slog.DiscardHandler)}
}

// model is a store in which another process may add an epoch first.
type model struct {
	*storagetest.Model
	addEpoch func(blocks.Epoch) error
}

func newModel(t *testing.T, clk clock.Clock) *model {
	t.Helper()
	ladder, err := metric.ParseLadder("1h,6h,24h")
	require.NoError(t, err)
	policy, err := config.Policy{}.New(ladder)
	require.NoError(t, err)
	return &model{Model: storagetest.NewModel(storage.Settings{
		Ladder: ladder, GroupSize: 32, IndexPartitions: 4, Epochs: blocks.Epochs{{BlockSize: 64}}, Policy: policy,
	}, policy.Retention, clk)}
}

func (s *model) AddEpoch(ctx context.Context, e blocks.Epoch) error {
	if s.addEpoch != nil {
		if err := s.addEpoch(e); err != nil {
			return err
		}
	}
	return s.Model.AddEpoch(ctx, e)
}

var errAway = fmt.Errorf("nobody at home: %w", storage.ErrUnavailable)

func TestWhileAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var at, waits []time.Duration
		try := func(context.Context) error {
			at = append(at, time.Since(begin))
			if len(at) < 8 {
				return errAway
			}
			return nil
		}
		tell := func(err error, wait time.Duration) {
			assert.ErrorIs(t, err, errAway)
			waits = append(waits, wait/time.Second)
		}
		require.NoError(t, WhileAway(t.Context(), clock.System{}, try, tell))
		assert.Equal(t, []time.Duration{1, 2, 4, 8, 16, 30, 30}, waits)
		assert.Equal(t, 91*time.Second, at[7])

		refusal := errors.New("another ladder")
		require.ErrorIs(t, WhileAway(t.Context(), clock.System{}, func(context.Context) error { return refusal }, nil), refusal)

		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		begin = time.Now()
		err := WhileAway(ctx, clock.System{}, func(context.Context) error { return errAway }, func(error, time.Duration) {})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 10*time.Second, time.Since(begin), "in the middle of a wait")
	})
}

func TestWorkerName(t *testing.T) {
	first, second := WorkerName(), WorkerName()
	assert.NotEqual(t, first, second, "a process that ran here before is another worker")
}
