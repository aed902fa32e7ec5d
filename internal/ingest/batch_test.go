package ingest_test

import (
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

func labels(pairs ...string) []metric.Label {
	var out []metric.Label
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, metric.Label{Name: pairs[i], Value: pairs[i+1]})
	}
	return out
}

// TestBatchSources: the first of the Sources labels that a series has names its source. The label
// `source` takes precedence, and moves to the report.
func TestBatchSources(t *testing.T) {
	b := ingest.Batch{Sources: metric.SourceLabels{"instance", "host"}}
	for range 2 { // the second round shows what Reset leaves behind
		b.Reset()
		scratch := labels("host", "h", "instance", "i")
		b.Series("a", scratch)
		b.Add(1, 1)
		b.Add(2, 2)
		scratch[0].Value = "changed"
		b.Series("b", labels("instance", "i"))
		b.Add(3, 3)
		b.Series("c", labels("host", "h", "instance", ""))
		b.Add(4, 4)
		b.Series("d", labels("core", "0", "source", "web-1", "instance", "i"))
		b.Add(5, 5)
		b.Series("e", nil)
		b.Series("f", labels("source", ""))
		b.Add(6, 6)
		a := labels("host", "h", "instance", "i")
		require.Equal(t, []ingest.Report{
			{Source: "i", Derived: true, Measurements: []ingest.Measurement{
				{Metric: "a", Labels: a, TimeMs: 1, Value: 1},
				{Metric: "a", Labels: a, TimeMs: 2, Value: 2},
				{Metric: "b", Labels: labels("instance", "i"), TimeMs: 3, Value: 3},
			}},
			{Source: "h", Derived: true, Measurements: []ingest.Measurement{
				{Metric: "c", Labels: labels("host", "h", "instance", ""), TimeMs: 4, Value: 4},
			}},
			{Source: "web-1", Measurements: []ingest.Measurement{
				{Metric: "d", Labels: labels("core", "0", "instance", "i"), TimeMs: 5, Value: 5},
			}},
			{Source: "", Derived: true, Measurements: []ingest.Measurement{
				{Metric: "f", Labels: labels("source", ""), TimeMs: 6, Value: 6},
			}},
		}, b.Reports())
		require.Equal(t, 6, b.Len())
	}
}

// TestBatchMetrics: series that differ only in the name share their labels, and each is still
// stored as itself. This holds if labels sort before the name, and if the next request lies in the
// same memory.
func TestBatchMetrics(t *testing.T) {
	in, g := start(t, ingest.Options{Window: time.Millisecond}, registry.Options{})
	var b ingest.Batch
	for _, host := range []string{"a", "b"} {
		b.Reset()
		for _, ls := range [][]metric.Label{labels("zone", "z", "host", host, "none", "", "Env", "e"), nil, labels("source", host, "Env", "e")} {
			b.Series("m1", ls)
			b.Add(ingest.NoTime, 1)
			b.Metric("m2")
			b.Add(ingest.NoTime, 2)
		}
		res, err := in.Append(t.Context(), b.Reports())
		require.NoError(t, err)
		require.Equal(t, ingest.Result{Accepted: 6}, res)
	}
	require.NoError(t, in.Close())
	require.ElementsMatch(t, []string{
		`m1{Env="e",host="a",zone="z"}`, `m2{Env="e",host="a",zone="z"}`, `m1{}`, `m2{}`, `m1{Env="e",source="a"}`, `m2{Env="e",source="a"}`,
		`m1{Env="e",host="b",zone="z"}`, `m2{Env="e",host="b",zone="z"}`, `m1{Env="e",source="b"}`, `m2{Env="e",source="b"}`,
	}, stored(t, g))
	reg := registry.New(g, registry.Options{})
	src, err := reg.Source(t.Context(), "", true)
	require.NoError(t, err)
	_, found := src.Lookup(metric.Labels(labels("Env", "e", "__name__", "m2", "host", "b", "zone", "z")).AppendKey(nil))
	require.True(t, found)
}

// stored returns the series that the store has.
func stored(t *testing.T, g *storagetest.Faulty) []string {
	t.Helper()
	var out []string
	ids, err := g.LeasedIDs(t.Context())
	require.NoError(t, err)
	for s, err := range g.Schedules(t.Context(), ids) {
		require.NoError(t, err)
		out = append(out, s.Labels.String())
	}
	return out
}

