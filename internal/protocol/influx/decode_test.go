package influx

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

// TestDecode runs testdata/lines. The commands are lines (the literal body) and quoted (the body as
// a Go string). `go test -rewrite` rewrites the results.
func TestDecode(t *testing.T) {
	var d Decoder
	datadriven.RunTest(t, "testdata/lines", func(t *testing.T, c *datadriven.TestData) string {
		body := c.Input
		if c.Cmd == "quoted" {
			var err error
			if body, err = strconv.Unquote(strings.TrimSpace(c.Input)); err != nil {
				c.Fatalf(t, "%v: %s", err, c.Input)
			}
		}
		var opts Settings
		precision := ""
		db := ""
		if c.MaybeScanArgs(t, "db", &db); db != "" {
			opts.Labels = []metric.Label{{Name: "db", Value: db}}
		}
		c.MaybeScanArgs(t, "precision", &precision)
		var err error
		opts.Unit, err = parsePrecision(precision)
		require.NoError(t, err)
		return decode(&d, []byte(body), opts)
	})
}

// decode returns a line for each sample, and whatever else results.
func decode(d *Decoder, body []byte, opts Settings) string {
	var b ingest.Batch
	ignored := d.Decode(body, opts, &b)
	var sb strings.Builder
	for _, r := range b.Reports() {
		for _, m := range r.Measurements {
			sb.WriteString(m.Metric)
			for _, l := range m.Labels {
				fmt.Fprintf(&sb, " %s=%q", l.Name, l.Value)
			}
			fmt.Fprintf(&sb, " %v", m.Value)
			if m.TimeMs != ingest.NoTime {
				fmt.Fprintf(&sb, " @%d", m.TimeMs)
			}
			sb.WriteByte('\n')
		}
	}
	for _, r := range b.Result(ingest.Result{}).Rejected {
		fmt.Fprintf(&sb, "line %d: %s (%s)\n", d.lines[r.Index], r.Message, r.Reason)
	}
	if ignored > 0 {
		fmt.Fprintf(&sb, "strings: %d\n", ignored)
	}
	return sb.String()
}

func TestParsePrecision(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"": 1, "n": 1, "ns": 1, "u": 1e3, "us": 1e3, "\u00b5": 1e3, "\u03bc": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9,
	} {
		got, err := parsePrecision(s)
		require.NoError(t, err)
		require.Equal(t, want, got, "%q", s)
	}
	_, err := parsePrecision("d")
	require.EqualError(t, err, `unknown precision "d": use ns, us, ms, s, m or h`)
}

