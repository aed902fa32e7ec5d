package ingest_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/treecheck/linear"
)

// namedLabels returns n labels with the given names.
func namedLabels(n int, name func(i int) string) []metric.Label {
	out := make([]metric.Label, n)
	for i := range out {
		out[i] = metric.Label{Name: name(i), Value: "v"}
	}
	return out
}

// TestMessagesAreShort: a message repeats only the beginning of a name. A call has a thousand of them for each reason.
func TestMessagesAreShort(t *testing.T) {
	in, _ := start(t, ingest.Options{}, registry.Options{})
	defer func() { require.NoError(t, in.Close()) }()
	long := strings.Repeat("\x01", 250)
	shown := `"` + strings.Repeat(`\x01`, 80) + `"…`
	for message, rep := range map[string]ingest.Report{
		"source " + shown + " has a control character":      {Source: long, Measurements: []ingest.Measurement{{Metric: "m", TimeMs: ingest.NoTime}}},
		"metric name " + shown + " has a control character": {Source: "s", Measurements: []ingest.Measurement{{Metric: long, TimeMs: ingest.NoTime}}},
		"label name " + shown + " has a control character": {Source: "s", Measurements: []ingest.Measurement{
			{Metric: "m", Labels: []metric.Label{{Name: long, Value: "v"}}, TimeMs: ingest.NoTime},
		}},
		`the label that names the source, "` + strings.Repeat(`\xff`, 80) + `"…, is not valid UTF-8`: {
			Source: strings.Repeat("\xff", 4000), Derived: true, Measurements: []ingest.Measurement{{Metric: "m", TimeMs: ingest.NoTime}},
		},
	} {
		result, err := in.Append(t.Context(), []ingest.Report{rep})
		require.NoError(t, err)
		require.Len(t, result.Rejected, 1)
		require.Equal(t, message, result.Rejected[0].Message)
	}
}

// TestHostileIsLinear: rejecting parts of a report takes time and memory in proportion to its size,
// whatever the report contains.
func TestHostileIsLinear(t *testing.T) {
	in, _ := start(t, ingest.Options{}, registry.Options{})
	defer func() { require.NoError(t, in.Close()) }()
	one := func(labels []metric.Label) []ingest.Report {
		return []ingest.Report{{Source: "s", Measurements: []ingest.Measurement{{Metric: "m", Labels: labels, TimeMs: ingest.NoTime}}}}
	}
	many := func(n int, m ingest.Measurement) []ingest.Report {
		return []ingest.Report{{Source: "s", Measurements: slices.Repeat([]ingest.Measurement{m}, n)}}
	}
	long := strings.Repeat("x", 1<<20)
	for name, reports := range map[string]func(n int) []ingest.Report{
		"equal labels": func(n int) []ingest.Report { return one(namedLabels(n, func(int) string { return "b" })) },
		"ascending labels": func(n int) []ingest.Report {
			return one(namedLabels(n, func(i int) string { return fmt.Sprintf("l%07d", i) }))
		},
		"descending labels": func(n int) []ingest.Report {
			return one(namedLabels(n, func(i int) string { return fmt.Sprintf("l%07d", n-i) }))
		},
		"too old":     func(n int) []ingest.Report { return many(n, ingest.Measurement{Metric: "m", TimeMs: 1}) },
		"a long name": func(n int) []ingest.Report { return many(n, ingest.Measurement{Metric: long, TimeMs: ingest.NoTime}) },
		"a long label": func(n int) []ingest.Report {
			return many(n, ingest.Measurement{Metric: "m", Labels: []metric.Label{{Name: "a", Value: long}}, TimeMs: ingest.NoTime})
		},
		"a long source": func(n int) []ingest.Report {
			r := many(n, ingest.Measurement{Metric: "m", TimeMs: ingest.NoTime})
			r[0].Source = long
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			linear.Check(t, 2000, reports, func(reports []ingest.Report) {
				result, err := in.Append(t.Context(), reports)
				if err != nil || result.Accepted > 0 {
					t.Errorf("%d accepted: %v", result.Accepted, err)
				}
			})
		})
	}
}

// TestMessagesAreBounded: beyond a thousand rejections per reason, a rejection has no message of
// its own.
func TestMessagesAreBounded(t *testing.T) {
	in, _ := start(t, ingest.Options{}, registry.Options{})
	defer func() { require.NoError(t, in.Close()) }()
	r := ingest.Report{Source: "s", Measurements: slices.Repeat([]ingest.Measurement{{Metric: "m", TimeMs: 1}}, 2000)}
	r.Measurements = append(r.Measurements, ingest.Measurement{TimeMs: ingest.NoTime})
	result, err := in.Append(t.Context(), []ingest.Report{r})
	require.NoError(t, err)
	require.Len(t, result.Rejected, 2001)
	require.Contains(t, result.Rejected[999].Message, "time 1 ")
	require.Equal(t, "for the same reason as earlier ones", result.Rejected[1000].Message)
	require.Equal(t, "metric name is empty", result.Rejected[2000].Message, "of another reason it is the first")
}

