package targets

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/quern/quern/internal/clock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func write(t *testing.T, path, text string) string {
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// TestRefused: each mistake has its line.
func TestRefused(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"keys", `
global:
  scrape_intervall: 5s
  scrape_timeout: 20s
scrape_config: []
scrape_config_files: [more.yml]
rule_files: [rules.yml]
`, `FILE: line 3: field scrape_intervall is not supported here
FILE: line 5: field scrape_config is not supported here
FILE: line 6: field scrape_config_files is not supported here
`},
		{"keys of another section", `
evaluation_interval: 1m
scrape_native_histograms: false
global:
  job_name: a
  static_configs: []
  honor_labels: true
  native_histogram_bucket_limit: 3
scrape_configs:
  - job_name: b
    external_labels: {a: b}
    evaluation_interval: 1m
    alerting: {}
`, `FILE: line 2: field evaluation_interval is not supported here
FILE: line 3: field scrape_native_histograms is not supported here
FILE: line 5: field job_name is not supported here
FILE: line 6: field static_configs is not supported here
FILE: line 7: field honor_labels is not supported here
FILE: line 8: field native_histogram_bucket_limit is not supported here
FILE: line 11: field external_labels is not supported here
FILE: line 12: field evaluation_interval is not supported here
FILE: line 13: field alerting is not supported here
`},
		{"protocols", `
global:
  scrape_protocols: []
scrape_configs:
  - {job_name: a, scrape_protocols: []}
  - {job_name: b, scrape_protocols: [Morse]}
  - {job_name: c, scrape_protocols: [PrometheusText1.0.0], fallback_scrape_protocol: text}
`, `FILE: line 3: global: scrape_protocols: []: must be of PROTOCOLS
FILE: line 5: job a: scrape_protocols: []: must be of PROTOCOLS
FILE: line 6: job b: scrape_protocols: ["Morse"]: must be of PROTOCOLS
FILE: line 7: job c: fallback_scrape_protocol: ["text"]: must be of PROTOCOLS
`},
		{"not supported", `
scrape_configs:
  - job_name: pods
    kubernetes_sd_configs:
      - role: pod
    relabel_configs:
      - sourc_labels: [a]
        target_label: b
    honor_labels: perhaps
`, `FILE: line 4: field kubernetes_sd_configs is not supported here
FILE: line 7: field sourc_labels is not supported here
FILE: line 9: cannot unmarshal !!str ` + "`perhaps`" + ` into bool
`},
		{"values", `
scrape_configs:
  - job_name: a
    metrics_path: /x
    scrape_interval: often
    scheme: http
  - [job]
  - job_name: b
    relabel_configs: [{regex: (}]
  - {job_name: b, honor_labels: true, honor_labels: true}
  - {job_name: c, body_size_limit: 5 stones, scrape_interval: never}
`, `FILE: line 5: not a valid duration string: "often"
FILE: line 7: cannot unmarshal !!seq into targets.job
FILE: line 9: error parsing regexp: missing closing ): ` + "`^(?s:()$`" + `
FILE: line 10: mapping key "honor_labels" already defined at line 10
FILE: line 11: units: unknown unit  stones in 5 stones
FILE: line 11: not a valid duration string: "never"
`},
		{"values beside others", `
global: {scrape_timeout: 2m}
scrape_configs:
  - {job_name: a, scrape_interval: 5s, scrape_timeout: 6s}
  - {job_name: a}
  - {job_name: b, basic_auth: {username: u}, bearer_token: t}
  - job_name: c
    relabel_configs:
      - {action: hashmod, target_label: x}
  - {job_name: d, metric_relabel_configs: [null]}
  - {job_name: e, http_sd_configs: [null]}
  - {job_name: f, tls_config: {ca_file: /none.pem}}
`, `FILE: line 2: global: scrape_timeout: 2m is longer than scrape_interval, 1m
FILE: line 4: job a: scrape_timeout: 6s is longer than scrape_interval, 5s
FILE: line 5: job a: job_name: each job must have its own
FILE: line 6: job b: at most one of basic_auth, oauth2, bearer_token & bearer_token_file must be configured
FILE: line 7: job c: relabel configuration for hashmod requires non-zero modulus
FILE: line 10: job d: relabel action cannot be empty
FILE: line 11: job e: a discovery is empty
FILE: line 12: job f: unable to read CA cert: unable to read file /none.pem: open /none.pem: no such file or directory
`},
		{"discovery", `
scrape_configs:
  - {job_name: a, file_sd_configs: [{}]}
  - {job_name: b, dns_sd_configs: [{names: [x], type: TXT}]}
  - {job_name: c, dns_sd_configs: [{names: [x], type: A}]}
  - {job_name: d, dns_sd_configs: [{names: [x], type: MX, port: 1}]}
  - {job_name: e, http_sd_configs: [{url: x.example}]}
`, `FILE: line 3: files, names, url "": there must be one, and the url be complete
FILE: line 4: type "TXT", port 0: must be SRV, or A or AAAA with a port
FILE: line 5: type "A", port 0: must be SRV, or A or AAAA with a port
FILE: line 6: type "MX", port 1: must be SRV, or A or AAAA with a port
FILE: line 7: files, names, url "x.example": there must be one, and the url be complete
`},
		{"no YAML", "a: [", "FILE: yaml: line 1: did not find expected node content\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := write(t, filepath.Join(t.TempDir(), "prometheus.yml"), c.text)
			_, _, err := Read(file, []byte(c.text))
			protocols := "OpenMetricsText0.0.1, OpenMetricsText1.0.0, PrometheusProto, PrometheusText0.0.4, PrometheusText1.0.0"
			require.Equal(t, c.want, strings.NewReplacer(file, "FILE", protocols, "PROTOCOLS").Replace(err.Error())+"\n")
		})
	}
}

