package remotewrite

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

// decoded returns the results of a message as lines: samples, rejections, metadata, error.
func decoded(t *testing.T, version int, body []byte, limit int) string {
	t.Helper()
	b := ingest.Batch{Max: limit}
	var sb strings.Builder
	d := decoder{Note: func(m metric.Metadata) { fmt.Fprintf(&sb, "%s is a %s of %q: %s\n", m.Name, m.Type, m.Unit, m.Help) }}
	decode := d.v1
	if version == 2 {
		decode = d.v2
	}
	err := decode(body, &b)
	for _, r := range b.Reports() {
		require.True(t, r.Derived, "no source label among the series")
		for _, m := range r.Measurements {
			fmt.Fprintf(&sb, "%s%s %d %v\n", m.Metric, metric.Labels(m.Labels), m.TimeMs, m.Value)
		}
	}
	for _, r := range b.Result(ingest.Result{}).Rejected {
		fmt.Fprintf(&sb, "%d: %s: %s\n", r.Index, r.Reason, r.Message)
	}
	if b.TooMany() {
		sb.WriteString("too many\n")
	}
	if err != nil {
		fmt.Fprintf(&sb, "error: %s\n", err)
	}
	return sb.String()
}

// fields concatenates encoded fields. The functions below encode one field each, by hand.
func fields(parts ...[]byte) []byte { return slices.Concat(parts...) }

func msg(field protowire.Number, parts ...[]byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), fields(parts...))
}

func str(field protowire.Number, s string) []byte { return msg(field, []byte(s)) }

func num(field protowire.Number, x uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, field, protowire.VarintType), x)
}

func double(field protowire.Number, x float64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(nil, field, protowire.Fixed64Type), math.Float64bits(x))
}

func lbl(n, v string) []byte { return msg(series1Labels, str(labelName, n), str(labelValue, v)) }

func smp(field protowire.Number, timeMs int64, value float64) []byte {
	return msg(field, double(sampleValue, value), num(sampleTimestamp, uint64(timeMs)))
}

// group encodes a field of the obsolete group type with nested fields.
func group(field protowire.Number) []byte {
	return fields(protowire.AppendTag(nil, field, protowire.StartGroupType), num(1, 1), str(2, "x"),
		protowire.AppendTag(nil, field, protowire.EndGroupType))
}

var up = fields(lbl("__name__", "up"), lbl("job", "j"))