// TestManyNewSeriesOfLongLabels: new series that share long labels are copied part by part, and
// still get ids that lie together.
func TestManyNewSeriesOfLongLabels(t *testing.T) {
	in, g := start(t, ingest.Options{}, registry.Options{MaxSeries: 5000})
	defer func() { require.NoError(t, in.Close()) }()
	labels := namedLabels(60, func(i int) string { return fmt.Sprintf("l%02d", i) })
	for i := range labels {
		labels[i].Value = strings.Repeat("x", 100)
	}
	var r ingest.Report
	r.Source = "s"
	for i := range 6000 { // some 9 KB each
		r.Measurements = append(r.Measurements, ingest.Measurement{Metric: fmt.Sprintf("m%d", i), Labels: labels, TimeMs: ingest.NoTime})
	}
	result, err := in.Append(t.Context(), []ingest.Report{r})
	require.NoError(t, err)
	require.Equal(t, 5000, result.Accepted)
	require.Len(t, result.Rejected, 1000)
	require.Equal(t, 5000, result.Rejected[0].Index)
	n := 0
	for s, err := range g.SourceSchedules(t.Context(), "s") {
		require.NoError(t, err)
		require.Less(t, int(s.ID), 2*4096, "ids come from two leases")
		n++
	}
	require.Equal(t, 5000, n)
}

// TestBatchBounds: a batch takes from the allowance before it allocates.
func TestBatchBounds(t *testing.T) {
	labels := namedLabels(100, func(i int) string { return fmt.Sprint(i) })
	fill := func(b *ingest.Batch) (n int) {
		for n = range 1 << 20 {
			if b.Series("m", labels); !b.Add(1, 1) {
				break
			}
		}
		return n
	}
	b := ingest.Batch{Allowance: ingest.Allowance{Max: 1 << 20}}
	require.Less(t, fill(&b), 1<<20/(100*32)+1)
	require.ErrorIs(t, b.Err(), ingest.ErrTooLarge)

	taken := int64(0)
	b = ingest.Batch{Allowance: ingest.Allowance{Take: func(n int64) bool {
		if taken+n > 1<<20 {
			return false
		}
		taken += n
		return true
	}}}
	n := fill(&b)
	require.Less(t, n, 1<<20/(100*32)+1)
	require.Greater(t, n, 200, "steps are small")
	require.ErrorIs(t, b.Err(), ingest.ErrNoRoom)
	before := taken
	b.Reset()
	require.Equal(t, n, fill(&b))
	require.Equal(t, before, taken, "what is taken is used again")

	b = ingest.Batch{MaxText: 1 << 20}
	fill(&b)
	require.ErrorIs(t, b.Err(), ingest.ErrTooLarge)
	b = ingest.Batch{MaxText: 1 << 10}
	b.Series("m", labels)
	for range 1000 {
		require.True(t, b.Add(1, 1), "a series is read once, however many samples it has")
	}

	gone := errors.New("gone")
	b = ingest.Batch{Allowance: ingest.Allowance{Gone: func() error { return gone }}}
	require.Less(t, fill(&b), 2<<10)
	require.ErrorIs(t, b.Err(), gone)
}

// TestRefusedSourcesAreNotLookedUp: a source of which nothing can be taken is neither looked for in the store nor kept.
func TestRefusedSourcesAreNotLookedUp(t *testing.T) {
	in, g := start(t, ingest.Options{}, registry.Options{})
	defer func() { require.NoError(t, in.Close()) }()
	g.Forget()
	for _, m := range []ingest.Measurement{
		{Metric: "m", TimeMs: -1},
		{Metric: "m", TimeMs: 1},
		{TimeMs: ingest.NoTime},
		{Metric: strings.Repeat("x", 1<<16), TimeMs: ingest.NoTime},
		{Metric: "m", Labels: namedLabels(1000, func(i int) string { return fmt.Sprint("l", i) }), TimeMs: ingest.NoTime},
	} {
		result, err := in.Append(t.Context(), []ingest.Report{{Source: "made up", Measurements: []ingest.Measurement{m, m}}})
		require.NoError(t, err)
		require.Zero(t, result.Accepted)
		require.Len(t, result.Rejected, 2)
	}
	require.Zero(t, g.Count("SourceSchedules"))
	result, err := in.Append(t.Context(), []ingest.Report{{Source: "real", Measurements: []ingest.Measurement{
		{Metric: "m", TimeMs: 1}, {Metric: "m", TimeMs: ingest.NoTime}, {Metric: "n", TimeMs: ingest.NoTime},
	}}})
	require.NoError(t, err)
	require.Equal(t, 2, result.Accepted)
	require.Equal(t, 1, g.Count("SourceSchedules"))
}
