package format

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/treecheck/linear"
)

// every is options for each format, and for each way to make samples.
var every = []Options{
	{Format: "json"},
	{Format: "json", LabelFields: []string{"host", "a_b"}, ValueFields: []string{"v", "a_v"}, Labels: map[string]string{"host": "x", "env": "y"}},
	{Format: "json", MetricField: "name", Prefix: "p_"},
	{Format: "json", Count: "lines", LabelFields: []string{"host"}, ValueFields: []string{"v"}},
	{Format: "logfmt", LabelFields: []string{"host"}},
	{Format: "csv", Columns: []string{"time", "host", "v", "w"}, LabelFields: []string{"host"}},
	{Format: "access", Count: "requests_total"},
	{Format: "regexp", Pattern: `^(?P<host>\S*) (?P<v>\S*)(?: (?P<time>.*))?`, LabelFields: []string{"host"}},
	{Format: "influx", Labels: map[string]string{"env": "y"}, Prefix: "p_"},
	{Format: "graphite", Labels: map[string]string{"env": "y"}, Prefix: "p_"},
}

// FuzzLine reads a line in each format. No line crashes, or makes a sample that cannot be sent; a rejected line makes no sample; and
// the line may be overwritten once the batch was read.
func FuzzLine(f *testing.F) {
	files, err := filepath.Glob("testdata/lines/*")
	require.NoError(f, err)
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(f, err)
		for line := range bytes.Lines(text) {
			f.Add(bytes.TrimSuffix(line, []byte("\n")))
		}
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		line = bytes.ReplaceAll(line, []byte("\n"), nil)
		for _, o := range every {
			f, err := New(o)
			require.NoError(t, err)
			var first string
			for round := range 2 {
				var b ingest.Batch
				reused := bytes.Clone(line)
				f.Line(reused, noon, &b)
				got := result(&b)
				if round == 0 {
					first = got
				}
				require.Equal(t, first, got, "%+v", o)
				for i := range reused {
					reused[i] = '#'
				}
				rejected := b.Rejected()
				require.LessOrEqual(t, rejected, 1, got)
				last := f.LastMs
				f.Flush(&b)
				for _, r := range b.Reports() {
					require.Zero(t, rejected, got)
					for _, m := range r.Measurements {
						require.NotEmpty(t, m.Metric)
						require.False(t, math.IsNaN(m.Value) || math.IsInf(m.Value, 0))
						require.NotEqual(t, ingest.NoTime, m.TimeMs)
						require.True(t, o.Count == "" || m.TimeMs > last && m.TimeMs <= f.LastMs)
						require.False(t, o.Count != "" && !bytes.Contains(line, []byte("#")) && strings.Contains(fmt.Sprint(m.Labels), "#"))
					}
				}
			}
		}
	})
}

