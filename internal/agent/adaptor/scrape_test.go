package adaptor

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/prompb"
	dto "github.com/prometheus/prometheus/prompb/io/prometheus/client"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/agent/spool"
	"github.com/quern/quern/internal/agent/targets"
	"github.com/quern/quern/internal/clock"
)

// answer is what a target answers.
type answer struct {
	code   int // 0 is 200
	kind   string
	body   string
	gzip   bool
	silent bool // it never answers
}

// exposed has an answer for each scrape of each host. The last is repeated.
type exposed map[string][]answer

// RoundTrip implements http.RoundTripper.
func (e exposed) RoundTrip(r *http.Request) (*http.Response, error) {
	all := e[r.URL.Host]
	one := all[0]
	if len(all) > 1 {
		e[r.URL.Host] = all[1:]
	}
	if one.silent {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	if one.code == 0 {
		one.code = http.StatusOK
	}
	h := http.Header{}
	if one.kind != "none" {
		h.Set("Content-Type", one.kind)
	}
	if one.kind == "" {
		h.Set("Content-Type", "text/plain; version=0.0.4")
	}
	if one.gzip && r.Header.Get("Accept-Encoding") == "gzip" {
		var zipped bytes.Buffer
		z := gzip.NewWriter(&zipped)
		_, _ = io.WriteString(z, one.body)
		_ = z.Close()
		one.body = zipped.String()
		h.Set("Content-Encoding", "gzip")
	}
	return &http.Response{StatusCode: one.code, Status: fmt.Sprintf("%d status", one.code), Header: h, Body: io.NopCloser(strings.NewReader(one.body)), Request: r}, nil
}

// scraped runs a Scrape of a configuration for a time. It returns what it has sent, a line for each scrape of a target, with its time
// since the first in seconds, and the log.
func scraped(t *testing.T, yml string, e exposed, d time.Duration, meanwhile ...func()) (lines []string, log string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "prometheus.yml")
	require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(yml, "DIR", filepath.Dir(file))), 0o600))
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.Clock = clock.System{}
		s := &Scrape{Config: file}
		require.NoError(t, s.check())
		for _, j := range s.jobs {
			j.HTTPClient = &http.Client{Transport: e}
		}
		for _, f := range meanwhile {
			time.AfterFunc(d/2, f)
		}
		ended(t, s, r.Output, d)
		samples, _ := spooled(t, r.Spool)
		var first, last int64
		for _, one := range samples {
			if one.Metric == "scrape_duration_seconds" {
				continue
			}
			if first == 0 {
				first = one.Time
			}
			if one.Time != last || len(lines) == 0 {
				lines = append(lines, fmt.Sprintf("%d:", (one.Time-first)/1000))
				last = one.Time
			}
			v := fmt.Sprint(one.Value)
			if math.Float64bits(one.Value) == value.StaleNaN {
				v = "stale"
			}
			var labels []string
			for name, text := range one.Labels {
				labels = append(labels, name+"="+text)
			}
			slices.Sort(labels)
			lines[len(lines)-1] += fmt.Sprintf(" %s{%s}=%s", one.Metric, strings.Join(labels, ","), v)
		}
		log = r.log.String()
	})
	return lines, log
}

const oneTarget = `
scrape_configs:
  - job_name: a
    scrape_interval: 10s
    scrape_timeout: 5s
    static_configs: [{targets: ["h:1"]}]
`

// report returns the end of a line: the series of a scrape itself.
func report(up, scraped, kept, added int) string {
	const labels = "{instance=h:1,job=a}"
	return fmt.Sprintf(" up%[1]s=%[2]d scrape_samples_scraped%[1]s=%[3]d scrape_samples_post_metric_relabeling%[1]s=%[4]d scrape_series_added%[1]s=%[5]d",
		labels, up, scraped, kept, added)
}

