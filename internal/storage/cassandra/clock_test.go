package cassandra

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
)

// It is unknown when within the request a node read its clock. So only a difference that this
// cannot explain is refused.
func TestReadingOfAClock(t *testing.T) {
	const most = 30 * time.Second
	asked := time.UnixMilli(1_700_000_000_000)
	answered := asked.Add(2 * time.Second)
	for _, c := range []struct {
		name   string
		server time.Time
		want   string
	}{
		{"the same", asked.Add(time.Second), ""},
		// The server answers in whole milliseconds.
		{"as far behind it as may be", answered.Add(most), ""},
		{"behind it", answered.Add(most + time.Millisecond), "(a is 31s ahead)"},
		{"as far ahead of it as may be", asked.Add(-most - time.Millisecond), ""},
		{"ahead of it", asked.Add(-most - 2*time.Millisecond), "(a is 31s behind)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := new(clocks).check([]reading{readingOf("a", c.server.UnixMilli(), asked, answered)}, most)
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, storage.ErrSettings)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// at makes readings of nodes a, b and so on that are ahead by whole seconds, up to 200 ms.
func at(ahead ...int) (out []reading) {
	for i, s := range ahead {
		d := time.Duration(s) * time.Second
		out = append(out, reading{string(rune('a' + i)), d - 100*time.Millisecond, d + 100*time.Millisecond})
	}
	return out
}

// Each node whose clock differs by more than may be is named, however many agree.
func TestClocksOfNodes(t *testing.T) {
	const hour = 3600
	for name, c := range map[string]struct {
		found []reading
		err   string
	}{
		"one":              {found: at(0)},
		"as far as may be": {found: at(30, -30, 0)},
		"one differs":      {found: at(hour), err: "(a is 1h0m0s ahead)"},
		"one of three":     {found: at(0, -hour, 1), err: "(b is 1h0m0s behind)"},
		"two of three":     {found: at(hour, 0, 40), err: "(a is 1h0m0s ahead, c is 40s ahead)"},
		"all":              {found: at(hour, hour), err: "(a is 1h0m0s ahead, b is 1h0m0s ahead)"},
	} {
		t.Run(name, func(t *testing.T) {
			err := new(clocks).check(c.found, 30*time.Second)
			if c.err == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, storage.ErrSettings)
			require.ErrorContains(t, err, c.err)
		})
	}
}

// read is a session that has read the nodes' clocks.
type read struct {
	session
	found []reading
}

func (r *read) clocks(context.Context) ([]reading, error) { return r.found, nil }

// One node of three whose clock is wrong refuses each process that asks it, until it is right. A metric shows how far it is off.
func TestOneWrongClockOfThree(t *testing.T) {
	r := &read{}
	s := storeOver(t, r)
	s.policies = storage.Policies(nil).Set(storage.Policy{Grace: time.Minute, Delay: 2 * time.Minute}, 0)
	offset := func() string {
		n := &nodes{byID: map[string]*node{"1": {address: "a"}, "2": {address: "c"}, "3": {address: "never read"}}}
		text, err := testutil.CollectAndFormat(collector{newLimiter(1), n, &s.clocks}, expfmt.TypeTextPlain, "quern_cassandra_node_clock_offset_seconds")
		require.NoError(t, err)
		return string(text)
	}
	r.found = at(0, 1, 0)
	require.NoError(t, s.checkClock(t.Context()))
	require.NoError(t, s.ClockRefused())
	require.Contains(t, offset(), `{node="c"} 0`)
	r.found = at(0, 1, 3600)
	err := s.checkClock(t.Context())
	require.ErrorContains(t, err, "(c is 1h0m0s ahead)")
	require.Equal(t, err, s.ClockRefused())
	require.Contains(t, offset(), `{node="c"} 3600`)
	require.NotContains(t, offset(), "never read")
	r.found = at(0, 1, 0)
	require.NoError(t, s.checkClock(t.Context()))
	require.NoError(t, s.ClockRefused())
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
}
