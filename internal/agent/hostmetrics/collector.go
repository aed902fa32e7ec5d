// Package hostmetrics reads this host's metrics: processors, memory, file systems, disks, network,
// load. Names follow Prometheus' conventions: base units, the unit in the name, _total for
// counters. docs/agent.md lists them.
package hostmetrics

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/shirou/gopsutil/v4/disk"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

// Collector reads the host's metrics. It is for one goroutine at a time.
type Collector struct {
	sources []source

	// usage is statfs, behind a field because it always asks the real host.
	usage func(ctx context.Context, path string) (*disk.UsageStat, error)

	// The processor times at the last call, for the ratio since then; zero before the first.
	lastBusy, lastTotal, lastRatio float64
}

// source is one set of metrics that can be read, and fail, by itself. Names are those of node_exporter's collectors, where it has one.
type source struct {
	name string
	read func(ctx context.Context, add adder) error
}

// adder receives one measured value.
type adder func(name string, value float64, labels ...metric.Label)

// New returns a collector of the sources with the given names, or of all if there is none. It reads nothing yet.
func New(names ...string) (*Collector, error) {
	c := &Collector{usage: disk.UsageWithContext}
	c.sources = []source{
		{"cpu", c.readCPU},
		{"meminfo", readMemory},
		{"swap", readSwap},
		{"filesystem", c.readFilesystems},
		{"diskstats", readDisks},
		{"netdev", readNetwork},
		{"loadavg", readLoad},
		{"uptime", readUptime},
		{"processes", readProcesses},
	}
	var known []string
	for _, s := range c.sources {
		known = append(known, s.name)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("%q is none of %s", name, strings.Join(known, ", "))
		}
	}
	c.sources = slices.DeleteFunc(c.sources, func(s source) bool { return len(names) > 0 && !slices.Contains(names, s.name) })
	return c, nil
}

// Collect measures everything once, without the time and the source. Series and their order stay the same from call to call, as long
// as the host has the same file systems and devices.
//
// A failing source does not affect the others: Collect returns what it could read, along with an
// error that names each failure. Metrics that the operating system does not offer at all are no
// failure.
//
// host_cpu_usage_ratio is the mean since the previous call. In the first call it is the mean since
// the host started.
func (c *Collector) Collect(ctx context.Context) ([]ingest.Measurement, error) {
	var out []ingest.Measurement
	add := func(name string, value float64, labels ...metric.Label) {
		// No real measurement is infinite or NaN. If a driver says so, it is wrong.
		if !math.IsNaN(value) && !math.IsInf(value, 0) {
			out = append(out, ingest.Measurement{Metric: name, Labels: labels, Value: value})
		}
	}
	var errs []error
	for _, s := range c.sources {
		if err := context.Cause(ctx); err != nil {
			return out, errors.Join(append(errs, err)...)
		}
		if err := s.read(ctx, add); err != nil && !notImplemented(err) {
			errs = append(errs, fmt.Errorf("%s: %w", s.name, err))
		}
	}
	return out, errors.Join(errs...)
}

// notImplemented recognises gopsutil's error for what a platform does not have. Its error value is
// in an internal package, so only the text is left.
func notImplemented(err error) bool {
	return err.Error() == "not implemented yet"
}
