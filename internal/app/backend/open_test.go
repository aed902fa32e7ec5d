package backend

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// defaultLabels are the source labels of a store whose first process names none.
var defaultLabels = metric.SourceLabels{"host", "instance", "hostname", "host_name", "node", "k8s_node_name", "pod", "server", "job"}

// TestSettingsOfTheStore: a restart without the flags that a store was made with changes no stored
// setting. A restart with other flags changes what can be changed, and the log shows the old and
// the new value.
func TestSettingsOfTheStore(t *testing.T) {
	var log bytes.Buffer
	s := Opener{Config: embedded(t), Clock: clock.System{}, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	open := func() storage.Settings {
		t.Helper()
		log.Reset()
		st, err := s.OpenAndAdopt(t.Context(), func(error) {})
		require.NoError(t, err)
		defer func() { require.NoError(t, st.Close()) }()
		return st.Settings()
	}
	ladder, err := metric.ParseLadder("10s,1m")
	require.NoError(t, err)
	grace, delay, age, ahead := 2*time.Second, 5*time.Second, 30*time.Minute, time.Minute
	s.Config.Made = config.Made{Ladder: ladder, BlockSize: 64, GroupSize: 32, IndexPartitions: 4}
	s.Config.Policy = config.Policy{
		LateGrace: &grace, AggregationDelay: &delay, AgeCap: &age, FutureLimit: &ahead,
		Retention: config.Retention{"raw": 48 * time.Hour},
	}
	made := open()
	require.Equal(t, 64, made.Epochs[0].BlockSize)
	require.Equal(t, storage.Policy{
		Grace: grace, Delay: delay, AgeCap: age, FutureLimit: ahead,
		Retention:    storage.Retention{48 * time.Hour, 90 * 24 * time.Hour, 90 * 24 * time.Hour},
		SourceLabels: defaultLabels,
	}, made.Policy)

	s.Config.Made, s.Config.Policy = config.Made{}, config.Policy{}
	require.Equal(t, made, open(), "nothing is given")
	require.NotContains(t, log.String(), "changes")

	grace = 3 * time.Second
	s.Config.Policy = config.Policy{LateGrace: &grace, Retention: config.Retention{"1m": 0}, SourceLabels: defaultLabels}
	want := made.Policy
	want.Grace, want.Retention = grace, storage.Retention{48 * time.Hour, 90 * 24 * time.Hour, 0}
	require.Equal(t, want, open().Policy)
	assert.Contains(t, log.String(), `msg="store setting changed" setting=late-grace from=2s to=3s`)
	assert.Contains(t, log.String(), `setting=retention from="raw=2d,10s=90d,1m=90d" to="raw=2d,10s=90d,1m=0"`)
	s.Config.Policy = config.Policy{}
	require.Equal(t, want, open().Policy)

	grace = 5 * time.Second
	s.Config.LateGrace = &grace
	_, err = s.OpenAndAdopt(t.Context(), func(error) {})
	require.ErrorContains(t, err, "--late-grace 5s: must be shorter than --aggregation-delay, which is 5s", "with what the store has")

	s.Config.Policy = config.Policy{SourceLabels: metric.SourceLabels{"rack", "host"}}
	_, err = s.OpenAndAdopt(t.Context(), func(error) {})
	require.ErrorIs(t, err, storage.ErrSettings)
	require.ErrorContains(t, err, "--source-labels rack,host: the store was made with host,instance,hostname,host_name,node,k8s_node_name,pod,server,job, "+
		"which cannot be changed")
	s.Config.Policy = config.Policy{}
	require.Equal(t, want, open().Policy)
}

// TestSettingsThatDiffer: of several processes none changes the settings for all. A process with
// different settings is refused, with both values and the command that changes them.
func TestSettingsThatDiffer(t *testing.T) {
	s := shared(clock.System{})
	st := newModel(t, clock.System{})
	require.NoError(t, s.Adopt(t.Context(), st), "nothing is given")
	was := st.Settings().Policy
	same, other := time.Minute, 30*time.Second
	s.Config.LateGrace = &same
	require.NoError(t, s.Adopt(t.Context(), st), "the same is given")
	s.Config.LateGrace = &other
	s.Config.Retention = config.Retention{"raw": 14 * 24 * time.Hour}
	err := s.Adopt(t.Context(), st)
	require.ErrorIs(t, err, storage.ErrSettings)
	assert.ErrorContains(t, err, `keyspace "quern" has --late-grace 1m (30s requested); `+
		`--retention raw=7d,1h=90d,6h=1y,24h=5y (raw=14d,1h=90d,6h=1y,24h=5y requested): `+
		"leave the options out, or stop all processes and change them for all with "+
		"`quern settings set --keyspace quern --late-grace 30s --retention raw=14d,1h=90d,6h=1y,24h=5y`")
	assert.Equal(t, was, st.Settings().Policy)

	s.Config.Policy = config.Policy{SourceLabels: defaultLabels}
	require.NoError(t, s.Adopt(t.Context(), st), "the same is given")
	s.Config.SourceLabels = metric.SourceLabels{"rack", "host"}
	err = s.Adopt(t.Context(), st)
	require.ErrorIs(t, err, storage.ErrSettings)
	assert.ErrorContains(t, err, "--source-labels rack,host: the store was made with host,instance,hostname,host_name,node,k8s_node_name,pod,server,job, "+
		"which cannot be changed")
	assert.Equal(t, was, st.Settings().Policy)
}

func TestChangeBlockSize(t *testing.T) {
	last := func(st storage.Store) blocks.Epoch {
		epochs := st.Settings().Epochs
		return epochs[len(epochs)-1]
	}
	clk := clock.NewSimulated(time.Date(2025, 11, 21, 12, 30, 0, 0, time.UTC))
	s := shared(clk)

	st := newModel(t, clk)
	require.NoError(t, s.changeBlockSize(t.Context(), st))
	assert.Equal(t, 64, last(st).BlockSize, "not asked for")

	s.Config.BlockSize = 8
	require.NoError(t, s.changeBlockSize(t.Context(), st))
	want := blocks.Epoch{FromMs: time.Date(2025, 11, 21, 14, 0, 0, 0, time.UTC).UnixMilli(), BlockSize: 8}
	assert.Equal(t, want, last(st))
	require.NoError(t, s.changeBlockSize(t.Context(), st))
	assert.Len(t, st.Settings().Epochs, 2, "the same again is no change")

	// Another process is faster, with the same size or with another.
	for _, others := range []int{8, 16} {
		st := newModel(t, clk)
		st.addEpoch = func(e blocks.Epoch) error {
			st.addEpoch = nil
			require.NoError(t, st.Model.AddEpoch(t.Context(), blocks.Epoch{FromMs: e.FromMs, BlockSize: others}))
			return storage.ErrConflict
		}
		require.NoError(t, s.changeBlockSize(t.Context(), st))
		assert.Equal(t, 8, last(st).BlockSize)
	}

	// A permanent conflict does not hang.
	st.addEpoch = func(blocks.Epoch) error { return storage.ErrConflict }
	s.Config.BlockSize = 16
	require.ErrorIs(t, s.changeBlockSize(t.Context(), st), storage.ErrConflict)
}

// A new block size begins after all that is in use, however far ahead, and with or without a record.
func TestBlockSizeAfterWhatIsUsed(t *testing.T) {
	clk := clock.NewSimulated(time.Date(2025, 11, 21, 12, 30, 0, 0, time.UTC))
	at := func(days int) int64 {
		return time.Date(2025, 11, 21, 12, 0, 0, 0, time.UTC).AddDate(0, 0, days).UnixMilli()
	}
	day := func(days int) int64 { return metric.AlignDown(at(days), 24*3_600_000) }
	for name, use := range map[string]func(st *model) (int64, error){
		"opened": func(st *model) (int64, error) {
			return at(40), st.Write(t.Context(), &storage.Batch{Open: []storage.SliceKey{{StartMs: at(40)}}})
		},
		"a level": func(st *model) (int64, error) {
			return day(50), st.Write(t.Context(), &storage.Batch{Open: []storage.SliceKey{{Bucket: 2, StartMs: day(50)}}})
		},
		"begun, the record is gone": func(st *model) (int64, error) {
			k := storage.SliceKey{StartMs: at(1)}
			require.NoError(t, st.BeginSlice(t.Context(), k))
			require.NoError(t, st.CompleteSlice(t.Context(), k))
			clk.Set(time.UnixMilli(at(50)))
			defer clk.Set(time.UnixMilli(at(-9)))
			return at(1), st.Expire(t.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := shared(clk)
			st := newModel(t, clk)
			used, err := use(st)
			require.NoError(t, err)
			s.Config.BlockSize = 8
			require.NoError(t, s.changeBlockSize(t.Context(), st))
			require.Equal(t, blocks.Epochs{{BlockSize: 64}, {FromMs: used + 2*3_600_000, BlockSize: 8}}, st.Settings().Epochs)
		})
	}
}

// A new block size is refused by a clock of 1970, or any that is behind what the store has seen. It would cut the
// blocks of what is stored, or of what waits until the clock is right.
func TestNoBlockSizeByAClockBehind(t *testing.T) {
	now := time.Date(2025, 11, 21, 12, 30, 0, 0, time.UTC)
	clk := clock.NewSimulated(now)
	s := Opener{Config: embedded(t), Clock: clk, Logger: slog.New(slog.DiscardHandler)}
	open := func() (epochs blocks.Epochs, err error) {
		st, err := s.OpenAndAdopt(t.Context(), func(error) {})
		if err != nil {
			return nil, err
		}
		k := storage.SliceKey{StartMs: metric.AlignDown(clk.Now().UnixMilli(), 3_600_000)}
		require.NoError(t, st.Write(t.Context(), &storage.Batch{Open: []storage.SliceKey{k}}))
		require.NoError(t, st.CheckFit(t.Context()))
		_, err = st.AcquireShard(t.Context(), 0, "w", time.Minute)
		require.NoError(t, err)
		return st.Settings().Epochs, st.Close()
	}
	first, err := open()
	require.NoError(t, err)
	for name, behind := range map[string]time.Time{
		"1970": time.Unix(60, 0), "two days": now.AddDate(0, 0, -2), "an hour": now.Add(-time.Hour),
	} {
		clk.Jump(behind.Sub(clk.Now()))
		s.Config.BlockSize = 8
		_, err = open()
		require.ErrorContains(t, err, "behind the newest time that the store has seen", name)
		s.Config.BlockSize = 0
		clk.Jump(now.Sub(clk.Now()))
		epochs, err := open()
		require.NoError(t, err)
		require.Equal(t, first, epochs)
	}
	s.Config.BlockSize = 8
	clk.Jump(-30 * time.Second) // as a clock is put right
	epochs, err := open()
	require.NoError(t, err)
	require.Equal(t, blocks.Epochs{{BlockSize: 128}, {FromMs: time.Date(2025, 11, 21, 14, 0, 0, 0, time.UTC).UnixMilli(), BlockSize: 8}}, epochs)
}
