package cassandra

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
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
		{"behind it", answered.Add(most + time.Millisecond), "is 30s behind the servers' (a)"},
		{"as far ahead of it as may be", asked.Add(-most - time.Millisecond), ""},
		{"ahead of it", asked.Add(-most - 2*time.Millisecond), "is 30s ahead of the servers' (a)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := judge([]reading{readingOf("a", c.server.UnixMilli(), asked, answered)}, nil, most)
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

func TestMajorityOfClocks(t *testing.T) {
	const hour = 3600
	for name, c := range map[string]struct {
		found []reading
		known string // nodes
		wrong string // nodes; "?" for not known
		err   string
	}{
		"one":                              {found: at(0), wrong: "?"},
		"one differs":                      {found: at(hour), wrong: "?", err: "is 1h0m0s behind the servers' (a)"},
		"one that was wrong":               {found: at(hour), known: "a", wrong: "?", err: "is 1h0m0s behind the servers' (a)"},
		"two":                              {found: at(0, 1)},
		"both of two":                      {found: at(-hour, 1-hour), err: "is 1h0m0s ahead of the servers' (a, b)"},
		"one of two":                       {found: at(0, hour), wrong: "?", err: "no majority says whether this machine's clock is right (a is 0s ahead, b is 1h0m0s ahead)"},
		"one of two that was wrong":        {found: at(0, hour), known: "b", wrong: "b"},
		"the other of two was wrong":       {found: at(0, hour), known: "a", wrong: "a", err: "is 1h0m0s behind the servers' (b)"},
		"two, both were wrong, and differ": {found: at(0, hour), known: "ab", wrong: "?", err: "no majority"},
		"two, one is right again":          {found: at(0, 1), known: "b"},
		"one of three":                     {found: at(0, -hour, 1), wrong: "b"},
		"two of three":                     {found: at(0, hour, hour), wrong: "a", err: "is 1h0m0s behind the servers' (b, c)"},
		"two of three, one was wrong":      {found: at(0, hour, hour), known: "bc", wrong: "a", err: "is 1h0m0s behind"},
		"all of three":                     {found: at(hour, hour, hour), err: "is 1h0m0s behind the servers' (a, b, c)"},
		"three that differ":                {found: at(-hour, 0, hour), wrong: "ac"},
		"one of four":                      {found: at(0, 0, hour, 0), wrong: "c"},
		"two of four":                      {found: at(0, 0, hour, hour), wrong: "?", err: "no majority"},
		"two of four were wrong":           {found: at(0, 0, hour, hour), known: "cd", wrong: "cd"},
		"two of five":                      {found: at(0, hour, 0, -hour, 0), wrong: "bd"},
		"as far as may be":                 {found: at(30, 20, 30)},
		"two, of which one is too far":     {found: at(20, 40), err: "is 40s behind the servers' (a, b)"},
	} {
		t.Run(name, func(t *testing.T) {
			known := make(map[string]bool)
			for _, node := range c.known {
				known[string(node)] = true
			}
			wrong, err := judge(c.found, known, 30*time.Second)
			require.Equal(t, c.wrong == "?", wrong == nil)
			if wrong != nil {
				require.Equal(t, c.wrong, strings.Join(slices.Sorted(maps.Keys(wrong)), ""))
			}
			if c.err == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, storage.ErrSettings)
			require.ErrorContains(t, err, c.err)
		})
	}
}

// A slow node is waited for as long as the others do not decide.
func TestEnoughClocks(t *testing.T) {
	for _, c := range []struct {
		found []reading
		asked int
		want  bool
	}{
		{nil, 1, false},
		{at(0), 1, true},
		{at(0), 2, false},
		{at(0), 3, false},
		{at(0, 0), 3, true},
		{at(0, 3600), 3, false},
		{at(3600, 3600), 3, true},
		{at(0, 0), 4, false},
		{at(0, 0, 3600, 3600), 5, false},
		{at(0, 0, 3600, 0), 5, true},
	} {
		require.Equal(t, c.want, enough(c.found, c.asked, 30*time.Second), "%v of %d", c.found, c.asked)
	}
}

// read is a session that has read the nodes' clocks.
type read struct {
	session
	found []reading
}

func (r *read) clocks(context.Context, time.Duration) ([]reading, error) { return r.found, nil }

// One node of three whose clock is wrong stops no process, whichever nodes answer. The log names it
// once, and once more when it is right, and a metric shows how far it is off.
func TestOneWrongClockOfThree(t *testing.T) {
	var log strings.Builder
	r := &read{}
	s := storeOver(t, r)
	s.log = slog.New(slog.NewTextHandler(&log, nil))
	s.policies = storage.Policies(nil).Set(storage.Policy{Grace: time.Minute, Delay: 2 * time.Minute}, 0)
	right, off := at(0, 1, 0), at(0, 1, 3600)
	check := func(found ...reading) {
		t.Helper()
		r.found = found
		require.NoError(t, s.checkClock(t.Context()))
	}
	offset := func() string {
		n := &nodes{byID: map[string]*node{"1": {address: "a"}, "2": {address: "c"}, "3": {address: "never read"}}}
		text, err := testutil.CollectAndFormat(collector{newLimiter(1), n, &s.clocks}, expfmt.TypeTextPlain, "quern_cassandra_node_clock_offset_seconds")
		require.NoError(t, err)
		return string(text)
	}
	check(right...)
	require.Empty(t, log.String())
	require.Contains(t, offset(), `{node="c"} 0`)
	for range 10 {
		check(off...)
		check(off[0], off[2]) // b is restarted
		check(off[2], off[1], off[0])
	}
	require.Equal(t, 1, strings.Count(log.String(), "level=WARN"))
	require.Contains(t, log.String(), "differs from those of most other nodes: set it (NTP); it is asked last until then\" node=c ahead_of_this_machine=1h0m0s")
	require.Contains(t, offset(), `{node="c"} 3600`)
	require.NotContains(t, offset(), "never read")

	r.found = at(3600, 3600, 3600) // it is this machine's clock now
	require.ErrorContains(t, s.checkClock(t.Context()), "this machine's clock is 1h0m0s behind the servers' (a, b, c)")
	require.Equal(t, 1, strings.Count(log.String(), "agrees with those of the others again\" node=c"))
	check(right...)
	require.Equal(t, 2, strings.Count(log.String(), "level="))
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

// A keyspace whose policy is from before there were source labels takes those of the first process. A process with
// others gets the recorded ones to compare with, and a change is noticed like any other.
func TestSourceLabelsOfTheFirst(t *testing.T) {
	o := place(t)
	policy := storage.Policy{Grace: 10 * time.Minute, Delay: 30 * time.Minute, Retention: storage.Retention{48 * time.Hour, 0, 0, 0}}
	o.Policy = policy.Always
	old := start(t, o)
	require.Equal(t, policy, old.Settings().Policy)
	history := old.history()

	policy.SourceLabels = metric.SourceLabels{"host", "instance"}
	o.Policy = policy.Always
	p := start(t, o)
	require.Equal(t, policy, p.Settings().Policy)
	require.Len(t, p.history(), len(history), "rows are written as before")
	other := policy
	other.SourceLabels = metric.SourceLabels{"rack"}
	o.Policy = other.Always
	third := start(t, o)
	require.Equal(t, policy, third.Settings().Policy)

	require.NoError(t, p.SetPolicy(t.Context(), other))
	o.Policy = policy.Always
	require.Equal(t, other, start(t, o).Settings().Policy)
	require.ErrorContains(t, third.CheckFit(t.Context()), "--source-labels from host,instance to rack")
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