func read(t *testing.T, dir, text string) []*Job {
	jobs, _, err := Read(filepath.Join(dir, "prometheus.yml"), []byte(text))
	require.NoError(t, err)
	return jobs
}

// TestIgnored: settings that would change what is stored are named.
func TestIgnored(t *testing.T) {
	_, ignored, err := Read("prometheus.yml", []byte(`
global:
  evaluation_interval: 15s
  query_log_file: queries.log
  scrape_native_histograms: true
  metric_name_escaping_scheme: underscores
  metric_name_validation_scheme: UTF8
  always_scrape_classic_histograms: true
runtime: {gogc: 75}
alerting: {alertmanagers: [{static_configs: [{targets: []}]}]}
rule_files: []
remote_write: [{url: "http://a"}]
remote_read: [{url: "http://a"}]
storage: {tsdb: {out_of_order_time_window: 1h}}
tracing: {endpoint: a}
otlp: {}
scrape_configs:
  - job_name: a
    convert_classic_histograms_to_nhcb: true
    metric_name_validation_scheme: legacy
    extra_scrape_metrics: true
    scrape_classic_histograms: true
    native_histogram_bucket_limit: 3
    keep_dropped_targets: 3
    scrape_failure_log_file: failures.log
    track_timestamps_staleness: true
    enable_compression: false
  - job_name: b
    scrape_native_histograms: false
    convert_classic_histograms_to_nhcb: false
    extra_scrape_metrics: false
    metric_name_escaping_scheme: allow-utf-8
`))
	require.NoError(t, err)
	require.Equal(t, []string{
		"line 5: scrape_native_histograms: true", "line 6: metric_name_escaping_scheme: underscores", "line 19: convert_classic_histograms_to_nhcb: true",
		"line 20: metric_name_validation_scheme: legacy", "line 21: extra_scrape_metrics: true", "line 26: track_timestamps_staleness: true",
	}, ignored)
}