// A hostile line costs what it is long.
func TestHostileIsLinear(t *testing.T) {
	for name, line := range map[string]func(n int) string{
		"nested":      func(n int) string { return strings.Repeat(`{"a":`, n/5) },
		"nested list": func(n int) string { return `{"a":` + strings.Repeat(`[`, n) },
		"long path": func(n int) string {
			return `{"` + strings.Repeat("a", n/2) + `":{` + linear.Times(n/2, `"a%d":1,`) + `"z":1}}`
		},
		"deep path": func(n int) string {
			return strings.Repeat(`{"`+strings.Repeat("a", n/64)+`":`, 63) + "{" + linear.Times(n, `"a%d":1,`)
		},
		"many fields": func(n int) string { return "{" + linear.Times(n, `"a%d":1,`) + `"z":1}` },
		"one field":   func(n int) string { return "{" + linear.Times(n, `"a":1,`) + `"z":1}` },
		"escapes":     func(n int) string { return "{" + linear.Times(n, `"a\u0061":"\u0061",`) + `"z":1}` },
		"long number": func(n int) string { return `{"v":` + strings.Repeat("1", n) + `}` },
		"long value":  func(n int) string { return `{"host":"` + strings.Repeat(`\n`, n/2) + `","v":1}` },
		"bad time":    func(n int) string { return `{"time":"` + strings.Repeat(`1`, n) + `Z","v":1}` },
		"pairs":       func(n int) string { return linear.Times(n, "a%d=1 ") },
		"columns":     func(n int) string { return strings.Repeat(`"a",`, n/4) },
		"quotes":      func(n int) string { return strings.Repeat(`"`, n) },
		"words":       func(n int) string { return strings.Repeat("a ", n/2) },
		"brackets":    func(n int) string { return "a " + strings.Repeat("[", n/2) + strings.Repeat(`] "A`, n/8) },
		"agents": func(n int) string {
			return `a - - [27/Nov/2026:12:00:00 +0000] "GET" 200 1` + strings.Repeat(` "\"a"`, n/6) + `"`
		},
		"tags":   func(n int) string { return "m" + linear.Times(n, ",a%d=b") + " v=1" },
		"points": func(n int) string { return "m a=1" + linear.Times(n, ",f%d=1") },
		"path":   func(n int) string { return "m" + linear.Times(n, ";a%d=b") + " 1" },
	} {
		for _, o := range every {
			t.Run(fmt.Sprintf("%s/%s%s%s", name, o.Format, o.MetricField, o.Count), func(t *testing.T) {
				linear.Check(t, 32<<10, func(n int) []byte { return []byte(line(n)) }, func(line []byte) {
					f, err := New(o)
					require.NoError(t, err)
					f.Line(line, noon, new(ingest.Batch))
				})
			})
		}
	}
}

// Lines of ever new names, and of ever new labels, do not fill the memory.
func TestBounded(t *testing.T) {
	f, err := New(Options{Format: "json", LabelFields: []string{"host"}})
	require.NoError(t, err)
	var b ingest.Batch
	for i := range 3 * maxNames {
		b.Reset()
		f.Line(fmt.Appendf(nil, `{"host":"a","n%d":1}`, i), noon, &b)
		require.Equal(t, fmt.Sprintf("n%d host=\"a\" 1\n", i), result(&b))
		require.LessOrEqual(t, len(f.fields), maxNames)
	}
	b.Reset()
	f.Line([]byte("{"+linear.Times(20_000, `"a%d":1,`)+`"z":1}`), noon, &b)
	require.Contains(t, result(&b), "limit_exceeded: ")
	b.Reset()
	f.Line([]byte(`{"`+strings.Repeat("a", ingest.MaxNameBytes+1)+`":1}`), noon, &b)
	require.Contains(t, result(&b), "limit_exceeded: ")
	b.Reset()
	f.Line([]byte(strings.Repeat(`{"a":`, maxDepth+2)+"1"+strings.Repeat("}", maxDepth+2)), noon, &b)
	require.Contains(t, result(&b), "nested deeper than 64")
	f, err = New(Options{Format: "json", MetricField: "name"})
	require.NoError(t, err)
	b.Reset()
	f.Line([]byte(`{"a":1,"name":"`+strings.Repeat("a", ingest.MaxNameBytes+1)+`"}`), noon, &b)
	require.Contains(t, result(&b), "invalid_metric: ")

	f, err = New(Options{Format: "json", Count: "lines", LabelFields: []string{"host"}, ValueFields: []string{"v"}})
	require.NoError(t, err)
	b.Reset()
	for i := range maxSeries + 10 {
		f.Line(fmt.Appendf(nil, `{"host":"%d"}`, i), noon, &b)
	}
	require.Equal(t, 10, b.Rejected())
	require.Equal(t, ingest.ReasonLimit, b.Result(ingest.Result{}).Rejected[0].Reason)
	b.Reset()
	f.Line([]byte(`{"host":"7","v":1}`), noon, &b)
	require.Zero(t, b.Rejected())

	f, err = New(Options{Format: "json", Count: "lines", LabelFields: []string{"host"}})
	require.NoError(t, err)
	b.Reset()
	for i := range 100 {
		f.Line(fmt.Appendf(nil, `{"host":"%d%s"}`, i, strings.Repeat("x", 1<<20)), noon, &b)
	}
	require.Equal(t, 100-maxKeys>>20, b.Rejected())
}
