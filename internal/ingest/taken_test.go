package ingest_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// TestTaken: a source counts the samples that were accepted, with what they are in bytes. Those of series that are
// refused do not count, also where the new series of a report are registered in several steps, and neither do those of a
// commit that fails.
func TestTaken(t *testing.T) {
	clk := clock.NewSimulated(time.Date(2025, 11, 21, 12, 0, 0, 0, time.UTC))
	st := newStore(clk)
	p := parts(st, clk, registry.Options{MaxSeriesPerSource: 30, Clock: clk})
	in := ingest.Start(t.Context(), p, ingest.Options{})
	defer func() { require.NoError(t, in.Close()) }()
	long := func(n int) []metric.Label {
		var out []metric.Label
		for i := range 60 {
			out = append(out, metric.Label{Name: fmt.Sprintf("l%02d", i), Value: strings.Repeat(string(rune('a'+n%26)), 4000)})
		}
		return out
	}
	size := 0
	var reports []ingest.Report
	for n := range 50 { // a quarter of a megabyte of labels each
		m := ingest.Measurement{Metric: fmt.Sprintf("m%02d", n), Labels: long(n), TimeMs: ingest.NoTime}
		if n == 0 {
			size = 16 + len(metric.Labels(append(long(n), metric.Label{Name: metric.NameLabel, Value: m.Metric})).AppendKey(nil))
			reports = append(reports, ingest.Report{Source: "web-1"})
		}
		reports[0].Measurements = append(reports[0].Measurements, m)
	}
	reports = append(reports, ingest.Report{Source: "web-2", Measurements: []ingest.Measurement{{Metric: "cpu", TimeMs: ingest.NoTime}}})
	want := map[string]registry.Taken{
		"web-1": {Name: "web-1", Series: 30, Samples: 30, Bytes: int64(30 * size), LastMs: clk.Now().UnixMilli()},
		"web-2": {Name: "web-2", Series: 1, Samples: 1, Bytes: int64(16 + len(metric.Labels{{Name: metric.NameLabel, Value: "cpu"}}.AppendKey(nil))), LastMs: clk.Now().UnixMilli()},
	}
	check := func() {
		t.Helper()
		got := map[string]registry.Taken{}
		require.Zero(t, p.Registry.Sources(func(s registry.Taken) bool {
			got[s.Name] = s
			return true
		}))
		require.Equal(t, want, got)
	}
	res, err := in.Append(t.Context(), reports)
	require.NoError(t, err)
	require.Equal(t, 31, res.Accepted)
	check()

	st.Add(storagetest.Rule{Op: "Write", Times: 1, Before: func() error { return storage.ErrUnavailable }})
	clk.Set(clk.Now().Add(time.Second))
	_, err = in.Append(t.Context(), reports[1:])
	require.ErrorIs(t, err, storage.ErrUnavailable)
	check()
}