// TestScrape: each sample has the labels of its target. What is gone ends by a stale marker, once, unless the target itself gave it a time.
func TestScrape(t *testing.T) {
	lines, log := scraped(t, oneTarget, exposed{"h:1": {
		{body: "# HELP m help\n# TYPE m gauge\nm{instance=\"x\",a=\"b\"} 1\nn 2\nat 3 946684800123\n"},
		{body: "m{instance=\"x\",a=\"b\"} 1.5\n", gzip: true},
		{code: 500},
		{code: 500},
		{body: "n 4\n"},
	}}, 50*time.Second)
	const m, n = "m{a=b,exported_instance=x,instance=h:1,job=a}", "n{instance=h:1,job=a}"
	require.Len(t, lines, 7)
	require.Equal(t, "0: "+m+"=1 "+n+"=2", lines[0])
	require.Contains(t, lines[1], " at{instance=h:1,job=a}=3")
	require.Equal(t, []string{
		"0:" + report(1, 3, 3, 3),
		"10: " + m + "=1.5 " + n + "=stale" + report(1, 1, 1, 0),
		"20: " + m + "=stale" + report(0, 0, 0, 0),
		"30:" + report(0, 0, 0, 0),
		"40: " + n + "=4" + report(1, 1, 1, 1),
	}, lines[2:])
	require.Equal(t, 1, strings.Count(log, "a target cannot be scraped"))
	require.Contains(t, log, "http://h:1/metrics")
	require.Contains(t, log, "the answer is 500")
}

// TestScrapeSame: a series is its labels, however the target writes them. An empty answer is one.
func TestScrapeSame(t *testing.T) {
	lines, log := scraped(t, oneTarget+"    metric_relabel_configs: [{regex: pod, action: labeldrop}]\n", exposed{"h:1": {
		{body: "m{pod=\"1\",a=\"x\",b=\"y\"} 1\nn 1\n"},
		{body: "m{pod=\"2\",b=\"y\",a=\"x\"} 2\nn 2\n"},
		{body: "m{pod=\"1\",a=\"x\",b=\"y\"} 3\nm{pod=\"2\",a=\"x\",b=\"y\"} 4\nn 0x1p\n"},
		{},
	}}, 40*time.Second)
	const m, n = "m{a=x,b=y,instance=h:1,job=a}", "n{instance=h:1,job=a}"
	require.Equal(t, []string{
		"0: " + m + "=1 " + n + "=1" + report(1, 2, 2, 2),
		"10: " + m + "=2 " + n + "=2" + report(1, 2, 2, 0),
		"20: " + m + "=stale " + n + "=stale" + report(0, 2, 2, 0),
		"30:" + report(1, 0, 0, 0),
	}, lines)
	require.Contains(t, log, "the first counts")
	require.Contains(t, log, "a target cannot be scraped")
}

// TestScrapeReturns: what a target had before it failed is not new, and ends only once, also if it does not return.
func TestScrapeReturns(t *testing.T) {
	lines, _ := scraped(t, oneTarget, exposed{"h:1": {
		{body: "m 1\nn 1\n"},
		{code: 500},
		{code: 500},
		{body: "m 2\n"},
		{},
		{body: "m 3\n"},
		{body: "# nothing\n"},
		{body: "m 4\n"},
	}}, 80*time.Second)
	const m, n = "m{instance=h:1,job=a}", "n{instance=h:1,job=a}"
	require.Equal(t, []string{
		"0: " + m + "=1 " + n + "=1" + report(1, 2, 2, 2),
		"10: " + m + "=stale " + n + "=stale" + report(0, 0, 0, 0),
		"20:" + report(0, 0, 0, 0),
		"30: " + m + "=2" + report(1, 1, 1, 0),
		"40: " + m + "=stale" + report(1, 0, 0, 0),
		"50: " + m + "=3" + report(1, 1, 1, 0),
		"60: " + m + "=stale" + report(1, 0, 0, 0),
		"70: " + m + "=4" + report(1, 1, 1, 1),
	}, lines)
}

// TestScrapeTimes: whether a series ends by a stale marker depends on its first sample in the last scrape that did not fail.
func TestScrapeTimes(t *testing.T) {
	lines, _ := scraped(t, oneTarget, exposed{"h:1": {
		{body: "m 1\nm 2 946684800123\nn 1\n"},
		{body: "m 1 946684800123\nn 1\n!bad\n"},
		{body: "m 1 946684800123\nm 2\n"},
		{code: 500},
	}}, 40*time.Second)
	const m, n = "m{instance=h:1,job=a}", "n{instance=h:1,job=a}"
	all := strings.Join(lines, "\n")
	require.Contains(t, all, "\n10: "+m+"=stale "+n+"=stale")
	require.Contains(t, all, "\n30:"+report(0, 0, 0, 0))

	lines, _ = scraped(t, oneTarget, exposed{"h:1": {{body: "m 1\n"}, {body: "m 1 946684800123\n"}, {code: 500}}}, 30*time.Second)
	require.Contains(t, lines, "20:"+report(0, 0, 0, 0), "the same series has times now")
}

