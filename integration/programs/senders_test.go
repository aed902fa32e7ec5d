package programs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/debian"
	"github.com/quern/quern/integration/process"
)

var (
	collectd = debian.Program{
		Package: "collectd-core", Path: "/usr/sbin/collectd",
		Needs: []string{"libcurl3-gnutls", "libyajl2"},
	}
	pythonStatsd = debian.Program{Package: "python3-statsd", Path: "/usr/lib/python3/dist-packages/statsd/__init__.py"}
)

// TestAgentSenders has an agent scrape a node exporter, relay what a collectd writes, and take packets of a client for StatsD.
func TestAgentSenders(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	node := exporter(t)
	write(t, filepath.Join(dir, "prometheus.yml"), scrape(node))
	relay, statsd := freePort(t), freePort(t)
	store := serve(t)
	write(t, filepath.Join(dir, "agent.yaml"), fmt.Sprintf(`
url: %s
data-dir: %s
source: web-1
adaptors:
  - {type: scrape, config: %s}
  - {type: http, listen: %q}
  - {type: udp, listen: %q, format: statsd, interval: 1s}
`, store.URL, filepath.Join(dir, "spool"), filepath.Join(dir, "prometheus.yml"), relay, statsd))
	agent := process.Start(t, exec.CommandContext(t.Context(), quern, "agent", "--config", filepath.Join(dir, "agent.yaml")))
	agent.Wrote(`msg=receiving .*address=` + relay)
	agent.Wrote(`msg=receiving .*address=` + statsd)

	plugins := find(t, collectd)
	write(t, filepath.Join(dir, "collectd.conf"), fmt.Sprintf(`
Hostname "box"
Interval 1
BaseDir "%[1]s"
PIDFile "%[1]s/pid"
PluginDir "%[2]s/usr/lib/collectd"
TypesDB "%[2]s/usr/share/collectd/types.db"
LoadPlugin load
LoadPlugin write_http
<Plugin write_http>
  <Node "agent">
    URL "http://%[3]s/api/v1/push/collectd"
    Format "JSON"
    StoreRates false
  </Node>
</Plugin>
`, dir, plugins.Root, relay))
	process.Start(t, plugins.Command(t.Context(), "-f", "-C", filepath.Join(dir, "collectd.conf")))

	library := filepath.Dir(filepath.Dir(find(t, pythonStatsd).Path))
	client := exec.CommandContext(t.Context(), "python3", "-c", `
import statsd
client = statsd.StatsClient(*"`+statsd+`".split(":"), prefix="shop")
for n in range(300):
    client.incr("orders")
    client.timing("took", 20)
client.gauge("stock", 7.5)
`)
	client.Env = append(os.Environ(), "PYTHONPATH="+library)
	out, err := client.CombinedOutput()
	require.NoError(t, err, "%s", out)

	process.Eventually(t, "what all send", func() error {
		stored, err := exported(store)
		if err != nil {
			return err
		}
		newest := map[string]float64{}
		times := map[string]int64{}
		for p, bits := range stored {
			if p.ms >= times[p.series] {
				newest[p.series], times[p.series] = math.Float64frombits(bits), p.ms
			}
		}
		for series, want := range map[string]float64{
			`{__name__="up", instance="` + node + `", job="node"}`: 1,
			`{__name__="shop.orders", source="web-1"}`:             300,
			`{__name__="shop.took_count", source="web-1"}`:         300,
			`{__name__="shop.stock", source="web-1"}`:              7.5,
		} {
			if newest[series] != want {
				return fmt.Errorf("%s is %v, must be %v", series, newest[series], want)
			}
		}
		if _, has := newest[`{__name__="collectd_load_shortterm", instance="box"}`]; !has {
			return fmt.Errorf("no load of collectd among %d series: %v", len(newest), newest)
		}
		return everySeries(t, node, newest)
	})
	agent.Stop()
	require.Contains(t, agent.Stderr.String(), "rejected=0 refused=0 dropped=0")
}

// everySeries returns an error unless each series that an exporter answers is stored.
func everySeries(t *testing.T, exporter string, stored map[string]float64) error {
	text, err := get(t, "http://"+exporter+"/metrics")
	if err != nil {
		return err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return err
	}
	for _, family := range families {
		vector, err := expfmt.ExtractSamples(&expfmt.DecodeOptions{}, family)
		if err != nil {
			return err
		}
		for _, sample := range vector {
			b := labels.NewBuilder(labels.FromStrings("instance", exporter, "job", "node"))
			for name, v := range sample.Metric {
				b.Set(string(name), string(v))
			}
			if number := b.Get("quantile"); number != "" && !strings.Contains(number, ".") {
				b.Set("quantile", number+".0") // as Prometheus' parser writes it
			}
			if _, has := stored[b.Labels().String()]; !has {
				return errors.New("no " + b.Labels().String())
			}
		}
	}
	return nil
}

// freePort returns an address for a program that cannot tell which port it got.
func freePort(t *testing.T) string {
	free, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, free.Close())
	return free.Addr().String()
}

// TestExamples has the agent check the files for Prometheus that come with vmagent.
func TestExamples(t *testing.T) {
	t.Parallel()
	text, err := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "github.com/VictoriaMetrics/VictoriaMetrics@v1.151.0").Output()
	require.NoError(t, err, "%s", text)
	var module struct{ Dir string }
	require.NoError(t, json.Unmarshal(text, &module))
	check := func(file string) (string, error) {
		config := filepath.Join(t.TempDir(), "agent.yaml")
		write(t, config, fmt.Sprintf("url: http://127.0.0.1:9095\ndata-dir: spool\nadaptors:\n  - {type: scrape, config: %q}\n", filepath.Join(module.Dir, file)))
		out, err := exec.CommandContext(t.Context(), quern, "agent", "check", config).CombinedOutput()
		return string(out), err
	}
	for _, file := range []string{
		"deployment/docker/prometheus-vm-single.yml",
		"deployment/docker/prometheus-vm-cluster.yml",
		"deployment/docker/vmanomaly/vmanomaly-integration/prometheus.yml",
		"deployment/marketplace/vultr/victoriametrics-single/etc/victoriametrics/single/scrape.yml",
	} {
		out, err := check(file)
		require.NoError(t, err, "%s", out)
	}
	out, err := check("lib/promscrape/testdata/prometheus.yml")
	require.Error(t, err)
	require.Contains(t, out, "prometheus.yml: line 20: field kubernetes_sd_configs is not supported here")
}
