package adaptor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quern/quern/internal/agent/hostmetrics"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

// collector measures; hostmetrics.Collector implements it. Along with an error it may return what
// it could measure.
type collector interface {
	Collect(ctx context.Context) ([]ingest.Measurement, error)
}

// Host measures the host at a fixed interval.
type Host struct {
	// Source is the name of the host. The default is the agent's.
	Source string `yaml:"source"`
	// Interval is the time between two measurements, which are aligned to it in UTC.
	Interval span `yaml:"interval"`
	// Collectors are those that run, by name. The default are all.
	Collectors []string `yaml:"collectors"`

	collector collector
}

// hostStream is the stream of what the host is. It counts samples.
const hostStream = "host"

// NewHost returns a Host that has all collectors. The interval is whole milliseconds, at least 1ms.
func NewHost(interval time.Duration) *Host {
	all, _ := hostmetrics.New() // it fails only for a name that it does not know
	return &Host{Interval: span(interval), collector: all}
}

func (h *Host) check() (err error) {
	if h.Interval < span(time.Millisecond) || time.Duration(h.Interval)%time.Millisecond != 0 {
		return errors.New("interval: must be whole milliseconds, at least 1ms")
	}
	if h.collector, err = hostmetrics.New(h.Collectors...); err != nil {
		return fmt.Errorf("collectors: %w", err)
	}
	return nil
}

// String implements Adaptor.
func (h *Host) String() string { return hostStream }

// Run implements Adaptor. It measures at once, so that a new host is visible without delay, and then at each multiple of the interval.
func (h *Host) Run(ctx context.Context, out *Output) {
	everyTick(ctx, out.Clock, time.Duration(h.Interval), func(tickMs int64) { h.collect(ctx, out, tickMs) })
}

// everyTick calls f at once, and then at each multiple of an interval in UTC, until ctx ends.
func everyTick(ctx context.Context, c clock.Clock, interval time.Duration, f func(tickMs int64)) {
	intervalMs := interval.Milliseconds()
	lastMs := clock.NowMs(c)
	f(lastMs)
	for {
		nowMs := clock.NowMs(c)
		nextMs := metric.AlignDown(nowMs, intervalMs) + intervalMs
		if c.Sleep(ctx, time.Duration(nextMs-nowMs)*time.Millisecond) != nil {
			return
		}
		// A measurement that is a little late belongs to its tick: even times make small chunks.
		// Long after, for example when the machine slept, it belongs to the last tick.
		tickMs := metric.AlignDown(clock.NowMs(c), intervalMs)
		if tickMs <= lastMs && lastMs-tickMs < intervalMs {
			continue // woken early, or the clock was set back a little: one value per tick
		}
		lastMs = tickMs
		f(tickMs)
	}
}

// collect measures once.
func (h *Host) collect(ctx context.Context, out *Output, tMs int64) {
	measured, err := h.collector.Collect(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		out.Warn("some host metrics cannot be read", hostStream, "err", err)
	}
	if len(measured) == 0 {
		return
	}
	for i := range measured {
		measured[i].TimeMs = tMs
	}
	at := out.Spool.Stream(hostStream)
	at.Seq += uint64(len(measured))
	out.put(out.chunk(hostStream, at, out.source, []ingest.Report{{Source: h.Source, Measurements: measured}}))
}
