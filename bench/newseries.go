package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/prompb"
	"golang.org/x/sync/errgroup"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

const (
	// newPerSource are the new series of a source, and newPerRequest those of a request.
	newPerSource, newPerRequest = 20, 2000
	// newRate is how many new series a second a server should take; over Cassandra newRateCluster.
	newRate, newRateCluster = 100_000, 10_000
	newAtMost               = 1.0 // seconds, for 99 of 100 requests
	newOfCluster            = 100_000
)

// newcomers is a number of new series, and how they are sent.
type newcomers struct {
	series, connections int
	path                string
	header              http.Header
	body                func(sources []int, timeMs int64) []byte
}

var (
	remoteWriteHeader = http.Header{
		"Content-Type": {"application/x-protobuf"}, "Content-Encoding": {"snappy"}, "X-Prometheus-Remote-Write-Version": {"0.1.0"},
	}
	newcomersMeasured = []newcomers{
		{100_000, 1, "/api/v1/write", remoteWriteHeader, remoteWriteOf},
		{100_000, 4, "/api/v1/write", remoteWriteHeader, remoteWriteOf},
		{300_000, 1, "/api/v1/write", remoteWriteHeader, remoteWriteOf},
		{300_000, 4, "/api/v1/write", remoteWriteHeader, remoteWriteOf},
		{1_000_000, 4, "/api/v1/write", remoteWriteHeader, remoteWriteOf},
		{300_000, 4, "/write?precision=ms", http.Header{"Content-Type": {"text/plain"}}, linesOf},
	}
)

func (n *newcomers) step() string {
	protocol := "rw"
	if strings.HasPrefix(n.path, "/write") {
		protocol = "lines"
	}
	return fmt.Sprintf("%s-%d-%d", protocol, n.series, n.connections)
}

func (n *newcomers) what() string {
	protocol := "remote write"
	if strings.HasPrefix(n.path, "/write") {
		protocol = "Influx lines"
	}
	return fmt.Sprintf("%s new series, %s, connections: %d, client included", count(float64(n.series)), protocol, n.connections)
}

// newSeriesMeasurement registers series that the store does not know, and sends two samples of each.
func newSeriesMeasurement() measurement {
	m := measurement{name: "new-series"}
	for i := range newcomersMeasured {
		n := &newcomersMeasured[i]
		m.steps = append(m.steps, step{name: n.step(), run: n.measure})
	}
	m.rows = func(r results) (rows []row) {
		f := r["new-series"]
		for i := range newcomersMeasured {
			n := &newcomersMeasured[i]
			rows = append(rows,
				atLeast(n.what(), f[n.step()+".rate"], newRate, " series/s"),
				atMost(n.what()+", p99 of requests", f[n.step()+".p99"], newAtMost, milliseconds),
				peakMemory(n.what(), f, n.step(), 0))
		}
		return rows
	}
	return m
}

func (n *newcomers) measure(ctx context.Context, b *bench) (err error) {
	s, err := openServer(ctx, b, n.connections)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	series := b.scaled(n.series, newPerRequest*n.connections)
	startMs := time.Now().Add(-time.Minute).UnixMilli()
	bodies := make([][][]byte, n.connections) // the first half has the new series
	const each = newPerRequest / newPerSource
	for c := range bodies {
		for _, timeMs := range []int64{startMs, startMs + 30_000} {
			for from := c * each; from*newPerSource < series; from += n.connections * each {
				sources := make([]int, each)
				for i := range sources {
					sources[i] = from + i
				}
				bodies[c] = append(bodies[c], n.body(sources, timeMs))
			}
		}
	}
	b.progress("%d new series over %d connections", series, n.connections)
	var mu sync.Mutex
	var seconds []float64
	took, err := b.timed(func() error {
		var senders errgroup.Group
		for _, requests := range bodies {
			senders.Go(func() error {
				for i, body := range requests {
					began := time.Now()
					if err := s.send(ctx, n.path, n.header, body); err != nil {
						return err
					}
					if i < len(requests)/2 {
						mu.Lock()
						seconds = append(seconds, time.Since(began).Seconds())
						mu.Unlock()
					}
				}
				return nil
			})
		}
		return senders.Wait()
	})
	if err != nil {
		return err
	}
	slices.Sort(seconds)
	b.figures["rate"] = float64(series) / took.Seconds()
	b.figures["p99"] = seconds[len(seconds)*99/100]
	return nil
}