func TestV1(t *testing.T) {
	good := msg(request1Timeseries, up, smp(series1Samples, 1, 1))
	for _, c := range []struct {
		name string
		body []byte
		max  int
		want string
	}{
		{"nothing", nil, 0, ""},
		{"one", good, 0, "up{job=\"j\"} 1 1\n"},
		{"several samples of a series", msg(1, up, smp(2, 1, 1), smp(2, 2, -2.5)), 0, "up{job=\"j\"} 1 1\nup{job=\"j\"} 2 -2.5\n"},
		{"samples before labels", msg(1, smp(2, 1, 1), lbl("job", "j"), smp(2, 2, 2), lbl("__name__", "up")), 0, "up{job=\"j\"} 1 1\nup{job=\"j\"} 2 2\n"},
		{"labels in no order", msg(1, lbl("z", "1"), lbl("__name__", "up"), lbl("a", "2"), smp(2, 1, 1)), 0, "up{z=\"1\",a=\"2\"} 1 1\n"},
		{"value before name, time before value", msg(1, msg(1, str(2, "up"), str(1, "__name__")), msg(2, num(2, 7), double(1, 3))), 0, "up{} 7 3\n"},
		{"the last of a field given twice counts", msg(1, msg(1, str(1, "x"), str(2, "x"), str(1, "__name__"), str(2, "up")), msg(2, num(2, 7), num(2, 8))), 0, "up{} 8 0\n"},
		{"no name", msg(1, lbl("job", "j"), smp(2, 1, 1)), 0, "{job=\"j\"} 1 1\n"},
		{"two names", msg(1, up, lbl("__name__", "down"), smp(2, 1, 1)), 0, "updown{job=\"j\"} 1 1\n"},
		{"no labels", msg(1, smp(2, 1, 1)), 0, "{} 1 1\n"},
		{"an empty label is none", msg(1, up, lbl("empty", ""), msg(1), smp(2, 1, 1)), 0, "up{job=\"j\"} 1 1\n"},
		{"a label twice", msg(1, up, lbl("job", "k"), smp(2, 1, 1)), 0, "up{job=\"j\",job=\"k\"} 1 1\n"},
		{"no samples", msg(1, up), 0, ""},
		{"an empty sample", msg(1, up, msg(2)), 0, "up{job=\"j\"} 0 0\n"},
		{"a negative time", msg(1, up, smp(2, -5, 1)), 0, "up{job=\"j\"} -5 1\n"},
		{
			"a time that stands for none", msg(1, up, smp(2, math.MinInt64, 1), smp(2, 1, 1)), 0,
			"up{job=\"j\"} 1 1\n0: invalid_time: time -9223372036854775808: must be Unix milliseconds, 0 or later\n",
		},
		{
			"fields of tomorrow", fields(num(2, 5), str(99, "x"), good, double(100, 1), group(101), msg(1, num(70000, 1), up, group(9), smp(2, 1, 2), str(9, "y"))), 0,
			"up{job=\"j\"} 1 1\nup{job=\"j\"} 1 2\n",
		},
		{"exemplars are passed over", msg(1, up, smp(2, 1, 1), msg(3, lbl("trace_id", "x"), double(2, 1))), 0, "up{job=\"j\"} 1 1\n"},
		{
			"histograms are rejected", fields(msg(1, up, msg(4, num(1, 1)), smp(2, 1, 1), msg(4)), good), 0,
			"up{job=\"j\"} 1 1\nup{job=\"j\"} 1 1\n0: unsupported: native histograms are not stored\n2: unsupported: native histograms are not stored\n",
		},
		{
			"metadata", fields(msg(3, num(1, 1), str(2, "http_requests_total"), str(4, "All."), str(5, "requests")), good, msg(3, str(2, "up"), num(1, 77)), msg(3, str(4, "of what?"))), 0,
			"http_requests_total is a counter of \"requests\": All.\nup is a unknown of \"\": \nup{job=\"j\"} 1 1\n",
		},
		{"too many", fields(good, good, good), 2, "up{job=\"j\"} 1 1\nup{job=\"j\"} 1 1\ntoo many\n"},
		{"as many as may be", fields(good, good), 2, "up{job=\"j\"} 1 1\nup{job=\"j\"} 1 1\n"},

		{
			"cut within the second series", fields(good, good)[:len(good)+9], 0,
			"up{job=\"j\"} 1 1\nerror: after 1 timeseries, at byte 41: the message ends early\n",
		},
		{"cut within a tag", fields(good, []byte{0x80}), 0, "up{job=\"j\"} 1 1\nerror: after 1 timeseries, at byte 41: the message ends early\n"},
		{
			"a label that claims too much", fields(good, msg(1, []byte{series1Labels<<3 | 2, 50, 1})), 0,
			"up{job=\"j\"} 1 1\nerror: timeseries 1, at byte 41: the message ends early\n",
		},
		{
			"a length of 2^64-1", fields(good, []byte{1<<3 | 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}), 0,
			"up{job=\"j\"} 1 1\nerror: after 1 timeseries, at byte 41: the message ends early\n",
		},
		{
			"a varint of 11 bytes", msg(1, up, msg(2, []byte{2 << 3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})), 0,
			"error: timeseries 0, at byte 0: a varint has more than 64 bits\n",
		},
		{"a double of 7 bytes", msg(1, up, msg(2, []byte{1<<3 | 1, 0, 0, 0, 0, 0, 0, 0})), 0, "error: timeseries 0, at byte 0: the message ends early\n"},
		{"a value that is a varint", msg(1, up, msg(2, num(1, 1))), 0, "error: timeseries 0, at byte 0: field 1 has wire type 0, must be 1\n"},
		{"a time that is a double", msg(1, up, msg(2, double(2, 1))), 0, "error: timeseries 0, at byte 0: field 2 has wire type 1, must be 0\n"},
		{
			"a series that is a number", fields(good, num(1, 1), good), 0,
			"up{job=\"j\"} 1 1\nerror: after 1 timeseries, at byte 41: field 1 has wire type 0, must be 2\n",
		},
		{"field 0", fields(good, []byte{0, 1}), 0, "up{job=\"j\"} 1 1\nerror: after 1 timeseries, at byte 41: a field number is invalid\n"},
		{"a group that ends nowhere", fields(good, []byte{9<<3 | 3}), 0, "up{job=\"j\"} 1 1\nerror: after 1 timeseries, at byte 41: unexpected EOF\n"},
		{"version 2.0 by mistake", encode2(t, &writev2.Request{Symbols: []string{""}, Timeseries: []writev2.TimeSeries{{}}}), 0, "error: " + errIsV2.Error() + "\n"},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, decoded(t, 1, c.body, c.max)) })
	}
}