// TestDefaults are those of Prometheus, then those of global. Paths begin where the file is.
func TestDefaults(t *testing.T) {
	t.Setenv("DATACENTER", "ams")
	dir := t.TempDir()
	jobs := read(t, dir, `
global:
  scrape_interval: 5s
  sample_limit: 7
  body_size_limit: 1MB
  target_limit: 2
  label_limit: 3
  label_name_length_limit: 4
  label_value_length_limit: 5
  external_labels: {dc: $DATACENTER, price: $$3}
scrape_configs:
  - job_name: a
    bearer_token_file: token
    file_sd_configs: [{files: ["x/*.yml", /y.json]}]
    http_sd_configs: [{url: "http://a", tls_config: {ca_file: ca.pem}, refresh_interval: 3s}]
    dns_sd_configs: [{names: [n]}]
  - {job_name: b, scrape_interval: 1m, body_size_limit: 2MB, honor_timestamps: false, sample_limit: 8, scrape_protocols: [PrometheusProto]}
  - job_name: c
    scrape_interval: 2s
    scrape_timeout: 0s
    body_size_limit: 0
    sample_limit: 0
    target_limit: 0
    label_limit: 0
    label_name_length_limit: 0
    label_value_length_limit: 0
`)
	a, b := jobs[0], jobs[1]
	require.Equal(t, `{dc="ams", price="$3"}`, a.External.String())
	require.Equal(t, "5s 5s 1m 5s 2s", fmt.Sprint(a.Interval, a.Timeout, b.Interval, b.Timeout, jobs[2].Timeout))
	require.True(t, a.HonorTimestamps && a.Client.FollowRedirects && a.HTTP[0].Client.FollowRedirects && !b.HonorTimestamps)
	require.Equal(t, []string{"OpenMetricsText1.0.0", "OpenMetricsText0.0.1", "PrometheusText1.0.0", "PrometheusText0.0.4", "PrometheusProto"}, append(a.Protocols, b.Protocols[0]))
	require.Equal(t, "1MiB 7 2 3 4 5", limits(a))
	require.Equal(t, "2MiB 8 2 3 4 5", limits(b))
	require.Equal(t, "1MiB 7 2 3 4 5", limits(jobs[2]), "zero is that of global")
	require.Equal(t, []string{filepath.Join(dir, "x/*.yml"), "/y.json", filepath.Join(dir, "token"), filepath.Join(dir, "ca.pem")},
		append(a.Files[0].Files, a.Client.Authorization.CredentialsFile, a.HTTP[0].Client.TLSConfig.CAFile))
	require.Equal(t, "30s 3s 30s", fmt.Sprint(a.Files[0].Refresh, a.HTTP[0].Refresh, a.DNS[0].Refresh))
	a = read(t, dir, "scrape_configs: [{job_name: a, fallback_scrape_protocol: PrometheusText0.0.4}]")[0]
	require.Equal(t, "1m 10s PrometheusText0.0.4", fmt.Sprint(a.Interval, " ", a.Timeout, " ", a.FallbackProtocol))
	a = read(t, dir, "global: {scrape_protocols: [PrometheusProto]}\nscrape_configs: [{job_name: a}]")[0]
	require.Equal(t, []string{"PrometheusProto"}, a.Protocols)
}

func limits(j *Job) string {
	return fmt.Sprint(j.BodySizeLimit, j.SampleLimit, j.TargetLimit, j.LabelLimit, j.LabelNameLengthLimit, j.LabelValueLengthLimit)
}

// found is a job that is discovered, on a clock that the test moves.
type found struct {
	clock.Simulated
	slept    time.Duration
	asleep   chan time.Duration
	awake    chan struct{}
	targets  chan []string
	warnings strings.Builder // to be read while the job sleeps
}

func (f *found) Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
	case f.asleep <- d:
		select {
		case <-ctx.Done():
		case <-f.awake:
			f.Set(f.Now().Add(d))
		}
	}
	return ctx.Err()
}

// look has the job look, and returns what it found until it slept, or what is given if it found nothing.
func (f *found) look(unchanged ...string) []string {
	if f.slept > 0 {
		f.awake <- struct{}{}
	}
	select {
	case unchanged = <-f.targets:
		f.slept = <-f.asleep
	case f.slept = <-f.asleep:
	}
	return unchanged
}

func discover(t *testing.T, j *Job) *found {
	f := &found{asleep: make(chan time.Duration), awake: make(chan struct{}), targets: make(chan []string)}
	go func() {
		warn := func(message string, args ...any) { fmt.Fprintln(&f.warnings, append([]any{message}, args...)...) }
		j.Discover(t.Context(), f, warn, func(targets []Target) {
			lines := []string{}
			for _, f := range targets {
				line := fmt.Sprint(f.URL, " ", f.Labels, " ", f.Interval, " ", f.Timeout)
				if f.Refused {
					line += " refused"
				}
				lines = append(lines, line)
			}
			select {
			case <-t.Context().Done():
			case f.targets <- lines:
			}
		})
	}()
	return f
}

