package cassandra

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
)

// TestCheckClock: it is unknown when within the request the server read its clock. So only a
// difference that this cannot explain is refused.
func TestCheckClock(t *testing.T) {
	const most = 30 * time.Second
	asked := time.UnixMilli(1_700_000_000_000)
	answered := asked.Add(2 * time.Second)
	for _, c := range []struct {
		name   string
		most   time.Duration
		server time.Time
		want   string
	}{
		{"the same", most, asked.Add(time.Second), ""},
		// The server answers in whole milliseconds.
		{"as far behind it as may be", most, answered.Add(most), ""},
		{"behind it", most, answered.Add(most + time.Millisecond), "is 30s behind the servers'"},
		{"as far ahead of it as may be", most, asked.Add(-most - time.Millisecond), ""},
		{"ahead of it", most, asked.Add(-most - 2*time.Millisecond), "is 30s ahead of the servers'"},
		{"not compared", 0, asked.Add(time.Hour), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := checkClock(c.most, c.server.UnixMilli(), asked, answered)
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, storage.ErrSettings)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// If a clock goes wrong later, the next heartbeat finds out, and is not recorded.
func TestClockGoesWrong(t *testing.T) {
	o := place(t)
	clk := clock.NewSimulated(time.Now())
	o.Clock, o.Policy = clk, storage.Policy{Grace: 10 * time.Minute, Delay: 30 * time.Minute}.Always
	st, err := Open(t.Context(), o)
	require.NoError(t, err)
	defer func() { require.NoError(t, st.Close()) }()
	w := storage.Worker{ID: "w"}
	require.NoError(t, st.Heartbeat(t.Context(), w, time.Hour))
	clk.Set(clk.Now().Add(time.Hour))
	w.ID = "astray"
	require.ErrorIs(t, st.Heartbeat(t.Context(), w, time.Hour), storage.ErrSettings)
	workers, err := st.Workers(t.Context())
	require.NoError(t, err)
	require.Equal(t, []storage.Worker{{ID: "w"}}, workers)
}

// A process is fit while its clock agrees with the servers' and its policy with the store's. It
// checks at each heartbeat, and before it drops anything.
func TestCheckFit(t *testing.T) {
	o := place(t)
	clk := clock.NewSimulated(time.Now())
	o.Clock, o.Policy = clk, storage.Policy{Grace: 10 * time.Minute, Delay: 30 * time.Minute}.Always
	p := start(t, o)
	require.NoError(t, p.CheckFit(t.Context()))
	for _, step := range []time.Duration{9 * 24 * time.Hour, -time.Hour} {
		clk.Jump(step)
		require.ErrorIs(t, p.CheckFit(t.Context()), storage.ErrSettings)
		p.flaky.fail(0, lost)
		require.ErrorIs(t, p.CheckFit(t.Context()), storage.ErrTimeout, "and not that it is fit")
		p.flaky.heal()
		clk.Jump(-step)
		require.NoError(t, p.CheckFit(t.Context()))
	}

	other := start(t, o)
	policy := other.Settings().Policy
	policy.Grace = 5 * time.Minute
	require.NoError(t, other.SetPolicy(t.Context(), policy))
	require.NoError(t, other.CheckFit(t.Context()))
	err := p.CheckFit(t.Context())
	require.ErrorIs(t, err, storage.ErrSettings)
	require.ErrorContains(t, err, "--late-grace from 10m to 5m")
	require.ErrorIs(t, p.Heartbeat(t.Context(), storage.Worker{ID: "w"}, time.Hour), storage.ErrSettings)
}
