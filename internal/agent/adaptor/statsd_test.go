package adaptor

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

// readStatsd reads lines, and returns what is wrong with each that is.
func readStatsd(s *statsd, now time.Duration, lines string) (problems []string) {
	for line := range strings.SplitSeq(lines, "\n") {
		if problem := s.read([]byte(line), now); problem != "" {
			problems = append(problems, problem)
		}
	}
	return problems
}

// emitted ends an interval, and returns its samples, sorted.
func emitted(s *statsd, atMs int64, now time.Duration) (samples []string) {
	var b ingest.Batch
	s.emit(atMs, now, &b, func() {})
	for _, r := range b.Reports() {
		for _, m := range r.Measurements {
			labels := ""
			for _, l := range m.Labels {
				labels += " " + l.Name + "=" + l.Value
			}
			samples = append(samples, fmt.Sprintf("%s%s %.4g @%d", m.Metric, labels, m.Value, m.TimeMs))
		}
	}
	slices.Sort(samples)
	return samples
}

func TestStatsd(t *testing.T) {
	for name, c := range map[string]struct {
		lines    string
		want     []string
		problems []string
	}{
		"a counter":          {"a:1|c\na:2.5|c", []string{"a 0 @9999", "a 3.5 @10000"}, nil},
		"a rate":             {"a:1|c|@0.1\na:1|c|@0.5", []string{"a 0 @9999", "a 12 @10000"}, nil},
		"a gauge":            {"a:7|g\na:5|g\na:+2.5|g\na:-1|g", []string{"a 6.5 @10000"}, nil},
		"the rate of gauges": {"a:7|g|@0.1\na:+1|g|@0.1", []string{"a 8 @10000"}, nil},
		"a set":              {"a:x|s\na:y|s\na:x|s\na:::1|s", []string{"a 3 @10000"}, nil},
		"a timer": {"a:10|ms|@0.5\na:10|h\na:10|d", []string{
			"a quantile=0.5 10.07 @10000", "a quantile=0.9 10.07 @10000", "a quantile=0.95 10.07 @10000", "a quantile=0.99 10.07 @10000",
			"a_count 0 @9999", "a_count 4 @10000", "a_sum 0 @9999", "a_sum 40 @10000",
		}, nil},
		"values in a packet": {"a:1:2:3|c\nb:1:2|g\n", []string{"a 0 @9999", "a 6 @10000", "b 2 @10000"}, nil},
		"tags": {
			"a:1|g|#z:1,env:prod,on,empty:,:no,,url:http://x\na:2|g|#on,url:http://x,env:prod,z:2,z:1",
			[]string{"a env=prod on=true url=http://x z=1 2 @10000"},
			nil,
		},
		"two orders of tags":  {"a:1|c|#x:1,y:2\na:2|c|#y:2,x:1", []string{"a x=1 y=2 0 @9999", "a x=1 y=2 3 @10000"}, nil},
		"other sections":      {"a:1|c|T1656581400|@0.5|c:in-1|#x:y|e:it-1|card:low", []string{"a x=y 0 @9999", "a x=y 2 @10000"}, nil},
		"spaces and no lines": {" a:1|g \r\n\n\r\n", []string{"a 1 @10000"}, nil},
		"events": {
			"_e{2,4}:ab|text\n_sc|web|0\na:1|g\n_sc|web|1",
			[]string{"a 1 @10000"},
			[]string{"events and service checks are not stored"},
		},
		"no lines of StatsD": {
			"a\na:1\na:1|x\n:1|c\na:|c\na:1|", nil,
			slices.Repeat([]string{"a line must be NAME:VALUE|TYPE, with one of the types c, g, s, ms, h, d"}, 6),
		},
		"no numbers": {
			"a:NaN|g\na:inf|g\na:0x1|g\na:1e999|g\nb:one|c\nc: 1|c\na:1::2|g",
			[]string{"a 1 @10000"},
			slices.Repeat([]string{"the value is not a number"}, 7),
		},
		"too large": {"a:1.79e308|ms\na:1e308|c|@1e-9\nb:1e308:1e308|c\nc:1e308|g\nc:+1e308|g", []string{"b 0 @9999", "b 1e+308 @10000", "c 1e+308 @10000"}, []string{
			"the value is too large", "the series has another type", "the sum is too large", "the sum is too large",
		}},
		"bad rates": {
			"a:1|c|@1e-10\na:1|c|@2\na:1|c|@x\na:1|c|@-1", nil,
			slices.Repeat([]string{"the rate must be at least 1e-9, and at most 1"}, 4),
		},
		"a counter falls": {"a:2|c\na:-1|c", []string{"a 0 @9999", "a 2 @10000"}, []string{"a counter cannot fall: send a gauge"}},
		"another type":    {"a:2|c\na:1|g", []string{"a 0 @9999", "a 2 @10000"}, []string{"the series has another type"}},
		"no UTF-8":        {"a\xff:1|c\na:1|c|#x:\xff", nil, []string{"the line is not UTF-8", "the line is not UTF-8"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStatsd("", nil)
			problems := readStatsd(s, 0, c.lines)
			require.Equal(t, c.problems, problems)
			require.Equal(t, c.want, emitted(s, 10_000, 0))
		})
	}
}