func encode2(t testing.TB, r *writev2.Request) []byte {
	t.Helper()
	b, err := r.Marshal()
	require.NoError(t, err)
	return b
}

func symbols(ss ...string) []byte {
	var b []byte
	for _, s := range ss {
		b = append(b, str(request2Symbols, s)...)
	}
	return b
}

func refs(rs ...uint64) []byte {
	var b []byte
	for _, r := range rs {
		b = protowire.AppendVarint(b, r)
	}
	return msg(series2LabelsRefs, b)
}

func TestV2(t *testing.T) {
	table := symbols("", "__name__", "up", "job", "j", "help", "seconds")
	ts := func(parts ...[]byte) []byte { return msg(request2Timeseries, parts...) }
	good := ts(refs(1, 2, 3, 4), smp(2, 1, 1))
	const sample = "up{job=\"j\"} 1 1\n"
	for _, c := range []struct {
		name string
		body []byte
		want string
	}{
		{"nothing", nil, ""},
		{"one", fields(table, good), sample},
		{"symbols last", fields(good, table), sample},
		{"symbols in between", fields(symbols("", "__name__"), good, symbols("up", "job", "j")), sample},
		{"references unpacked", fields(table, ts(num(1, 1), num(1, 2), num(1, 3), num(1, 4), smp(2, 1, 1))), sample},
		{"references in pieces, of all kinds, and behind the sample", fields(table, ts(refs(1), smp(2, 1, 1), num(1, 2), refs(), refs(3, 4))), sample},
		{"start times are passed over", fields(table, ts(refs(1, 2), msg(2, double(1, 5), num(2, 9), num(3, 8)), num(6, 7))), "up{} 9 5\n"},
		{
			"references behind the table", fields(table, ts(refs(1, 2, 3, 7), smp(2, 1, 1), smp(2, 2, 2)), good),
			sample + "0: invalid_label: labels_refs 3 and 7: there are only 7 symbols\n1: invalid_label: labels_refs 3 and 7: there are only 7 symbols\n",
		},
		{
			"an odd number of references", fields(table, ts(refs(1, 2, 3), smp(2, 1, 1)), good),
			sample + "0: invalid_label: labels_refs has 3 entries, must be pairs of name and value\n",
		},
		{"no table", good, "0: invalid_label: labels_refs 1 and 2: there are only 0 symbols\n"},
		{
			"histograms are rejected, samples beside them taken", fields(table, ts(refs(1, 2, 3, 4), msg(3, num(1, 1)), smp(2, 1, 1), msg(4, num(1, 1)))),
			sample + "0: unsupported: native histograms are not stored\n",
		},
		{"metadata", fields(table, ts(refs(1, 2, 3, 4), msg(5, num(1, 2), num(3, 5), num(4, 6)), smp(2, 1, 1))), "up is a gauge of \"seconds\": help\n" + sample},
		{"metadata in two pieces", fields(table, ts(refs(1, 2, 3, 4), msg(5, num(1, 2)), smp(2, 1, 1), msg(5, num(3, 5)))), "up is a gauge of \"\": help\n" + sample},
		{"metadata that says nothing", fields(table, ts(refs(1, 2, 3, 4), msg(5), smp(2, 1, 1))), sample},
		{"metadata that leads nowhere", fields(table, ts(refs(1, 2, 3, 4), msg(5, num(1, 2), num(3, 500)), smp(2, 1, 1))), sample},
		{"metadata of a series without samples", fields(table, ts(refs(1, 2, 3, 4), msg(5, num(1, 1)))), "up is a counter of \"\": \n"},
		{
			"a family is noted once for its series",
			fields(symbols("", "__name__", "h_bucket", "h_sum", "h_count", "le", "1", "2"),
				ts(refs(1, 2, 5, 6), msg(5, num(1, 3)), smp(2, 1, 1)), ts(refs(1, 2, 5, 7), msg(5, num(1, 3)), smp(2, 1, 2)),
				ts(refs(1, 3), msg(5, num(1, 3)), smp(2, 1, 3)), ts(refs(1, 4), msg(5, num(1, 3)), smp(2, 1, 4))),
			"h is a histogram of \"\": \nh_bucket{le=\"1\"} 1 1\nh_bucket{le=\"2\"} 1 2\nh_sum{} 1 3\nh_count{} 1 4\n",
		},
		{"cut", fields(table, good, good)[:len(table)+len(good)+5], sample + "error: at byte 60: the message ends early\n"},
		{"broken inside", fields(table, good, ts(refs(1, 2), []byte{2 << 3, 1}), good), sample + "error: timeseries 1, at byte 60: field 2 has wire type 0, must be 2\n"},
		{"a symbol that is a number", fields(table, good, num(4, 1), good), sample + "error: at byte 60: field 4 has wire type 0, must be 2\n"},
		{"references of a wrong type", fields(table, good, ts(double(1, 1), smp(2, 1, 1))), sample + "error: timeseries 1, at byte 60: field 1 has wire type 1, must be 2\n"},
		{"a packed reference that breaks off", fields(table, good, ts(msg(1, []byte{0x80}), smp(2, 1, 1))), sample + "error: timeseries 1, at byte 60: the message ends early\n"},
		{"version 1.0 by mistake", msg(1, up, smp(2, 1, 1)), "error: " + errIsV1.Error() + "\n"},
		{"metadata of version 1.0 by mistake", msg(3, num(1, 1), str(2, "up")), "error: " + errIsV1.Error() + "\n"},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, decoded(t, 2, c.body, 0)) })
	}
}