func TestRelabel(t *testing.T) {
	f := discover(t, read(t, t.TempDir(), `
scrape_configs:
  - job_name: node
    scheme: https
    metrics_path: /probe
    params: {module: [http, icmp], debug: ["1"]}
    static_configs:
      - targets: [a:1, "b:2", "c:3", a:1, "http://d:4/"]
        labels: {team: x, __secret: y, job: "", __metrics_path__: "", __scrape_interval__: ""}
      - targets: ["[::1]:5"]
        labels: {instance: six, job: other, __scrape_interval__: 30s, __scrape_timeout__: 3s, __metrics_path__: /x}
      - targets: ["late:1"]
        labels: {__scrape_timeout__: 2m}
    relabel_configs:
      - {source_labels: [__address__], regex: "c:.*", action: drop}
      - {source_labels: [__address__], regex: "b:(.*)", target_label: __param_module, replacement: tcp$1}
      - {source_labels: [__address__], regex: "b:(.*)", target_label: __param_target, replacement: "b&"}
      - {source_labels: [__secret], target_label: shown.utf8}
`)[0])
	require.Equal(t, []string{
		`https://a:1/probe?debug=1&module=http&module=icmp {instance="a:1", job="node", "shown.utf8"="y", team="x"} 1m0s 10s`,
		`https://b:2/probe?debug=1&module=tcp2&module=icmp&target=b%26 {instance="b:2", job="node", "shown.utf8"="y", team="x"} 1m0s 10s`,
		`https://[::1]:5/x?debug=1&module=http&module=icmp {instance="six", job="other"} 30s 3s`,
	}, <-f.targets)
	require.Contains(t, f.warnings.String(), `address "http://d:4/" must be HOST:PORT`)
	require.Contains(t, f.warnings.String(), `timeout "2m" must be above zero, and at most interval "1m"`)
}

// TestFiles: a damaged file keeps its targets, one that is removed does not, and a job with too many targets has all, but refuses them.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one.json"), filepath.Join(dir, "two.yml")
	write(t, one, `[{"targets": ["a:1"], "labels": {"x": "y"}}]`)
	write(t, two, "- targets: [b:1]\n")
	f := discover(t, read(t, dir, `
scrape_configs:
  - job_name: j
    target_limit: 2
    file_sd_configs: [{files: ["*.json", two.yml], refresh_interval: 7s}]
    relabel_configs: [{source_labels: [__meta_filepath], regex: ".*/(.*)", target_label: file}]
`)[0])
	a := `http://a:1/metrics {file="one.json", instance="a:1", job="j", x="y"} 1m0s 10s`
	b := `http://b:1/metrics {file="two.yml", instance="b:1", job="j"} 1m0s 10s`
	require.Equal(t, []string{a, b, "7s"}, append(f.look(), f.slept.String()))
	write(t, one, `[{"targets": ["`)
	require.Equal(t, []string{"unchanged"}, f.look("unchanged"))
	require.Contains(t, f.warnings.String(), "one.json err unexpected end of JSON input")
	require.NoError(t, os.Remove(two))
	require.Equal(t, []string{a}, f.look())
	write(t, two, "- targets: [b:1, b:2]\n")
	require.Equal(t, []string{a + " refused", b + " refused", strings.ReplaceAll(b, "b:1", "b:2") + " refused"}, f.look("unchanged"))
	require.Contains(t, f.warnings.String(), "more targets than target_limit")
	write(t, two, "- targets: [b:1]\n")
	require.Equal(t, []string{a, b}, f.look())
	write(t, two, "- targets: [b:1]\n  lables: {}\n")
	require.Equal(t, []string{"unchanged"}, f.look("unchanged"))
	require.Contains(t, f.warnings.String(), "field lables not found")
	require.NoError(t, os.Remove(two))
	require.Equal(t, []string{a}, f.look())
	write(t, two, "- lables: {}\n")
	require.Equal(t, []string{"unchanged"}, f.look("unchanged"), "it has not the targets from before it was removed")
	write(t, two, "- targets: [b:1]\n")
	require.Equal(t, []string{a, b}, f.look())
	write(t, two, "# none\n")
	require.Equal(t, []string{a}, f.look())
}