// TestScrapeSameLabels: when one of two targets with the same labels goes, the other's series go on.
func TestScrapeSameLabels(t *testing.T) {
	targets := filepath.Join(t.TempDir(), "targets.json")
	require.NoError(t, os.WriteFile(targets, []byte(`[{"targets": ["h:1", "h:2"], "labels": {"instance": "x"}}]`), 0o600))
	lines, _ := scraped(t, `
scrape_configs:
  - job_name: a
    scrape_interval: 20s
    file_sd_configs: [{files: [`+targets+`], refresh_interval: 1s}]
`, exposed{"h:1": {{body: "m 1\n"}}, "h:2": {{body: "m 2\n"}}}, 100*time.Second, func() {
		require.NoError(t, os.WriteFile(targets, []byte(`[{"targets": ["h:2"], "labels": {"instance": "x"}}]`), 0o600))
	})
	all := strings.Join(lines, "\n")
	require.Contains(t, all, "80: m{instance=x,job=a}=2")
	require.NotContains(t, all, "stale")
}

// TestScrapeKnownLine: a line whose series is known is refused for what a new one is refused for.
func TestScrapeKnownLine(t *testing.T) {
	for _, bad := range []string{"0x1p-2", "1_0", "", "1 2 3"} {
		lines, log := scraped(t, oneTarget, exposed{"h:1": {{body: "n 1\n"}, {body: "n " + bad + "\n"}}}, 20*time.Second)
		require.Equal(t, []string{
			"0: n{instance=h:1,job=a}=1" + report(1, 1, 1, 1),
			"10: n{instance=h:1,job=a}=stale" + report(0, 0, 0, 0),
		}, lines, bad)
		require.Contains(t, log, "a target cannot be scraped")
	}
}

// TestScrapeLate: a scrape that takes the whole interval does not take the next one's turn.
func TestScrapeLate(t *testing.T) {
	lines, _ := scraped(t, strings.ReplaceAll(oneTarget, "5s", "10s"), exposed{"h:1": {{silent: true}}}, 55*time.Second)
	require.Equal(t, []string{"0:" + report(0, 0, 0, 0), "10:" + report(0, 0, 0, 0), "20:" + report(0, 0, 0, 0), "30:" + report(0, 0, 0, 0)}, lines[:4])
}

// TestScrapeLarge: what a large answer brings is cut into chunks that a server takes.
func TestScrapeLarge(t *testing.T) {
	r := newRig(t)
	s := &Scrape{out: r.Output}
	p := &page{}
	for range 100_000 {
		p.add([]byte(strings.Repeat("l", 40)), 1, 1)
	}
	s.put(p)
	s.flush()
	chunks, _, err := r.Spool.Next(t.Context(), spool.Position{}, math.MaxInt)
	require.NoError(t, err)
	total := 0
	for _, c := range chunks {
		require.Less(t, c.Samples, 25_000)
		total += c.Samples
	}
	require.Equal(t, 100_000, total)
}

// TestScrapeFormats: the formats of Prometheus bring the same.
func TestScrapeFormats(t *testing.T) {
	family := &dto.MetricFamily{Name: "m", Type: dto.MetricType_GAUGE, Metric: []dto.Metric{{Gauge: &dto.Gauge{Value: 7}}}}
	message, err := family.Marshal()
	require.NoError(t, err)
	for _, one := range []answer{
		{body: "m 7\n"},
		{kind: "application/openmetrics-text; version=1.0.0", body: "# TYPE m gauge\nm 7\n# EOF\n"},
		{kind: "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited", body: string(binary.AppendUvarint(nil, uint64(len(message)))) + string(message)},
	} {
		lines, log := scraped(t, oneTarget, exposed{"h:1": {one}}, 10*time.Second)
		require.Equal(t, []string{"0: m{instance=h:1,job=a}=7" + report(1, 1, 1, 1)}, lines)
		require.Empty(t, log)
	}
}