func TestFamily(t *testing.T) {
	for _, c := range []struct {
		series string
		t      metric.Type
		want   string
	}{
		{"a_bucket", metric.TypeHistogram, "a"},
		{"a_count", metric.TypeHistogram, "a"},
		{"a", metric.TypeHistogram, "a"},
		{"a_gsum", metric.TypeGaugeHistogram, "a"},
		{"a_sum", metric.TypeSummary, "a"},
		{"a_bucket", metric.TypeSummary, "a_bucket"},
		{"a_count", metric.TypeGauge, "a_count"},
		{"a_total", metric.TypeCounter, "a_total"},
	} {
		require.Equal(t, c.want, family(c.series, c.t), "%s as a %s", c.series, c.t)
	}
}

// Inputs that take far more memory than their size are bounded.
func TestBounds(t *testing.T) {
	const most = 1 << 20
	table := symbols("", "x")
	few := slices.Repeat([]uint64{0, 1}, 100)
	for name, c := range map[string]struct {
		version int
		body    []byte
	}{
		"labels":     {1, slices.Repeat(msg(1, slices.Repeat(lbl("", "x"), 100), smp(2, 1, 1)), 1+most/3200)},
		"symbols":    {2, slices.Repeat(str(request2Symbols, ""), 1+most/16)},
		"references": {2, fields(table, msg(request2Timeseries, refs(slices.Repeat([]uint64{0, 1}, 1+most/8)...), smp(2, 1, 1)))},
		"shared":     {2, fields(table, slices.Repeat(msg(request2Timeseries, refs(few...), smp(2, 1, 1)), 1+most/3200))},
	} {
		t.Run(name, func(t *testing.T) {
			b := ingest.Batch{Allowance: ingest.Allowance{Max: most}}
			var d decoder
			read := d.v1
			if c.version == 2 {
				read = d.v2
			}
			require.NoError(t, read(c.body, &b))
			require.ErrorIs(t, b.Err(), ingest.ErrTooLarge)
		})
	}
	many := slices.Repeat(lbl("a", "x"), 129)
	b := ingest.Batch{}
	require.NoError(t, new(decoder).v1(fields(msg(1, many, smp(2, 1, 1), smp(2, 1, 2)), msg(1, lbl("b", "x"), smp(2, 1, 1))), &b))
	require.Equal(t, 2, b.Rejected())
	require.Equal(t, 3, b.Len())
}