// TestIntervals: each discovery looks when its own interval is over.
func TestIntervals(t *testing.T) {
	dir := t.TempDir()
	f := discover(t, read(t, dir, `
scrape_configs:
  - job_name: j
    file_sd_configs: [{files: [often.yml], refresh_interval: 7s}, {files: [seldom.yml], refresh_interval: 10s}]
`)[0])
	require.Equal(t, []string{"7s"}, append(f.look(), f.slept.String()))
	write(t, filepath.Join(dir, "often.yml"), "- targets: [often:1]\n")
	write(t, filepath.Join(dir, "seldom.yml"), "- targets: [seldom:1]\n")
	often, seldom := `http://often:1/metrics {instance="often:1", job="j"} 1m0s 10s`, `http://seldom:1/metrics {instance="seldom:1", job="j"} 1m0s 10s`
	require.Equal(t, []string{often, "3s"}, append(f.look(), f.slept.String()))
	require.Equal(t, []string{often, seldom, "4s"}, append(f.look(), f.slept.String()))
}

// TestHTTP: what the server says once stays until it says something else.
func TestHTTP(t *testing.T) {
	status, text := http.StatusInternalServerError, "[]" // while the job sleeps
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if r.Header.Get("X-Prometheus-Refresh-Interval-Seconds") == "90" && user+password == "up" {
			w.WriteHeader(status)
			_, _ = fmt.Fprint(w, text)
		}
	}))
	defer server.Close()
	f := discover(t, read(t, t.TempDir(), `
scrape_configs:
  - job_name: j
    http_sd_configs: [{url: "`+server.URL+`", refresh_interval: 90s, basic_auth: {username: u, password: p}}]
    relabel_configs: [{source_labels: [__meta_url], target_label: from}]
`)[0])
	require.Equal(t, []string{}, f.look("unchanged"))
	require.Contains(t, f.warnings.String(), "500 Internal Server Error")
	status, text = http.StatusOK, `[{"targets": ["a:1"]}, null]`
	require.Equal(t, []string{`http://a:1/metrics {from="` + server.URL + `", instance="a:1", job="j"} 1m0s 10s`}, f.look())
	text = "<html>"
	require.Equal(t, []string{"unchanged"}, f.look("unchanged"))
	require.Contains(t, f.warnings.String(), "invalid character '<'")
	text = `[{"targets": []}]`
	require.Equal(t, []string{}, f.look("unchanged"))
}

func TestDNS(t *testing.T) {
	records := map[dnsmessage.Type][]dnsmessage.ResourceBody{
		dnsmessage.TypeA:    {&dnsmessage.AResource{A: [4]byte{10, 0, 0, 1}}},
		dnsmessage.TypeAAAA: {&dnsmessage.AAAAResource{AAAA: [16]byte{15: 1}}},
		dnsmessage.TypeSRV:  {&dnsmessage.SRVResource{Port: 80, Target: dnsmessage.MustNewName("web.test.")}},
	}
	server, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	require.NoError(t, err)
	defer server.Close()
	go func() {
		packet := make([]byte, 4096)
		for {
			n, from, err := server.ReadFrom(packet)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			_ = m.Unpack(packet[:n])
			question := m.Questions[0]
			reply := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true}, Questions: m.Questions}
			reply.RCode = map[string]dnsmessage.RCode{"none.test.": dnsmessage.RCodeNameError, "down.test.": dnsmessage.RCodeServerFailure}[question.Name.String()]
			for _, body := range records[question.Type] {
				if reply.RCode == dnsmessage.RCodeSuccess {
					reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: question.Name, Class: question.Class}, Body: body})
				}
			}
			packed, _ := reply.Pack()
			_, _ = server.WriteTo(packed, from)
		}
	}()
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
	for kind, want := range map[string]string{
		"SRV":  `http://web.test:80/metrics {instance="web.test:80", job="j", name="x.test.", record_port="80", record_target="web.test."}`,
		"a":    `http://10.0.0.1:9/metrics {instance="10.0.0.1:9", job="j", name="x.test."}`,
		"AAAA": `http://[::1]:9/metrics {instance="[::1]:9", job="j", name="x.test."}`,
	} {
		t.Run(kind, func(t *testing.T) {
			j := read(t, t.TempDir(), `
scrape_configs:
  - job_name: j
    dns_sd_configs: [{names: [x.test., none.test., down.test.], port: 9, type: `+kind+`}]
    relabel_configs: [{regex: "__meta_dns_(?:`+strings.ToLower(kind)+`_)?(.*)", action: labelmap}]
`)[0]
			j.DNS[0].resolver = resolver
			f := discover(t, j)
			require.Equal(t, []string{want + " 1m0s 10s"}, f.look())
			require.Contains(t, f.warnings.String(), "down.test.")
			require.NotContains(t, f.warnings.String(), "none.test.")
		})
	}
}
