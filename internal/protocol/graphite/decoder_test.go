package graphite

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/treecheck/linear"
)

const nowMs = 1_732_161_600_500

// decode returns a line for each sample and for each rejected line.
func decode(lines string) string {
	var d Decoder
	var b ingest.Batch
	d.Decode([]byte(lines), nowMs, &b)
	var sb strings.Builder
	for _, r := range b.Reports() {
		for _, m := range r.Measurements {
			sb.WriteString(m.Metric)
			for _, l := range m.Labels {
				fmt.Fprintf(&sb, " %s=%q", l.Name, l.Value)
			}
			fmt.Fprintf(&sb, " %v @%d\n", m.Value, m.TimeMs)
		}
	}
	for _, r := range b.Result(ingest.Result{}).Rejected {
		fmt.Fprintf(&sb, "%d: %s\n", r.Index, r.Reason)
	}
	return sb.String()
}

func TestDecode(t *testing.T) {
	long := strings.Repeat("x", 1<<16)
	for _, c := range []struct{ name, lines, want string }{
		{"a line", "web1.cpu.user 12.5 1732161600\n", "web1.cpu.user 12.5 @1732161600000\n"},
		{"without its end", "a.b 1 2", "a.b 1 @2000\n"},
		{"several, and other ends", "a 1 1\r\nb 2 2\n\n  \t\r\nc 3 3\n", "a 1 @1000\nb 2 @2000\nc 3 @3000\n"},
		{"any white space", " a\t  1 \t2 \r\n", "a 1 @2000\n"},
		{"now", "a 1\nb 2 -1\nc 3 -1.0\nd 4 -1.5\n", "a 1 @1732161600500\nb 2 @1732161600500\nc 3 @1732161600500\nd 4 @1732161600500\n"},
		{
			"fractions", "a 1 1.5\nb 1 1280959128.123\nc 1 1280959128.1239\nd 1 1280959128.1\ne 1 1.7e9\nf 1 1280959128.\ng 1 0.0009\n",
			"a 1 @1500\nb 1 @1280959128123\nc 1 @1280959128123\nd 1 @1280959128100\ne 1 @1700000000000\nf 1 @1280959128000\ng 1 @0\n",
		},
		{"before 1970 is ingest's", "a 1 -2\n", "a 1 @-2000\n"},
		{"numbers", "a -0.5 1\na 1e3 1\na +7 1\na .5 1\na 0123 1\n", "a -0.5 @1000\na 1000 @1000\na 7 @1000\na 0.5 @1000\na 123 @1000\n"},
		{"many digits", "a 1" + strings.Repeat("0", 5000) + "e-5000 1\n", "0: invalid_value\n"},
		{"not finite", "a inf 1\na -Infinity 1\na nan 1\na NaN 1\n", "a +Inf @1000\na -Inf @1000\n2: invalid_value\n3: invalid_value\n"},
		{"no numbers", "a one 1\na 0x10 1\na 1_0 1\na 1e999 1\na 1,5 1\n", "0: invalid_value\n1: invalid_value\n2: invalid_value\n3: invalid_value\n4: invalid_value\n"},
		{"no times", "a 1 now\na 1 nan\na 1 inf\na 1 1e300\na 1 1.x\na 1 1:0\n", "0: invalid_time\n1: invalid_time\n2: invalid_time\n3: invalid_time\n4: invalid_time\n5: invalid_time\n"},
		{"too little, too much", "a\na 1 2 3\na b c d\n", "0: invalid_value\n1: invalid_value\n2: invalid_value\n"},
		{"tags", "disk.used;host=web1;mount=/var 1 1\n", "disk.used host=\"web1\" mount=\"/var\" 1 @1000\n"},
		{"tags that are unusual", "a;t= 1 1\na;t==x 1 1\na;t=1;u=2;t=3 1 1\na;ä=ö 1 1\n", "a t=\"\" 1 @1000\na t=\"=x\" 1 @1000\na t=\"3\" u=\"2\" 1 @1000\na ä=\"ö\" 1 @1000\n"},
		{"no tags", "a;t 1 1\n;t=x 1 1\na; 1 1\na;=x 1 1\n; 1 1\n", "0: invalid_label\n1: invalid_label\n2: invalid_label\n3: invalid_label\n4: invalid_label\n"},
		{"the good ones stay", "a 1 1\nbad\nb 2 2\n", "a 1 @1000\nb 2 @2000\n1: invalid_value\n"},
		{"what names are is ingest's", "\xff.\x00 1 1\n..a..b. 1 1\n", "\xff.\x00 1 @1000\n..a..b. 1 @1000\n"},
		{"long", long + " 1 1\n" + long + "\n", long + " 1 @1000\n1: invalid_value\n"},
	} {
		t.Run(c.name, func(t *testing.T) { assert.Equal(t, c.want, decode(c.lines)) })
	}
}