// TestBatchCopy: text that Copy returned stays unchanged while more is added.
func TestBatchCopy(t *testing.T) {
	var b ingest.Batch
	for range 2 {
		b.Reset()
		var got []string
		scratch := make([]byte, 700)
		for i := range 10 {
			for j := range scratch {
				scratch[j] = byte('a' + i)
			}
			got = append(got, b.Copy(scratch[:70*i]))
		}
		for i, s := range got {
			require.Equal(t, strings.Repeat(string(rune('a'+i)), 70*i), s)
		}
	}
}

// TestBatchResult: rejections have the indexes of the body, whoever rejected.
func TestBatchResult(t *testing.T) {
	var b ingest.Batch
	b.Series("a", nil)
	b.Add(1, 1) // 0
	b.Reject(ingest.ReasonUnsupported, "no %s", "histograms")
	b.Add(2, 2) // 2, the second that is appended
	b.Reject(ingest.ReasonInvalidValue, "no number")
	b.Add(3, 3)
	got := b.Result(ingest.Result{Accepted: 2, Rejected: []ingest.Rejection{{Index: 1, Reason: ingest.ReasonTooOld, Message: "old"}}})
	require.Equal(t, ingest.Result{Accepted: 2, Rejected: []ingest.Rejection{
		{Index: 1, Reason: ingest.ReasonUnsupported, Message: "no histograms"},
		{Index: 2, Reason: ingest.ReasonTooOld, Message: "old"},
		{Index: 3, Reason: ingest.ReasonInvalidValue, Message: "no number"},
	}}, got)
	require.Equal(t, 5, b.Len())
	require.Equal(t, 2, b.Rejected())
}

// TestBatchParts: a measurement with several samples counts as one, and is rejected once. A sample
// of no measurement does not count.
func TestBatchParts(t *testing.T) {
	var b ingest.Batch
	for range 2 {
		b.Reset()
		b.Series("a", nil)
		b.Add(1, 1)
		b.Series("h_count", nil)
		b.Add(2, 2)
		b.Metric("h_sum")
		b.AddTo(b.Len()-1, 2, 3)
		b.Metric("b")
		b.Add(4, 4)
		b.Metric("info")
		b.AddTo(ingest.NoMeasurement, 5, 1)
		require.Equal(t, 3, b.Len())
		require.Equal(t, ingest.Result{Accepted: 3}, b.Result(ingest.Result{Accepted: 5}))
		old := func(index int) ingest.Rejection {
			return ingest.Rejection{Index: index, Reason: ingest.ReasonTooOld, Message: "old"}
		}
		require.Equal(t, ingest.Result{Accepted: 1, Rejected: []ingest.Rejection{old(ingest.NoMeasurement), old(1), old(2)}},
			b.Result(ingest.Result{Accepted: 1, Rejected: []ingest.Rejection{old(1), old(2), old(3), old(4)}}))
	}
}

// TestBatchFullOfSamples: samples fill a batch as measurements do.
func TestBatchFullOfSamples(t *testing.T) {
	b := ingest.Batch{Max: 2}
	b.Series("h", nil)
	require.True(t, b.Add(1, 1))
	require.True(t, b.AddTo(0, 1, 1))
	require.False(t, b.AddTo(0, 1, 1))
	require.True(t, b.TooMany())
	require.ErrorIs(t, b.Err(), ingest.ErrTooMany)
}

// TestBatchFull: a full batch accepts nothing more, and says so.
func TestBatchFull(t *testing.T) {
	b := ingest.Batch{Max: 2}
	b.Series("a", nil)
	require.True(t, b.Add(1, 1))
	require.True(t, b.Reject(ingest.ReasonInvalidValue, "bad"))
	require.False(t, b.TooMany())
	require.False(t, b.Add(2, 2))
	require.True(t, b.TooMany())
	require.False(t, b.Reject(ingest.ReasonInvalidValue, "bad"))
	require.Equal(t, 2, b.Len())
	b.Reset()
	require.False(t, b.TooMany())
}