// A reused decoder remembers nothing of the previous request.
func TestDecoderIsReused(t *testing.T) {
	var noted int
	d := decoder{Note: func(metric.Metadata) { noted++ }}
	table := symbols("", "__name__", "up")
	ts := msg(request2Timeseries, refs(1, 2), msg(5, num(1, 1)), smp(2, 1, 1))
	var b ingest.Batch
	for i := range 3 {
		b.Reset()
		require.NoError(t, d.v2(fields(table, ts), &b))
		require.Equal(t, 1, b.Len())
		require.Equal(t, i+1, noted)
		require.Zero(t, b.Rejected())
	}
	b.Reset()
	require.NoError(t, d.v2(ts, &b))
	require.Equal(t, 1, b.Rejected(), "the symbols are gone")
}

// reference is one sample as decoded by Prometheus' own decoder.
type reference struct {
	labels string // name and labels, sorted
	timeMs int64
	bits   uint64
}

// referencesOf returns the batch's samples as references, without those of histograms.
func referencesOf(b *ingest.Batch) []reference {
	var out []reference
	for _, r := range b.Reports() {
		for _, m := range r.Measurements {
			labels := m.Labels
			if !r.Derived {
				labels = append(slices.Clone(labels), metric.Label{Name: metric.SourceLabel, Value: r.Source})
			}
			out = append(out, reference{sorted(m.Metric, labels), m.TimeMs, math.Float64bits(m.Value)})
		}
	}
	return out
}

func sorted(series string, labels []metric.Label) string {
	labels = slices.SortedFunc(slices.Values(labels), func(a, b metric.Label) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Value, b.Value))
	})
	return series + fmt.Sprintf("%q", labels)
}

// expect adds the samples of a series to want, and counts rejections.
func expect[S any](want []reference, names, values []string, samples []S, point func(S) (int64, float64)) (_ []reference, rejected int) {
	var named name
	var d decoder
	for i := range names {
		d.label(new(ingest.Batch), &named, names[i], values[i])
	}
	for _, s := range samples {
		timeMs, value := point(s)
		if timeMs == ingest.NoTime || len(d.labels) > 128 {
			rejected++
			continue
		}
		want = append(want, reference{sorted(named.value, d.labels), timeMs, math.Float64bits(value)})
	}
	return want, rejected
}

func expected1(r *prompb.WriteRequest) (want []reference, rejected int, notes []metric.Metadata) {
	for _, ts := range r.Timeseries {
		var names, values []string
		for _, l := range ts.Labels {
			names, values = append(names, l.Name), append(values, l.Value)
		}
		var n int
		want, n = expect(want, names, values, ts.Samples, func(s prompb.Sample) (int64, float64) { return s.Timestamp, s.Value })
		rejected += n + len(ts.Histograms)
	}
	for _, m := range r.Metadata {
		notes = noted(notes, metric.Metadata{Name: m.MetricFamilyName, Type: metricType(uint64(int64(m.Type))), Help: m.Help, Unit: m.Unit})
	}
	return want, rejected, notes
}

func noted(notes []metric.Metadata, m metric.Metadata) []metric.Metadata {
	if m.Name == "" || len(notes) > 0 && notes[len(notes)-1] == m {
		return notes
	}
	return append(notes, m)
}

func expected2(r *writev2.Request) (want []reference, rejected int) {
	for _, ts := range r.Timeseries {
		var names, values []string
		ok := len(ts.LabelsRefs)%2 == 0
		for i := 0; ok && i < len(ts.LabelsRefs); i += 2 {
			n, v := ts.LabelsRefs[i], ts.LabelsRefs[i+1]
			if ok = int(n) < len(r.Symbols) && int(v) < len(r.Symbols); ok {
				names, values = append(names, r.Symbols[n]), append(values, r.Symbols[v])
			}
		}
		rejected += len(ts.Histograms)
		if !ok {
			rejected += len(ts.Samples)
			continue
		}
		var n int
		want, n = expect(want, names, values, ts.Samples, func(s writev2.Sample) (int64, float64) { return s.Timestamp, s.Value })
		rejected += n
	}
	return want, rejected
}