// send posts a body to an endpoint.
func (s *server) send(ctx context.Context, path string, header http.Header, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(s.url, "/api/v1/reports")+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header = header
	res, err := s.client.Do(req)
	if err != nil {
		return err
	}
	reply, err := io.ReadAll(res.Body)
	if err := errors.Join(err, res.Body.Close()); err != nil {
		return err
	}
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("%s: %s", res.Status, reply)
	}
	return nil
}

func remoteWriteOf(sources []int, timeMs int64) []byte {
	var w prompb.WriteRequest
	for _, source := range sources {
		for i := range newPerSource {
			w.Timeseries = append(w.Timeseries, prompb.TimeSeries{
				Labels: []prompb.Label{
					{Name: "__name__", Value: "m"},
					{Name: "id", Value: fmt.Sprintf("s%07d", source*newPerSource+i)},
					{Name: "instance", Value: sourceName(source)},
					{Name: "job", Value: "bench"},
				},
				Samples: []prompb.Sample{{Timestamp: timeMs, Value: float64(i)}},
			})
		}
	}
	raw, err := w.Marshal()
	if err != nil {
		panic(err) // cannot happen here
	}
	return snappy.Encode(nil, raw)
}

func linesOf(sources []int, timeMs int64) (out []byte) {
	for _, source := range sources {
		for i := range newPerSource {
			out = fmt.Appendf(out, "m,host=%s,id=s%07d value=%d %d\n", sourceName(source), source*newPerSource+i, i, timeMs)
		}
	}
	return out
}

// newSeriesOfClusterMeasurement registers series over Cassandra, through the Go entry.
func newSeriesOfClusterMeasurement() measurement {
	const callers = 4
	return measurement{
		name: "new-series",
		steps: []step{{name: "run", run: func(ctx context.Context, b *bench) (err error) {
			if err := applySchema(ctx, b, blockSize); err != nil {
				return err
			}
			e, err := openEngine(ctx, b, clock.System{})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, e.Close()) }()
			series := b.scaled(newOfCluster, callers*newPerRequest)
			b.progress("%d new series", series)
			took, err := b.timed(func() error { return registerAll(ctx, e, series, callers) })
			b.figures["rate"] = float64(series) / took.Seconds()
			return err
		}}},
		rows: func(r results) []row {
			return []row{atLeast(fmt.Sprintf("new series, %d callers", callers), r["new-series"]["run.rate"], newRateCluster, " series/s")}
		},
	}
}

// registerAll has callers append one sample of each of so many series.
func registerAll(ctx context.Context, e *measured, series, callers int) error {
	var running errgroup.Group
	nowMs := time.Now().UnixMilli()
	const each = newPerRequest / newPerSource
	for c := range callers {
		running.Go(func() error {
			for from := c * each; from*newPerSource < series; from += callers * each {
				reports := make([]ingest.Report, each)
				for i := range reports {
					reports[i] = ingest.Report{Source: sourceName(from + i)}
					for j := range newPerSource {
						reports[i].Measurements = append(reports[i].Measurements, ingest.Measurement{
							Metric: "m", Labels: []metric.Label{{Name: "id", Value: fmt.Sprintf("s%02d", j)}}, TimeMs: nowMs, Value: float64(j),
						})
					}
				}
				if err := appendAll(ctx, e.Ingest, reports); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return running.Wait()
}
