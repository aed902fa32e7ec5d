package app

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/app/engine"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/graphite"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/pebble"
)

// protocols send one sample of a series that has the name a_b and the given labels. Labels with an empty value go where
// the protocol can express them.
var protocols = map[string]func(t *testing.T, to *everyProtocol, labels []metric.Label){
	"remote write 1.0": func(t *testing.T, to *everyProtocol, labels []metric.Label) {
		var series string
		for _, l := range append(labels, metric.Label{Name: metric.NameLabel, Value: "a_b"}) {
			series += apitest.Proto(1, apitest.Proto(1, l.Name), apitest.Proto(2, l.Value))
		}
		body := apitest.Proto(1, series, apitest.Proto(2, to.sample()))
		to.post(t, "/api/v1/write", apitest.Compressed(t, "snappy", []byte(body)))
	},
	"remote write 2.0": func(t *testing.T, to *everyProtocol, labels []metric.Label) {
		symbols, refs := apitest.Proto(4, ""), []byte(nil)
		for i, l := range append(labels, metric.Label{Name: metric.NameLabel, Value: "a_b"}) {
			symbols += apitest.Proto(4, l.Name) + apitest.Proto(4, l.Value)
			refs = protowire.AppendVarint(protowire.AppendVarint(refs, uint64(2*i+1)), uint64(2*i+2))
		}
		body := symbols + apitest.Proto(5, apitest.Proto(1, string(refs)), apitest.Proto(2, to.sample()))
		to.post(t, "/api/v1/write", apitest.Compressed(t, "snappy", []byte(body)), "Content-Type", "application/x-protobuf;proto=io.prometheus.write.v2.Request")
	},
	"influx": func(t *testing.T, to *everyProtocol, labels []metric.Label) {
		to.post(t, "/write?precision=ms", fmt.Appendf(nil, "a%s b=1 %d\n", tags(labels, ","), to.nowMs))
	},
	"otlp": func(t *testing.T, to *everyProtocol, labels []metric.Label) {
		resource, point := []any{}, []any{}
		for _, l := range labels {
			attribute := map[string]any{"key": l.Name, "value": map[string]string{"stringValue": l.Value}}
			if l.Name == "host_name" { // as the collector's hostmetrics receiver sends it
				attribute["key"] = "host.name"
				resource = append(resource, attribute)
			} else {
				point = append(point, attribute)
			}
		}
		body, err := json.Marshal(map[string]any{"resourceMetrics": []any{map[string]any{
			"resource": map[string]any{"attributes": resource},
			"scopeMetrics": []any{map[string]any{"metrics": []any{map[string]any{
				"name": "a.b", "gauge": map[string]any{"dataPoints": []any{map[string]any{
					"timeUnixNano": fmt.Sprint(to.nowMs * 1e6), "asDouble": 1, "attributes": point,
				}}},
			}}}},
		}}})
		require.NoError(t, err)
		to.post(t, "/v1/metrics", body, "Content-Type", "application/json")
	},
	"graphite": func(t *testing.T, to *everyProtocol, labels []metric.Label) {
		_, err := fmt.Fprintf(to.lines, "a_b%s 1 %d\n", tags(labels, ";"), to.nowMs/1000)
		require.NoError(t, err)
	},
	"import": func(t *testing.T, to *everyProtocol, labels []metric.Label) {
		line := map[string]string{metric.NameLabel: "a_b"}
		for _, l := range labels {
			line[l.Name] = l.Value
		}
		body, err := json.Marshal(map[string]any{"metric": line, "values": []int{1}, "timestamps": []int64{to.nowMs}})
		require.NoError(t, err)
		to.post(t, "/api/v1/import", body)
	},
}

// tags returns labels as tags, each after a separator. There are none with an empty value.
func tags(labels []metric.Label, separator string) string {
	var sb strings.Builder
	for _, l := range labels {
		if l.Value != "" {
			sb.WriteString(separator + l.Name + "=" + l.Value)
		}
	}
	return sb.String()
}

// everyProtocol is a server of all protocols over one store.
type everyProtocol struct {
	http  *api.Server
	lines net.Conn
	nowMs int64
	close func()

	mu     sync.Mutex
	series []string // in order of their registration
}

func serveEveryProtocol(t *testing.T) *everyProtocol {
	clk := clock.NewSimulated(time.UnixMilli(1_763_726_400_000))
	to := &everyProtocol{nowMs: clock.NowMs(clk)}
	st, err := pebble.Open("quern", pebble.Options{Policy: config.Policy{}.New, Clock: clk, FS: vfs.NewMem(), Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	policy := st.Settings().Policy
	e := engine.New(engine.Options{Store: st, Clock: clk, Policy: policy, Writer: 1})
	e.Start(t.Context(), registry.Options{OnNew: func(all []storage.Schedule) {
		to.mu.Lock()
		defer to.mu.Unlock()
		for _, s := range all {
			if s.Labels.Get(metric.NameLabel) != "target_info" {
				to.series = append(to.series, s.Labels.String())
			}
		}
	}}, ingest.Options{})
	opts := apitest.Options(t)
	opts.Clock, opts.Appender, opts.BackFiller, opts.Sources = clk, e.Ingest, e.Ingest, policy.SourceLabels
	opts.OTLPPromote = []string{"host.name"}
	to.http, err = api.New(opts)
	require.NoError(t, err)
	lines := graphite.New(t.Context(), e.Ingest, clock.System{}, graphite.Options{Sources: policy.SourceLabels, Logger: slog.New(slog.DiscardHandler)})
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- lines.Serve(l) }()
	to.lines, err = new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
	require.NoError(t, err)
	to.close = func() {
		// The server has taken all lines when it closes the connection in turn.
		require.NoError(t, to.lines.(*net.TCPConn).CloseWrite())
		_, err := io.ReadAll(to.lines)
		require.NoError(t, err)
		require.NoError(t, to.lines.Close())
		require.NoError(t, lines.Shutdown(t.Context()))
		require.NoError(t, <-served)
		require.NoError(t, e.Drain())
		require.NoError(t, e.Close())
	}
	return to
}

// sample is a sample of remote write.
func (to *everyProtocol) sample() string {
	b := protowire.AppendFixed64(protowire.AppendTag(nil, 1, protowire.Fixed64Type), 0x3ff0000000000000)
	return string(protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), uint64(to.nowMs)))
}