// onlyKnown drops unknown fields, which the reference decoder does not check and would write again
// unchanged.
func onlyKnown(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			onlyKnown(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			onlyKnown(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).Name == "XXX_unrecognized" {
				v.Field(i).SetZero()
			} else {
				onlyKnown(v.Field(i))
			}
		}
	default:
	}
}

// maxGrowth is the maximum ratio of decoded memory to input size.
const maxGrowth = 200

func FuzzV1(f *testing.F) {
	for _, r := range []*prompb.WriteRequest{request1(3, 2), {
		Timeseries: []prompb.TimeSeries{{
			Labels:     []prompb.Label{{Name: "__name__", Value: "h"}, {Name: "source", Value: "web-1"}},
			Samples:    []prompb.Sample{{Timestamp: -1, Value: math.Float64frombits(0x7ff0000000000002)}, {Timestamp: math.MinInt64}},
			Histograms: []prompb.Histogram{{Sum: 3, PositiveDeltas: []int64{1, -1}}},
			Exemplars:  []prompb.Exemplar{{Labels: []prompb.Label{{Name: "trace_id", Value: "x"}}, Value: 1}},
		}},
		Metadata: []prompb.MetricMetadata{{Type: prompb.MetricMetadata_SUMMARY, MetricFamilyName: "h", Help: "help", Unit: "seconds"}},
	}} {
		b, err := r.Marshal()
		require.NoError(f, err)
		f.Add(b)
	}
	f.Add(fields(msg(1, smp(2, 1, 1), up), group(9), num(2, 1)))
	// What real senders sent, recorded by `go test ./integration/programs -record DIR`.
	files, err := filepath.Glob("testdata/*.snappy")
	require.NoError(f, err)
	require.Len(f, files, 3)
	for _, file := range files {
		packed, err := os.ReadFile(file)
		require.NoError(f, err)
		body, err := snappy.Decode(nil, packed)
		require.NoError(f, err)
		require.NoError(f, new(prompb.WriteRequest).Unmarshal(body))
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		decode := func(body []byte) ([]reference, int, []metric.Metadata, error) {
			var b ingest.Batch
			var notes []metric.Metadata
			d := decoder{Note: func(m metric.Metadata) { notes = append(notes, m) }}
			err := d.v1(body, &b)
			require.LessOrEqual(t, b.Allowance.Used(), maxGrowth*int64(len(body)+1))
			return referencesOf(&b), b.Rejected(), notes, err
		}
		samples, rejected, notes, err := decode(body)
		var r prompb.WriteRequest
		if r.Unmarshal(body) != nil {
			return // the batch keeps what was decoded before, and skipped fields were not checked
		}
		wantSamples, wantRejected, wantNotes := expected1(&r)
		if err == nil {
			require.Equal(t, wantSamples, samples)
			require.Equal(t, wantRejected, rejected)
			require.Equal(t, wantNotes, notes)
		}
		// The reference decoder accepts some malformed messages. What it encodes from them is
		// well-formed.
		onlyKnown(reflect.ValueOf(&r))
		again, err := r.Marshal()
		require.NoError(t, err)
		samples, rejected, notes, err = decode(again)
		require.NoError(t, err)
		require.Equal(t, wantSamples, samples)
		require.Equal(t, wantRejected, rejected)
		require.Equal(t, wantNotes, notes)
	})
}

