package hostmetrics

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/shirou/gopsutil/v4/disk"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

// TestThisHost measures the machine that runs the test. On any machine the series are unique, the
// values finite, and a second call returns the same series.
func TestThisHost(t *testing.T) {
	c, err := New()
	require.NoError(t, err)
	series := func() []string {
		ms, err := c.Collect(t.Context())
		if err != nil {
			t.Log("not readable here:", err)
		}
		require.NotEmpty(t, ms)
		var names []string
		for _, m := range ms {
			labels, err := metric.NewLabels(append(m.Labels, metric.Label{Name: metric.NameLabel, Value: m.Metric})...)
			require.NoError(t, err)
			names = append(names, labels.String())
			require.False(t, math.IsNaN(m.Value) || math.IsInf(m.Value, 0), "%s is %v", labels, m.Value)
		}
		return names
	}
	first := series()
	seen := make(map[string]bool)
	for _, s := range first {
		require.False(t, seen[s], "%s is there twice", s)
		seen[s] = true
	}
	require.Equal(t, first, series())
}

// TestNamedSources: only these are read.
func TestNamedSources(t *testing.T) {
	c, err := New("uptime", "loadavg")
	require.NoError(t, err)
	require.Len(t, c.sources, 2)
	require.Equal(t, "loadavg uptime", c.sources[0].name+" "+c.sources[1].name)
}

func TestAFailingSourceSpoilsNoOther(t *testing.T) {
	c, err := New()
	require.NoError(t, err)
	broken := errors.New("broken")
	c.sources = []source{
		{"half", func(_ context.Context, add adder) error { add("a", 1); return broken }},
		{"absent", func(context.Context, adder) error { return errors.New("not implemented yet") }},
		{"mad", func(_ context.Context, add adder) error {
			add("nan", math.NaN())
			add("inf", math.Inf(-1))
			return nil
		}},
		{"whole", func(_ context.Context, add adder) error { add("b", 2); return nil }},
	}
	ms, err := c.Collect(t.Context())
	require.ErrorIs(t, err, broken)
	require.EqualError(t, err, "half: broken")
	require.Equal(t, []ingest.Measurement{{Metric: "a", Value: 1}, {Metric: "b", Value: 2}}, ms)
}

func TestCollectEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c, err := New()
	require.NoError(t, err)
	c.sources = []source{
		{"first", func(_ context.Context, add adder) error { add("a", 1); cancel(); return nil }},
		{"second", func(context.Context, adder) error { t.Error("read after the end"); return nil }},
	}
	ms, err := c.Collect(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, ms, 1)
}

func TestRealMounts(t *testing.T) {
	for _, c := range []struct {
		name string
		in   []disk.PartitionStat
		want []string
	}{
		{"nothing listed, as in a container", nil, []string{"/"}},
		{
			"bound to several places", []disk.PartitionStat{
				{Device: "/dev/sda1", Mountpoint: "/etc/hosts", Fstype: "ext4"},
				{Device: "/dev/sda1", Mountpoint: "/data", Fstype: "ext4"},
			}, []string{"/", "/data"},
		},
		{
			"drive letters have no root", []disk.PartitionStat{
				{Device: "D:", Mountpoint: "D:", Fstype: "NTFS"},
				{Device: "C:", Mountpoint: "C:", Fstype: "NTFS"},
			}, []string{"C:", "D:"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, realMounts(c.in))
		})
	}
}
