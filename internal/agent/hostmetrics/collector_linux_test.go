package hostmetrics

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/shirou/gopsutil/v4/common"
	"github.com/shirou/gopsutil/v4/disk"
	"github.com/stretchr/testify/require"
)

var rewrite = flag.Bool("rewrite", false, "rewrite testdata from what the code does now")

// onRecordedHost returns a collector on the host of testdata/proc.
func onRecordedHost(t *testing.T) (*Collector, context.Context) {
	proc, err := filepath.Abs("testdata/proc")
	require.NoError(t, err)
	c, err := New()
	require.NoError(t, err)
	c.usage = func(_ context.Context, path string) (*disk.UsageStat, error) {
		if path == "/broken" {
			return nil, errors.New("input/output error")
		}
		return &disk.UsageStat{Total: 1000, Used: 600, Free: 350, InodesTotal: 100, InodesUsed: 7}, nil
	}
	return c, context.WithValue(t.Context(), common.EnvKey, common.EnvMap{
		common.HostProcEnvKey: proc,
		// This hides serial numbers and labels of this machine's disks.
		common.HostSysEnvKey: t.TempDir(),
		common.HostRunEnvKey: t.TempDir(),
		common.HostDevEnvKey: t.TempDir(),
	})
}

// fromKernel are metrics that come from system calls, which no recorded /proc can replace.
var fromKernel = []string{"host_uptime_seconds", "host_swap_total_bytes", "host_swap_used_bytes"}

// TestRecordedHost compares everything else that a recorded host gives. Its one broken file system
// affects nothing else.
func TestRecordedHost(t *testing.T) {
	c, ctx := onRecordedHost(t)
	ms, err := c.Collect(ctx)
	require.EqualError(t, err, "filesystem: /broken: input/output error")

	var got bytes.Buffer
	for _, m := range ms {
		if slices.Contains(fromKernel, m.Metric) {
			continue
		}
		got.WriteString(m.Metric)
		for _, l := range m.Labels {
			fmt.Fprintf(&got, " %s=%s", l.Name, l.Value)
		}
		fmt.Fprintf(&got, " %v\n", m.Value)
	}
	const golden = "testdata/recorded.golden"
	if *rewrite {
		require.NoError(t, os.WriteFile(golden, got.Bytes(), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), got.String())
}

func TestCPURatioIsOverTheTimeBetweenCalls(t *testing.T) {
	c, ctx := onRecordedHost(t)
	ratio := func() float64 {
		ms, err := c.Collect(ctx)
		require.ErrorContains(t, err, "/broken")
		for _, m := range ms {
			if m.Metric == "host_cpu_usage_ratio" {
				return m.Value
			}
		}
		t.Fatal("no ratio")
		return 0
	}
	// 15.6 of 99.6 seconds since the start: guests are within user.
	require.InDelta(t, 15.6/99.6, ratio(), 1e-9)
	// No time has passed: the last ratio holds, instead of 0/0.
	require.InDelta(t, 15.6/99.6, ratio(), 1e-9)
	// As if the previous call was 10 s ago, with 4 busy seconds since.
	c.lastTotal, c.lastBusy = 99.6-10, 15.6-4
	require.InDelta(t, 0.4, ratio(), 1e-9)
	// Busy time fell, since the kernel took some back: the ratio is never below 0.
	c.lastTotal, c.lastBusy = 99.6-10, 15.6+1
	require.Zero(t, ratio())
}