// Numbers are exactly those that strconv parses.
func TestNumbersAreExact(t *testing.T) {
	check := func(text string) {
		t.Helper()
		want, err := strconv.ParseFloat(text, 64)
		require.NoError(t, err)
		got, next, ok := number(text+",", 0)
		require.True(t, ok, text)
		require.Equal(t, len(text), next, text)
		require.Equal(t, math.Float64bits(want), math.Float64bits(got), text)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 20_000 {
		check(strconv.FormatFloat(math.Ldexp(r.Float64()-0.5, r.IntN(80)-40), 'f', r.IntN(25), 64))
		check(strconv.FormatUint(r.Uint64()>>r.IntN(64), 10) + "." + strconv.FormatUint(r.Uint64()>>r.IntN(64), 10))
		if f := math.Float64frombits(r.Uint64()); !math.IsNaN(f) && !math.IsInf(f, 0) {
			check(strconv.FormatFloat(f, 'g', -1, 64))
		}
	}
	for _, s := range []string{
		"0", "-0", "-0.0", "1.", ".5", "-.5", "+1", "9007199254740992", "9007199254740993", "900719925474099.3", "0.1", "1e22", "1E-5", "5e-324",
		"0.0000000000000000000001", "0.00000000000000000000001", "00000000000000000000001", "18446744073709551616", "1.7976931348623157e308",
	} {
		check(s)
	}
	_, _, ok := number("1"+strings.Repeat("0", 5000)+"e-5000,", 0) // strconv says 0
	require.False(t, ok)
}

// Names are built once. Beyond the bound names are still correct, and the cache grows no further.
func TestNamesAreBounded(t *testing.T) {
	var d Decoder
	long := strings.Repeat("x", maxNameBytes)
	for round := range 3 {
		var body strings.Builder
		for i := range maxNames {
			fmt.Fprintf(&body, "m%d f%d=1,g=2\n", i*round, i)
		}
		fmt.Fprintf(&body, "%s f=3\nm %s=4\n", long, long)
		var b ingest.Batch
		d.Decode([]byte(body.String()), Settings{}, &b)
		got := b.Reports()[0].Measurements
		require.Len(t, got, 2*maxNames+2)
		for i := range maxNames {
			require.Equal(t, fmt.Sprintf("m%d_f%d", i*round, i), got[2*i].Metric)
			require.Equal(t, fmt.Sprintf("m%d_g", i*round), got[2*i+1].Metric)
		}
		require.Equal(t, long+"_f", got[2*maxNames].Metric)
		require.Equal(t, "m_"+long, got[2*maxNames+1].Metric)
		require.LessOrEqual(t, d.names.n, maxNames)
		n := len(d.names.metrics) + len(d.names.measurements)
		for _, m := range d.names.measurements {
			n += len(m.places)
		}
		require.Equal(t, d.names.n, n)
	}
}

// A full batch stops decoding.
func TestBatchIsFull(t *testing.T) {
	var d Decoder
	for _, body := range []string{"m a=1,b=2,c=3\n", "m a=1\nm a=2\nm a=3\n", "m\nm\nm\n"} {
		b := ingest.Batch{Max: 2}
		d.Decode([]byte(body), Settings{}, &b)
		require.True(t, b.TooMany())
		require.Equal(t, 2, b.Len())
	}
}

func TestWhole(t *testing.T) {
	for body, want := range map[string]string{"": "", "m v=12": "", "m v=1\n": "m v=1\n", "m v=1\nm v=1": "m v=1\n"} {
		require.Equal(t, want, string(wholeLines([]byte(body))))
	}
}

// tsbs makes the CPU data that TSBS sends for some hosts: ten tags, ten fields and a time per line.
func tsbs(hosts, times int) []byte {
	r := rand.New(rand.NewPCG(1, 1))
	var b []byte
	for at := range times {
		for host := range hosts {
			b = fmt.Appendf(b, "cpu,hostname=host_%d,region=eu-central-1,datacenter=eu-central-1a,rack=%d,os=Ubuntu15.10,arch=x86,team=SF,"+
				"service=19,service_version=1,service_environment=test ", host, host%100)
			for i, f := range []string{
				"user", "system", "idle", "nice", "iowait", "irq", "softirq", "steal", "guest", "guest_nice",
			} {
				if i > 0 {
					b = append(b, ',')
				}
				b = fmt.Appendf(b, "usage_%s=%di", f, r.IntN(101))
			}
			b = fmt.Appendf(b, " %d\n", 1_732_161_600_000_000_000+int64(at)*10e9)
		}
	}
	return b
}

// telegraf makes a body like that of Telegraf's cpu and system inputs: floats, and some strings.
func telegraf(lines int) []byte {
	r := rand.New(rand.NewPCG(1, 1))
	var b []byte
	for i := range lines {
		b = fmt.Appendf(b, "cpu,cpu=cpu%d,host=web-1 usage_guest=0", i%8)
		for _, f := range []string{"idle", "iowait", "irq", "nice", "softirq", "steal", "system", "user"} {
			b = fmt.Appendf(b, ",usage_%s=%v", f, r.Float64()*100)
		}
		b = fmt.Appendf(b, " %d\n", 1_732_161_600_000_000_000+int64(i/8)*10e9)
		if i%8 == 7 {
			b = append(b, "system,host=web-1 uptime_format=\"46 days, 21:31\",uptime=4051860i,load1=0.22 1732161600000000000\n"...)
		}
	}
	return b
}

// BenchmarkDecode measures the decoder alone with typical bodies; one operation is one body.
func BenchmarkDecode(bench *testing.B) {
	for _, c := range []struct {
		name string
		body []byte
	}{{"tsbs", tsbs(100, 10)}, {"telegraf", telegraf(1000)}} {
		bench.Run(c.name, func(bench *testing.B) {
			var d Decoder
			b := ingest.Batch{Sources: metric.SourceLabels{"host", "hostname", "instance", "server"}}
			d.Decode(c.body, Settings{}, &b)
			fields := b.Len()
			bench.SetBytes(int64(len(c.body)))
			bench.ReportAllocs()
			for bench.Loop() {
				b.Reset()
				d.Decode(c.body, Settings{}, &b)
			}
			if b.Len() != fields || b.Rejected() > 0 {
				bench.Fatal("not all was read")
			}
			perField := float64(bench.Elapsed().Nanoseconds()) / float64(bench.N) / float64(fields)
			bench.ReportMetric(perField, "ns/field")
			bench.ReportMetric(1e3/perField, "Mfields/s")
		})
	}
}