// TestScrapeBad: a target that answers nonsense is named with the reason, and is down. Its neighbour is not.
func TestScrapeBad(t *testing.T) {
	const limits = `
scrape_configs:
  - job_name: a
    scrape_interval: 10s
    scrape_timeout: 5s
    body_size_limit: 100B
    sample_limit: 3
    label_limit: 3
    label_name_length_limit: 10
    label_value_length_limit: 10
    static_configs: [{targets: ["h:1", "good:1"]}]
    metric_relabel_configs: [{source_labels: [__name__], regex: drop_name, target_label: __name__, replacement: ""}]
`
	for want, one := range map[string]answer{
		"has no name": {body: "drop_name 1\n"},
		"no whole answer within the scrape_timeout of 5s": {silent: true},
		"Content-Type":       {kind: "text/html", body: "<html>"},
		"blank Content-Type": {kind: "none", body: "m 1\n"},
		"the answer is 404":  {code: 404},
		"100 bytes":          {body: strings.Repeat("m 1\n", 26)},
		"invalid syntax":     {body: "a 1\nm what\n"},
		"4 samples, more than 3, the sample_limit": {body: "a 1\nb 1\nc 1\nd 1\n"},
		"the label_limit":                          {body: "a{b=\"c\"} 1\n"},
		"label_name_length_limit":                  {body: "a{bbbbbbbbbbb=\"c\"} 1\n"},
		"label_value_length_limit":                 {body: "a{b=\"ccccccccccc\"} 1\n"},
		"has a series twice; the fi":               {body: "a 1\na 2\n"},
	} {
		t.Run(want, func(t *testing.T) {
			lines, log := scraped(t, limits, exposed{"h:1": {one}, "good:1": {{body: "m 1\n"}}}, 20*time.Second)
			all := strings.Join(lines, "\n")
			up := 0
			if strings.Contains(want, "sample_limit") {
				require.Contains(t, all, report(0, 4, 4, 4), "what there was, so that one sees by how much to raise it")
			}
			if strings.Contains(want, "twice") {
				up = 1
				require.Contains(t, all, " a{instance=h:1,job=a}=1 ")
			}
			require.Contains(t, all, fmt.Sprintf(" up{instance=h:1,job=a}=%d", up))
			require.NotContains(t, all, fmt.Sprintf(" up{instance=h:1,job=a}=%d", 1-up))
			require.Equal(t, 2, strings.Count(all, " m{instance=good:1,job=a}=1"))
			require.Equal(t, 2, strings.Count(all, " up{instance=good:1,job=a}=1"))
			require.Equal(t, 1, strings.Count(log, "level=WARN"), log)
			require.Contains(t, log, want)
			require.Contains(t, log, "http://h:1/metrics")
		})
	}
}

// TestScrapeSettings: relabeling, honor_labels, external labels, and a target that is not discovered any more.
func TestScrapeSettings(t *testing.T) {
	targets := filepath.Join(t.TempDir(), "targets.json")
	require.NoError(t, os.WriteFile(targets, []byte(`[{"targets": ["h:1"], "labels": {"a": "t", "exported_a": "t"}}]`), 0o600))
	lines, log := scraped(t, `
global: {external_labels: {site: s, zone: z}}
scrape_configs:
  - job_name: a
    scrape_interval: 10s
    honor_labels: true
    honor_timestamps: false
    file_sd_configs: [{files: [`+targets+`], refresh_interval: 10s}]
    metric_relabel_configs:
      - {source_labels: [__name__], regex: n, action: drop}
      - {regex: tmp, action: labeldrop}
`, exposed{"h:1": {{body: "m{instance=\"x\",job=\"\",zone=\"y\",tmp=\"1\"} 1 5\nn 1\n"}}}, 44*time.Second, func() {
		require.NoError(t, os.WriteFile(targets, []byte(`[]`), 0o600))
	})
	const m = "m{a=t,exported_a=t,instance=x,site=s,zone=y}"
	with := func(report string) string {
		return strings.ReplaceAll(strings.ReplaceAll(report, "job=a}", "job=a,site=s,zone=z}"), "{", "{a=t,exported_a=t,")
	}
	require.NotEmpty(t, lines, log)
	require.Equal(t, "0: "+m+"=1"+with(report(1, 2, 1, 1)), lines[0])
	last := lines[len(lines)-1]
	require.Contains(t, last, m+"=stale up{a=t,exported_a=t,instance=h:1,job=a,site=s,zone=z}=stale")
	require.Equal(t, 5, strings.Count(last, "stale"), "of all but the duration, which is not here")
	require.Empty(t, log)
}

