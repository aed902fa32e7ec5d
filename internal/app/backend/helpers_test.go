package backend

import (
	"context"
	"log/slog"
	"testing"

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

func TestWorkerName(t *testing.T) {
	first, second := WorkerName(), WorkerName()
	assert.NotEqual(t, first, second, "a process that ran here before is another worker")
}
