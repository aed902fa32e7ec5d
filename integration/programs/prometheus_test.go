package programs

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/debian"
	"github.com/quern/quern/integration/process"
)

var (
	nodeExporter = debian.Program{Package: "prometheus-node-exporter", Path: "/usr/bin/prometheus-node-exporter"}
	prometheus   = debian.Program{Package: "prometheus", Path: "/usr/bin/prometheus"}
)

// scrapes is the number of scrapes, one a second.
const scrapes = 12

// listening waits until a Prometheus program logs its address, and returns it.
func listening(p *process.Process) string {
	return p.Wrote(`msg="Listening on" address=(\S+)`)[1]
}

// scrape returns a configuration for Prometheus and vmagent to scrape the targets, if any.
func scrape(targets string) string {
	return fmt.Sprintf(`scrape_configs:
- job_name: node
  scrape_interval: 1s
  static_configs: [{targets: [%s]}]
`, targets)
}

// exporter starts a node exporter without the collectors that this host may lack.
func exporter(t *testing.T) string {
	t.Helper()
	args := []string{"--web.listen-address=127.0.0.1:0", "--no-collector.systemd", "--no-collector.textfile"}
	if *recordTo != "" {
		// A small recording, with nothing about the host that made it.
		args = []string{args[0], "--collector.disable-defaults", "--collector.loadavg", "--collector.cpu"}
	}
	return listening(start(t, nodeExporter, args...))
}

// remoteWritten returns the points in the accepted requests, decoded by Prometheus' own decoder.
func (r *recorder) remoteWritten(t *testing.T) points {
	t.Helper()
	out := points{}
	for _, req := range r.all() {
		for _, ts := range writeRequest(t, req).Timeseries {
			m := map[string]string{}
			for _, l := range ts.Labels {
				m[l.Name] = l.Value
			}
			for _, s := range ts.Samples {
				out.add(labels.FromMap(m), s.Timestamp, s.Value)
			}
		}
	}
	return out
}

func writeRequest(t *testing.T, req request) *prompb.WriteRequest {
	t.Helper()
	body, err := snappy.Decode(nil, req.body)
	require.NoError(t, err)
	var w prompb.WriteRequest
	require.NoError(t, w.Unmarshal(body))
	return &w
}

// TestPrometheus makes Prometheus scrape a node exporter until the exporter is removed, so that
// every series ends with a stale marker.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	p := serve(t)
	front := record(t, p)
	node := exporter(t)

	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yml")
	remote := fmt.Sprintf(`remote_write:
- url: %s/api/v1/write
  metadata_config: {send_interval: 2s}
`, front.URL)
	write(t, file, remote+scrape(node))
	prom := start(t, prometheus, "--config.file="+file, "--storage.tsdb.path="+dir, "--web.listen-address=127.0.0.1:0")
	at := "http://" + listening(prom)

	process.Eventually(t, "scrapes", func() error {
		m, err := promQuery(t, at, `count_over_time(up{job="node"}[5m]) >= `+fmt.Sprint(scrapes))
		if err == nil && len(m) == 0 {
			err = errors.New("fewer than that")
		}
		return err
	})
	write(t, file, remote+scrape(""))
	prom.Signal(syscall.SIGHUP)
	process.Eventually(t, "the end of all series", func() error {
		m, err := promQuery(t, at, `up`)
		if err == nil && len(m) > 0 {
			err = errors.New("there still are some")
		}
		return err
	})

	stored := storedAll(t, p, func() (int, error) {
		in, err := counted(t, at, "prometheus_remote_storage_samples_in_total")
		if err != nil {
			return 0, err
		}
		sent, err := counted(t, at, "prometheus_remote_storage_samples_total")
		if err == nil && in != sent {
			err = fmt.Errorf("%v of %v samples were sent", sent, in)
		}
		return int(sent), err
	})
	lost, err := counted(t, at, "prometheus_remote_storage_samples_failed_total", "prometheus_remote_storage_samples_dropped_total",
		"prometheus_remote_storage_samples_retried_total", "prometheus_remote_storage_metadata_failed_total")
	require.NoError(t, err)
	assert.Zero(t, lost)
	requireSame(t, front.remoteWritten(t), stored)

	// Both return all samples except the stale markers.
	held, err := promQuery(t, at, `{__name__!=""}[10m]`)
	require.NoError(t, err)
	require.NoError(t, stored.missing(held), "stored, of what Prometheus has")
	answered, err := promQuery(t, p.URL, `{__name__!=""}[10m]`)
	require.NoError(t, err)
	requireSame(t, held, answered)
	ended := 0
	for k, v := range stored {
		if _, ok := held[k]; !ok {
			require.Equal(t, value.StaleNaN, v, "%s at %d is stored, and Prometheus has no such sample", k.series, k.ms)
			ended++
		}
	}
	assert.Greater(t, ended, 50, "stale markers")

	front.keep(t, "prometheus-2.42.snappy", func(r request) bool { return len(writeRequest(t, r).Timeseries) > 0 })
	front.keep(t, "prometheus-2.42-metadata.snappy", func(r request) bool { return len(writeRequest(t, r).Metadata) > 0 })
	prom.Stop()
	ground(t, p)
}

// promQuery queries Prometheus' HTTP API for samples.
func promQuery(t *testing.T, at, expr string) (points, error) {
	body, err := get(t, at+"/api/v1/query?"+url.Values{"query": {expr}}.Encode())
	if err != nil {
		return nil, err
	}
	var reply struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  *model.SamplePair
				Values []model.SamplePair
			}
		}
	}
	if err := json.Unmarshal(body, &reply); err != nil {
		return nil, err
	}
	out := points{}
	for _, series := range reply.Data.Result {
		if series.Value != nil {
			series.Values = append(series.Values, *series.Value)
		}
		for _, v := range series.Values {
			out.add(labels.FromMap(series.Metric), int64(v.Timestamp), float64(v.Value))
		}
	}
	return out, nil
}