// TestStatsdIntervals: counters go on, gauges stay, and timers and sets begin anew.
func TestStatsdIntervals(t *testing.T) {
	s := newStatsd("p_", []metric.Label{{Name: "env", Value: "prod"}, {Name: "dc", Value: "a"}})
	require.Empty(t, readStatsd(s, 0, "c:1|c|#env:test\ng:1|g\ns:x|s\nm:0|ms"))
	require.Equal(t, []string{
		"p_c dc=a env=test 0 @9999", "p_c dc=a env=test 1 @10000", "p_g dc=a env=prod 1 @10000",
		"p_m dc=a env=prod quantile=0.5 0 @10000", "p_m dc=a env=prod quantile=0.9 0 @10000", "p_m dc=a env=prod quantile=0.95 0 @10000", "p_m dc=a env=prod quantile=0.99 0 @10000",
		"p_m_count dc=a env=prod 0 @9999", "p_m_count dc=a env=prod 1 @10000", "p_m_sum dc=a env=prod 0 @10000", "p_m_sum dc=a env=prod 0 @9999",
		"p_s dc=a env=prod 1 @10000",
	}, emitted(s, 10_000, 0))
	require.Equal(t, []string{
		"p_c dc=a env=test 1 @20000", "p_g dc=a env=prod 1 @20000", "p_m_count dc=a env=prod 1 @20000", "p_m_sum dc=a env=prod 0 @20000",
	}, emitted(s, 20_000, 0))
	require.Empty(t, readStatsd(s, 0, "c:1|c|#env:test\ng:+1|g\ns:x|s\ns:y|s"))
	require.Equal(t, []string{
		"p_c dc=a env=test 2 @30000", "p_g dc=a env=prod 2 @30000", "p_m_count dc=a env=prod 1 @30000", "p_m_sum dc=a env=prod 0 @30000",
		"p_s dc=a env=prod 2 @30000",
	}, emitted(s, 30_000, 0))
}

// TestStatsdForgets: a series that nothing comes for is forgotten. When it comes back, its counter begins at zero.
func TestStatsdForgets(t *testing.T) {
	s := newStatsd("", nil)
	require.Empty(t, readStatsd(s, 0, "a:1|c\nb:1|c"))
	require.Empty(t, readStatsd(s, time.Minute, "b:1|c"))
	require.Len(t, emitted(s, 1000, forgetAfter-1), 4)
	require.Equal(t, []string{"a 1 @2000", "b 2 @2000"}, emitted(s, 2000, forgetAfter)) // for the last time
	require.Equal(t, []string{"b 2 @3000"}, emitted(s, 3000, forgetAfter))
	require.Empty(t, readStatsd(s, forgetAfter, "a:1|c"))
	require.Equal(t, []string{"a 0 @3999", "a 1 @4000", "b 2 @4000"}, emitted(s, 4000, forgetAfter))
	require.Len(t, s.texts, 2)
	require.Equal(t, 4, s.keys)
}

// TestStatsdQuantiles: they are within 1 %.
func TestStatsdQuantiles(t *testing.T) {
	s := newStatsd("", nil)
	for n := range 10_001 {
		require.Empty(t, s.read(fmt.Appendf(nil, "m:%d|d", n*7919%10_001), 0))
	}
	var b ingest.Batch
	s.emit(1000, 0, &b, func() {})
	got := map[string]float64{}
	for _, m := range b.Reports()[0].Measurements {
		if len(m.Labels) == 1 {
			got[m.Labels[0].Value] = m.Value
		}
	}
	require.Len(t, got, 4)
	for quantile, want := range map[string]float64{"0.5": 5000, "0.9": 9000, "0.95": 9500, "0.99": 9900} {
		require.InEpsilon(t, want, got[quantile], 0.01)
	}
}