// TestDerivedSource: a series of a derived source is stored with its own labels only. A report of a
// source with the same name has other series. A series with a source label belongs to that source.
func TestDerivedSource(t *testing.T) {
	in, g := start(t, ingest.Options{Window: time.Millisecond}, registry.Options{})
	b := ingest.Batch{Sources: metric.SourceLabels{"instance"}}
	b.Series("m", labels("instance", "web-1"))
	b.Add(ingest.NoTime, 1)
	b.Series("m", labels("instance", "web-1", "source", "x"))
	b.Add(ingest.NoTime, 2)
	b.Series("m", labels("instance", "web-1", "source", "web-1"))
	b.Add(ingest.NoTime, 3)
	b.Series("m", nil)
	b.Add(ingest.NoTime, 4)
	for range 2 {
		res, err := in.Append(t.Context(), b.Reports())
		require.NoError(t, err)
		require.Equal(t, ingest.Result{Accepted: 4}, res)
	}
	res, err := in.Append(t.Context(), []ingest.Report{{Source: "web-1", Measurements: []ingest.Measurement{
		{Metric: "m", Labels: labels("instance", "web-1"), TimeMs: ingest.NoTime, Value: 3},
	}}})
	require.NoError(t, err)
	require.Equal(t, 1, res.Accepted)
	require.NoError(t, in.Close())

	require.ElementsMatch(t, []string{
		`m{instance="web-1"}`, `m{instance="web-1",source="x"}`, `m{instance="web-1",source="web-1"}`, `m{}`,
	}, stored(t, g))

	// Another process finds the series again.
	reg := registry.New(g, registry.Options{})
	for name, want := range map[string]int{"web-1": 1, "": 1} {
		src, err := reg.Source(t.Context(), name, true)
		require.NoError(t, err)
		require.Equal(t, want, src.Len(), "%q", name)
		key := metric.Labels(labels("__name__", "m", "instance", name))
		if name == "" {
			key = key[:1]
		}
		_, found := src.Lookup(key.AppendKey(nil))
		require.True(t, found)
	}
}

// A sample without a time is rejected too when the server's clock is behind what has been removed: a
// row would be computed from it alone.
func TestOwnTimeBeforeWhatIsKept(t *testing.T) {
	clk := clock.NewSimulated(time.Date(2025, 11, 16, 12, 30, 0, 0, time.UTC))
	g := newStore(clk)
	require.NoError(t, g.SetPolicy(t.Context(), storage.Policy{Retention: storage.Retention{48 * time.Hour}}))
	in := ingest.Start(t.Context(), parts(g, clk, registry.Options{}), ingest.Options{})
	send := func() ingest.Result {
		t.Helper()
		res, err := in.Append(t.Context(), report(1))
		require.NoError(t, err)
		return res
	}
	require.Equal(t, 1, send().Accepted)
	clk.Set(clk.Now().Add(5 * 24 * time.Hour))
	require.NoError(t, g.Expire(t.Context()))
	require.Equal(t, 1, send().Accepted)
	clk.Jump(-4 * 24 * time.Hour)
	res := send()
	require.Zero(t, res.Accepted)
	require.Equal(t, ingest.ReasonTooOld, res.Rejected[0].Reason)
	require.Contains(t, res.Rejected[0].Message, "the server's own time")
	require.NoError(t, in.Close())
	require.Len(t, storedSamples(t, g), 1)
}

// TestBackFill: samples beyond the age cap are accepted as long as raw samples are kept.
func TestBackFill(t *testing.T) {
	in, g := start(t, ingest.Options{Window: time.Millisecond, AgeCap: time.Hour}, registry.Options{})
	require.NoError(t, g.SetPolicy(t.Context(), storage.Policy{Retention: storage.Retention{48 * time.Hour}}))
	at := func(age time.Duration) ingest.Measurement {
		return ingest.Measurement{Metric: "m", TimeMs: time.Now().Add(-age).UnixMilli(), Value: 1}
	}
	reports := []ingest.Report{{Source: "s", Measurements: []ingest.Measurement{at(time.Minute), at(2 * time.Hour), at(50 * time.Hour)}}}
	res, err := in.BackFill(t.Context(), reports)
	require.NoError(t, err)
	require.Equal(t, 2, res.Accepted)
	require.Contains(t, res.Rejected[0].Message, "the start of the raw samples that are kept")
	res, err = in.Append(t.Context(), reports)
	require.NoError(t, err)
	require.Equal(t, 1, res.Accepted)
	require.NoError(t, in.Close())
}