func TestMessages(t *testing.T) {
	var d Decoder
	var b ingest.Batch
	d.Decode([]byte("a b c\r\n"+strings.Repeat("y", 1000)+"\n"), nowMs, &b)
	got := b.Result(ingest.Result{}).Rejected
	require.Len(t, got, 2)
	assert.Equal(t, `"a b c": the value is not a number`, got[0].Message)
	assert.Equal(t, `"`+strings.Repeat("y", 80)+`"…: a line must be a path, a value and a time`, got[1].Message)
}

// TestFull: decoding stops when the batch is full.
func TestFull(t *testing.T) {
	var d Decoder
	b := ingest.Batch{Max: 2}
	d.Decode([]byte("a 1 1\nb 1 1\nc 1 1\nd\n"), nowMs, &b)
	assert.True(t, b.TooMany())
	assert.Equal(t, 2, b.Len())
}

// maxGrowth is the maximum ratio of decoded memory to input size.
const maxGrowth = 100

// FuzzDecode: each non-empty line is one measurement, kept or rejected, and independent of other
// lines.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{"a.b 1 2\n", "a;b=c;d=e -1.5e3 1.7e9\r\n\nx nan 1\n", "a\t1\t-1\nb 1", "; = \n\x00\xff 1 1.9999\n", "a 1 18446744073709551615\na 1 1." + strings.Repeat("9", 30)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, lines string) {
		var d Decoder
		var all ingest.Batch
		d.Decode([]byte(lines), nowMs, &all)
		require.LessOrEqual(t, all.Allowance.Used(), maxGrowth*int64(len(lines)+1), "%q", lines)
		n := 0
		for line := range strings.SplitSeq(lines, "\n") {
			var one ingest.Batch
			d.Decode([]byte(line), nowMs, &one)
			require.LessOrEqual(t, one.Len(), 1)
			require.Equal(t, len(strings.FieldsFunc(line, func(c rune) bool { return c < 0x80 && isSpace(byte(c)) })) > 0, one.Len() == 1, "%q", line)
			n += one.Len()
			for _, r := range one.Reports() {
				for _, m := range r.Measurements {
					require.NotEmpty(t, m.Metric)
					require.NotContains(t, m.Metric, ";")
					require.False(t, math.IsNaN(m.Value))
				}
			}
		}
		require.Equal(t, n, all.Len())
	})
}

// TestHostileIsLinear: whatever the lines, decoding takes time and memory in proportion to their
// size.
func TestHostileIsLinear(t *testing.T) {
	tags := func(name func(i int) string) func(n int) string {
		return func(n int) string {
			var sb strings.Builder
			sb.WriteString("m")
			for i := 0; sb.Len() < n; i++ {
				sb.WriteString(";" + name(i) + "=b")
			}
			return sb.String() + " 1 1\n"
		}
	}
	for name, lines := range map[string]func(n int) string{
		"equal tags":         tags(func(int) string { return "a" }),
		"ascending tags":     tags(func(i int) string { return fmt.Sprintf("a%07d", i) }),
		"descending tags":    tags(func(i int) string { return fmt.Sprintf("a%07d", 9_999_999-i) }),
		"long names":         tags(func(i int) string { return strings.Repeat("x", 200) + strconv.Itoa(i) }),
		"many lines":         func(n int) string { return strings.Repeat("a;b=c 1 1\n", n/10) },
		"sources":            func(n int) string { return strings.Repeat("a;host=b 1 1\na;host=c 1 1\n", n/20) },
		"blank lines":        func(n int) string { return strings.Repeat("\n", n) },
		"lines that are bad": func(n int) string { return strings.Repeat("a\n", n/2) },
		"digits":             func(n int) string { return "a 1" + strings.Repeat("0", n) + " 1." + strings.Repeat("9", n) + "\n" },
	} {
		t.Run(name, func(t *testing.T) {
			linear.Check(t, 16<<10, lines, func(lines string) {
				var d Decoder
				d.Decode([]byte(lines), nowMs, &ingest.Batch{Sources: metric.SourceLabels{"host"}})
			})
		})
	}
}

// A path with too many tags is rejected, but not the line after it.
func TestTooManyTags(t *testing.T) {
	line := "m"
	for i := range 129 {
		line += fmt.Sprintf(";t%d=v", i)
	}
	var d Decoder
	var b ingest.Batch
	d.Decode([]byte(line+" 1 1\nn;a=b 1 1\n"), nowMs, &b)
	require.Equal(t, 1, b.Rejected())
	require.Equal(t, "more than 128 labels", b.Result(ingest.Result{Accepted: 1}).Rejected[0].Message)
	require.Equal(t, "n", b.Reports()[0].Measurements[0].Metric)
}
