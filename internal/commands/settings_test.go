package commands_test

import (
	"bytes"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/commands"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/pebble"
)

// TestSourceLabelsAreSet: source labels are set once, when the store is made.
func TestSourceLabelsAreSet(t *testing.T) {
	dir := t.TempDir()
	old := storage.Policy{
		Grace: time.Minute, Delay: 2 * time.Minute, AgeCap: time.Hour, FutureLimit: time.Minute, Retention: storage.Retention{0, 0, 0, 0},
		SourceLabels: metric.SourceLabels{"rack"},
	}
	st, err := pebble.Open(dir, pebble.Options{Policy: old.Always, Clock: clock.System{}, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	require.NoError(t, st.Close())
	cfg := config.Settings{Store: config.Pebble, DataDir: dir}
	shown := func() string {
		var out bytes.Buffer
		require.NoError(t, commands.Settings(t.Context(), config.Settings{Store: config.Pebble, DataDir: dir}, &out, io.Discard))
		return out.String()
	}
	set := func(labels ...string) (string, error) {
		var out bytes.Buffer
		cfg.SourceLabels = labels
		err := commands.SetSettings(t.Context(), cfg, &out, io.Discard)
		return out.String(), err
	}
	_, err = set("host", "instance")
	require.ErrorContains(t, err, "--source-labels host,instance: the store was made with rack, which cannot be changed")
	out, err := set("rack")
	require.NoError(t, err)
	assert.Equal(t, "Nothing to change: the store already has these settings.\n", out)
	assert.Regexp(t, `(?m)^--source-labels +rack +$`, shown())
	st, err = pebble.Open(dir, pebble.Options{Clock: clock.System{}, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	assert.Equal(t, old, st.Settings().Policy)
	require.NoError(t, st.Close())
}