func (to *everyProtocol) post(t *testing.T, path string, body []byte, headers ...string) {
	t.Helper()
	w := apitest.Send(t, to.http, path, strings.NewReader(string(body)), headers...)
	require.Contains(t, []int{http.StatusOK, http.StatusNoContent}, w.Code, "%s: %s", path, w.Body)
}

// TestOneIDWhateverTheProtocol: equal series have one id, whatever protocol they come by.
func TestOneIDWhateverTheProtocol(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	rng := rand.New(rand.NewPCG(seed, seed))
	names := []string{
		"host", "instance", "hostname", "host_name", "node", "k8s_node_name", "pod", "server", "job", metric.SourceLabel, "zone", "cpu",
	}
	to := serveEveryProtocol(t)
	sent := map[string]bool{}
	for range 60 {
		labels := []metric.Label{{Name: "n", Value: fmt.Sprint(rng.Uint64())}}
		for _, i := range rng.Perm(len(names))[:rng.IntN(len(names))] {
			l := metric.Label{Name: names[i], Value: fmt.Sprint("v", rng.IntN(5))}
			if rng.IntN(5) == 0 {
				l.Value = ""
			}
			labels = append(labels, l)
		}
		for _, send := range protocols { // in any order
			rng.Shuffle(len(labels), func(i, j int) { labels[i], labels[j] = labels[j], labels[i] })
			send(t, to, labels[:len(labels):len(labels)])
		}
		series, err := metric.NewLabels(append(labels, metric.Label{Name: metric.NameLabel, Value: "a_b"})...)
		require.NoError(t, err)
		sent[series.String()] = true
	}
	// collectd has labels of its own.
	to.post(t, "/api/v1/push/collectd", fmt.Appendf(nil,
		`[{"values":[1],"dstypes":["gauge"],"dsnames":["value"],"time":%d,"interval":10,"host":"h1","plugin":"p","plugin_instance":"0","type":"q","type_instance":"idle"}]`,
		to.nowMs/1000))
	to.post(t, "/api/v1/import", fmt.Appendf(nil,
		`{"metric":{"__name__":"collectd_p_q","instance":"h1","p":"0","type":"idle"},"values":[1],"timestamps":[%d]}`, to.nowMs))
	sent[`collectd_p_q{instance="h1",p="0",type="idle"}`] = true
	to.close()
	registered := map[string]bool{}
	for _, s := range to.series {
		require.False(t, registered[s], "%s has two ids", s)
		registered[s] = true
	}
	require.Equal(t, sent, registered)
}

// TestUsualLabelsNameTheMachine: the default list finds what reports in the labels that the usual agents send.
func TestUsualLabelsNameTheMachine(t *testing.T) {
	policy, err := config.Policy{}.New(metric.DefaultLadder())
	require.NoError(t, err)
	for labels, want := range map[string]string{
		"instance=db-1:9100 job=node cpu=0":               "db-1:9100", // Prometheus
		"host=web-1 cpu=cpu0":                             "web-1",     // Telegraf
		"host=PC1 instance=_Total objectname=Processor":   "PC1",       // Telegraf on Windows: the instance is a part
		"host=web-1 instance=0 type=idle type_instance=x": "web-1",     // collectd through Telegraf
		"instance=web-1 cpu=0 type=idle":                  "web-1",     // collectd's write_http
		"host_name=pc1 device=sda":                        "pc1",       // OpenTelemetry's hostmetrics
		"instance=627cc493 job=shop/cart host_name=pc1":   "627cc493",  // OpenTelemetry's SDKs
		"k8s_node_name=n1 k8s_pod_name=p":                 "n1",        // OpenTelemetry in Kubernetes
		"node=n1 pod=p namespace=x":                       "n1",        // kube-state-metrics without a scrape's labels
		"job=batch":                                       "batch",     // a Pushgateway
		"server=rack1 dc=x":                               "rack1",     // Graphite
		"zone=a":                                          "",
	} {
		var ls []metric.Label
		for pair := range strings.FieldsSeq(labels) {
			name, value, _ := strings.Cut(pair, "=")
			ls = append(ls, metric.Label{Name: name, Value: value})
		}
		source, derived, _ := policy.SourceLabels.SourceOf(ls)
		require.True(t, derived)
		require.Equal(t, want, source, labels)
	}
}