func FuzzV2(f *testing.F) {
	f.Add(encode2(f, request2(3, 2)))
	f.Add(encode2(f, &writev2.Request{
		Symbols: []string{"", "__name__", "h", "source", "web-1"},
		Timeseries: []writev2.TimeSeries{{
			LabelsRefs: []uint32{1, 2, 3, 4}, Samples: []writev2.Sample{{Timestamp: -1, Value: math.Float64frombits(0x7ff0000000000002), StartTimestamp: 5}},
			Metadata: writev2.Metadata{Type: writev2.Metadata_METRIC_TYPE_COUNTER, HelpRef: 2, UnitRef: 9},
		}, {
			LabelsRefs: []uint32{1, 7, 3}, Histograms: []writev2.Histogram{{Sum: 3}}, Exemplars: []writev2.Exemplar{{LabelsRefs: []uint32{1}}},
			Samples: []writev2.Sample{{}},
		}},
	}))
	f.Add(fields(msg(5, num(1, 1), refs(2, 3), num(1, 4), smp(2, 1, 1)), symbols("", "__name__", "up", "job", "j"), group(9)))
	f.Fuzz(func(t *testing.T, body []byte) {
		decode := func(body []byte) ([]reference, int, error) {
			var b ingest.Batch
			d := decoder{Note: func(m metric.Metadata) { require.NotEmpty(t, m.Name) }}
			err := d.v2(body, &b)
			require.LessOrEqual(t, b.Allowance.Used(), maxGrowth*int64(len(body)+1))
			return referencesOf(&b), b.Rejected(), err
		}
		samples, rejected, err := decode(body)
		var r writev2.Request
		if r.Unmarshal(body) != nil {
			return
		}
		wantSamples, wantRejected := expected2(&r)
		if err == nil {
			require.Equal(t, wantSamples, samples)
			require.Equal(t, wantRejected, rejected)
		}
		onlyKnown(reflect.ValueOf(&r))
		samples, rejected, err = decode(encode2(t, &r))
		require.NoError(t, err)
		require.Equal(t, wantSamples, samples)
		require.Equal(t, wantRejected, rejected)
	})
}

// request1 makes a request like Prometheus' after a scrape: series with four labels, of a few
// metrics of one target.
func request1(series, samples int) *prompb.WriteRequest {
	r := &prompb.WriteRequest{}
	for i := range series {
		ts := prompb.TimeSeries{Labels: []prompb.Label{
			{Name: "__name__", Value: fmt.Sprintf("http_server_requests_%d_total", i/100)},
			{Name: "instance", Value: fmt.Sprintf("10.0.%d.7:9100", i/1000)},
			{Name: "job", Value: "node"},
			{Name: "path", Value: fmt.Sprintf("/api/v1/things/%d", i%100)},
		}}
		for j := range samples {
			ts.Samples = append(ts.Samples, prompb.Sample{Timestamp: 1_732_161_600_000 + int64(j)*15_000, Value: float64(i) * 1.5})
		}
		r.Timeseries = append(r.Timeseries, ts)
	}
	return r
}

// request2 is request1 in version 2.0, with metadata.
func request2(series, samples int) *writev2.Request {
	table := writev2.NewSymbolTable()
	r := &writev2.Request{}
	help := table.Symbolize("Requests that were served.")
	for _, ts := range request1(series, samples).Timeseries {
		out := writev2.TimeSeries{Metadata: writev2.Metadata{Type: writev2.Metadata_METRIC_TYPE_COUNTER, HelpRef: help}}
		for _, l := range ts.Labels {
			out.LabelsRefs = append(out.LabelsRefs, table.Symbolize(l.Name), table.Symbolize(l.Value))
		}
		for _, s := range ts.Samples {
			out.Samples = append(out.Samples, writev2.Sample{Timestamp: s.Timestamp, Value: s.Value})
		}
		r.Timeseries = append(r.Timeseries, out)
	}
	r.Symbols = table.Symbols()
	return r
}

// TestEmptyMessages: series without samples, and metadata, are bounded, too, and end when the client leaves.
func TestEmptyMessages(t *testing.T) {
	const n = 2000
	for name, c := range map[string]struct {
		decode func(*decoder, []byte, *ingest.Batch) error
		field  protowire.Number
	}{
		"series":               {(*decoder).v1, request1Timeseries},
		"metadata":             {(*decoder).v1, request1Metadata},
		"series of version 2.": {(*decoder).v2, request2Timeseries},
	} {
		t.Run(name, func(t *testing.T) {
			body := bytes.Repeat(msg(c.field), n)
			b := ingest.Batch{Allowance: ingest.Allowance{Max: (n - 1) * ingest.MessageBytes}}
			require.NoError(t, c.decode(new(decoder), body, &b))
			require.ErrorIs(t, b.Err(), ingest.ErrTooLarge)
			b = ingest.Batch{Allowance: ingest.Allowance{Max: n * ingest.MessageBytes}}
			require.NoError(t, c.decode(new(decoder), body, &b))
			require.NoError(t, b.Err())
			b = ingest.Batch{Allowance: ingest.Allowance{Gone: func() error { return context.Canceled }}}
			require.NoError(t, c.decode(new(decoder), body, &b))
			require.ErrorIs(t, b.Err(), context.Canceled)
		})
	}
}