// TestStatsdIsBounded: there are so many series, so many bytes of them, and so many values of sets. Those that are known go on.
func TestStatsdIsBounded(t *testing.T) {
	s := newStatsd("", nil)
	for n := range maxStatsd {
		require.Empty(t, s.read(fmt.Appendf(nil, "m:1|c|#n:%d", n), 0))
	}
	require.Equal(t, "there are too many series: send fewer tags with many values", s.read([]byte("m:1|c"), 0))
	require.Empty(t, s.read([]byte("m:1|c|#n:7"), 0))
	var b ingest.Batch
	most, n := 0, 0
	s.emit(1000, 0, &b, func() {
		most = max(most, b.Len())
		n += b.Len()
		b.Reset()
	})
	require.Equal(t, 2*maxStatsd, n+b.Len())
	require.LessOrEqual(t, most, maxSamples+1)

	s = newStatsd("", nil)
	long := strings.Repeat("x", 1<<20)
	for n := range 64 {
		require.Empty(t, s.read(fmt.Appendf(nil, "%s%d:1|c", long, n), 0))
	}
	require.Contains(t, s.read([]byte("m:1|c"), 0), "too many series")

	s = newStatsd("", nil)
	require.Equal(t, "there are too many tags", s.read([]byte("m:1|c|#a"+strings.Repeat(",a", maxTags)), 0))
	for n := range maxTimers {
		require.Empty(t, s.read(fmt.Appendf(nil, "t%d:1|ms", n), 0))
	}
	require.Equal(t, "there are too many timers in this interval", s.read([]byte("t:1|ms"), 0))
	s.emit(10_000, 0, new(ingest.Batch), func() {})
	require.Empty(t, s.read([]byte("t:1|ms"), 0))
	require.Nil(t, s.texts["t0|"].sketch, "a timer without values holds none")
	require.Equal(t, "the value is not a number", s.read([]byte("v:x|ms"), 0))
	s.emit(15_000, 0, new(ingest.Batch), func() {})
	require.Nil(t, s.texts["v|"].sketch, "nor does one that never had a value")
	require.Empty(t, s.read([]byte("u:1|s"), 0))
	s.emit(20_000, 0, new(ingest.Batch), func() {})
	require.Nil(t, s.texts["u|"].set, "nor does a set")

	s = newStatsd("", nil)
	for n := range 2 * maxOrders {
		require.Empty(t, s.read(fmt.Appendf(nil, "m:1|c|#a:%d,a:0", n), 0))
	}
	require.Len(t, s.texts, maxOrders, "one series does not take the room of others")
	require.Equal(t, []string{"m a=0 0 @9999", "m a=0 32 @10000"}, emitted(s, 10_000, 0))

	s = newStatsd("", nil)
	for n := range 16 {
		require.Empty(t, s.read(fmt.Appendf(nil, "s:%s%d|s", long, n), 0))
	}
	require.Contains(t, s.read([]byte("s:x|s"), 0), "too many different values")
	require.Empty(t, s.read([]byte("s:"+long+"1|s"), 0))
	require.Equal(t, []string{"s 16 @1000"}, emitted(s, 1000, 0))
	require.Empty(t, s.read([]byte("s:x|s"), 0))
}

// TestStatsdDoesNotAllocate: what comes for a series that is known costs no memory.
func TestStatsdDoesNotAllocate(t *testing.T) {
	s := newStatsd("", nil)
	lines := [][]byte{
		[]byte("requests.count:1:2|c|@0.5|#env:prod,host:web-1"), []byte("queue:+1.5|g|#env:prod"), []byte("took:12.5|ms|#env:prod"), []byte("users:4711|s"),
	}
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		for _, line := range lines {
			if problem := s.read(line, 0); problem != "" {
				t.Fatal(problem)
			}
		}
	}))
}

// FuzzStatsd: no line crashes, or makes a sample that cannot be sent, and the line may be overwritten.
func FuzzStatsd(f *testing.F) {
	for _, line := range []string{
		"a:1|c", "a:1:2|ms|@0.1|#x:y,z", "a:+1|g", "a:-1|g", "a:x|s", "_e{1,1}:a|b", "_sc|a|0", "a:1|h|T1|c:x", "a:1e308|d", "a:1|c|#:,a:,,b", "a:1|c|@1e-300", "::|||",
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		s := newStatsd("p_", nil)
		reused := slices.Clone(line)
		problem := s.read(reused, 0)
		for i := range reused {
			reused[i] = '#'
		}
		require.Equal(t, problem, newStatsd("", nil).read(slices.Clone(line), 0))
		require.LessOrEqual(t, len(s.texts), 1)
		var b ingest.Batch
		s.emit(1000, 0, &b, func() {})
		for _, r := range b.Reports() {
			for _, m := range r.Measurements {
				require.False(t, math.IsNaN(m.Value) || math.IsInf(m.Value, 0))
				require.True(t, strings.HasPrefix(m.Metric, "p_") && len(m.Metric) > 2)
				require.True(t, slices.Contains(line, '#') || !strings.Contains(fmt.Sprint(m), "#"))
			}
		}
	})
}