// TestRelabelHidden: a label that its target's hides gets a name that nobody has.
func TestRelabelHidden(t *testing.T) {
	one := targets.Target{Labels: labels.FromStrings("a", "t", "exported_a", "t")}
	encoded, err := new(Scrape).newTarget(one, &targets.Job{}).relabel(labels.FromStrings("__name__", "m", "a", "x"))
	require.NoError(t, err)
	var got prompb.TimeSeries
	require.NoError(t, got.Unmarshal(encoded))
	require.Equal(t, []prompb.Label{{Name: "__name__", Value: "m"}, {Name: "a", Value: "t"}, {Name: "exported_a", Value: "t"}, {Name: "exported_exported_a", Value: "x"}}, got.Labels)
}

// TestScrapeReload: an adaptor begins anew when its file has changed, and only then.
func TestScrapeReload(t *testing.T) {
	file := filepath.Join(t.TempDir(), "prometheus.yml")
	text := func(yml string) string {
		require.NoError(t, os.WriteFile(file, []byte(yml), 0o600))
		all, err := list("adaptors: [{type: scrape, config: " + file + "}]")
		require.NoError(t, err)
		return all[0].Text
	}
	before := text(oneTarget)
	require.Equal(t, before, text(oneTarget))
	require.NotEqual(t, text(oneTarget), text(strings.ReplaceAll(oneTarget, "h:1", "h:2")))
	require.NoError(t, os.WriteFile(file, []byte("scrape_configs:\n  - job_name: a\n    kubernetes_sd_configs: []\n"), 0o600))
	_, err := list("adaptors:\n  - {type: scrape, config: " + file + "}")
	require.ErrorContains(t, err, "a.yaml, line 2: scrape: config: "+file)
	require.ErrorContains(t, err, "line 3: field kubernetes_sd_configs is not supported")
	_, err = list("adaptors: [{type: scrape}]")
	require.ErrorContains(t, err, "a.yaml, line 1: scrape: config: must be the path")
}

// BenchmarkScrape scrapes a target of 1,000 series, whose answers have other values each time, into a spool on the disk.
func BenchmarkScrape(b *testing.B) {
	var answers []answer
	for n := range 16 {
		var text strings.Builder
		for i := range 1000 {
			if i%20 == 0 {
				fmt.Fprintf(&text, "# HELP app_metric_%[1]d_total What it counts.\n# TYPE app_metric_%[1]d_total counter\n", i/20)
			}
			fmt.Fprintf(&text, "app_metric_%d_total{device=\"dev-%d\",mode=\"mode-%d\",path=\"/var/lib/something/%d\"} %d\n", i/20, i%5, i%4, i%20, (n+1)*i)
		}
		answers = append(answers, answer{body: text.String()})
	}
	file := filepath.Join(b.TempDir(), "prometheus.yml")
	require.NoError(b, os.WriteFile(file, []byte(oneTarget), 0o600))
	kept, err := spool.Open(b.TempDir(), spool.Options{Clock: clock.System{}, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(b, err)
	defer kept.Close()
	s := &Scrape{Config: file, out: NewOutput(kept, clock.System{}, slog.New(slog.DiscardHandler), "web-1")}
	require.NoError(b, s.check())
	one := targets.Target{URL: "http://h:1/metrics", Timeout: time.Minute}
	n := 0
	s.jobs[0].HTTPClient = &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		n++
		return exposed{"h:1": answers[n%len(answers):]}.RoundTrip(r)
	})}
	t := s.newTarget(one, s.jobs[0])
	b.ReportAllocs()
	for i := range b.N {
		t.scrape(b.Context(), begin.UnixMilli()+int64(i)*15_000)
	}
	b.ReportMetric(1000*float64(b.N)/b.Elapsed().Seconds(), "samples/s")
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
