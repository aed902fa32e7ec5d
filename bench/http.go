package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/registry"
)

const (
	// Throughput: gateways that each send for many sources, and wait for each reply before they
	// send again.
	fewGateways    = 4
	manyGateways   = 16
	sourcesPerBody = 100
	httpRate       = 250_000

	// Latency: many sources that each send for themselves, whether or not earlier requests were
	// answered.
	latencyRate    = httpRate / 2
	latencySenders = 400
	sourcesEach    = 3
)

func httpMeasurement() measurement {
	return measurement{
		name: "ingest-http",
		steps: []step{
			{name: "few", run: func(ctx context.Context, b *bench) error { return measureHTTP(ctx, b, fewGateways) }},
			{name: "many", run: func(ctx context.Context, b *bench) error { return measureHTTP(ctx, b, manyGateways) }},
		},
		rows: func(r results) []row {
			f := r["ingest-http"]
			what := func(gateways int) string {
				return fmt.Sprintf("ingest, HTTP JSON, %d connections, client included", gateways)
			}
			return []row{
				atLeast(what(fewGateways), f["few.rate"], httpRate, " samples/s"),
				atLeast(what(manyGateways), f["many.rate"], httpRate, " samples/s"),
				peakMemory(what(manyGateways), f, "many", 0),
			}
		},
	}
}

func latencyMeasurement() measurement {
	return measurement{
		name:  "latency-http",
		steps: []step{{name: "run", run: measureLatency}},
		rows: func(r results) []row {
			f := r["latency-http"]
			what := fmt.Sprintf("acknowledgement at %s samples/s", count(latencyRate))
			return []row{
				atMost(what+", p99", f["run.p99"], 0.25, milliseconds),
				info(what+", p50, max", milliseconds(f["run.p50"])+", "+milliseconds(f["run.max"])),
			}
		},
	}
}

// server is an engine with a label index, behind HTTP on a loopback port.
type server struct {
	*measured
	http   *http.Server
	client *http.Client
	url    string
}

func openServer(ctx context.Context, b *bench, connections int) (*server, error) {
	e, err := openEngineWith(ctx, b, clock.System{}, registry.Options{OnNew: query.NewIndex().Add})
	if err != nil {
		return nil, err
	}
	handler, err := api.New(api.Options{
		Clock: clock.System{}, Logger: slog.New(slog.NewTextHandler(b.stderr, nil)), Appender: e.Ingest,
		Sources: metric.SourceLabels{"host", "instance"},
	})
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	s := &server{
		measured: e, http: handler.HTTPServer(),
		client: &http.Client{Transport: &http.Transport{MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections}},
		url:    "http://" + l.Addr().String() + "/api/v1/reports",
	}
	go func() {
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			b.progress("%v", err)
		}
	}()
	return s, nil
}

func (s *server) close(ctx context.Context) error {
	s.client.CloseIdleConnections()
	return errors.Join(s.http.Shutdown(ctx), s.measured.Close())
}

// post sends a body. It returns an error unless all measurements are accepted.
func (s *server) post(ctx context.Context, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := s.client.Do(req)
	if err != nil {
		return err
	}
	reply, err := io.ReadAll(res.Body)
	if err := errors.Join(err, res.Body.Close()); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK || !bytes.Contains(reply, []byte(`"rejected":[]`)) {
		return fmt.Errorf("%s: %s", res.Status, reply)
	}
	return nil
}

// body holds the reports of some sources as JSON. Times and values keep their lengths, so that the
// next reports are written in place. The client shares the processors with what is measured, so it
// must cost little.
type body struct {
	fleet *fleet
	json  []byte
	times []int // where each measurement's time begins
	vals  []int
}

func newBody(f *fleet) *body {
	b := &body{fleet: f}
	ms := measurementsOf()
	out := []byte("[")
	for i, source := range f.names {
		if i > 0 {
			out = append(out, ',')
		}
		out = fmt.Appendf(out, `{"source":%q,"measurements":[`, source)
		for j, m := range ms {
			if j > 0 {
				out = append(out, ',')
			}
			out = fmt.Appendf(out, `{"metric":%q,"labels":{%q:%q},"time":`, m.Metric, m.Labels[0].Name, m.Labels[0].Value)
			b.times = append(b.times, len(out))
			out = append(out, `0000000000000,"value":`...)
			b.vals = append(b.vals, len(out))
			out = append(out, `00.00}`...)
		}
		out = append(out, "]}"...)
	}
	out = append(out, ']')
	b.json = out
	return b
}

// next returns the sources' next reports.
func (b *body) next(at time.Time) []byte {
	stamp := strconv.AppendInt(nil, at.UnixMilli(), 10)
	for i := range b.times {
		copy(b.json[b.times[i]:], stamp)
		cents := b.fleet.next(i/perSource, i%perSource)
		v := b.json[b.vals[i] : b.vals[i]+5]
		v[0], v[1] = byte('0'+cents/1000), byte('0'+cents/100%10)
		v[3], v[4] = byte('0'+cents/10%10), byte('0'+cents%10)
	}
	return b.json
}

func measureHTTP(ctx context.Context, b *bench, gateways int) (err error) {
	s, err := openServer(ctx, b, gateways)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()

	bodies := make([]*body, gateways)
	var register errgroup.Group
	for i := range bodies {
		bodies[i] = newBody(newFleet(i*sourcesPerBody, sourcesPerBody))
		register.Go(func() error { return s.post(ctx, bodies[i].next(time.Now())) })
	}
	if err := register.Wait(); err != nil {
		return err
	}

	length := b.scaledTime(10 * time.Second)
	b.progress("%v over %d connections, %d sources a body", length, gateways, sourcesPerBody)
	var accepted atomic.Int64
	took, err := b.timed(func() error {
		start := time.Now()
		var senders errgroup.Group
		for _, body := range bodies {
			senders.Go(func() error {
				for time.Since(start) < length {
					if err := s.post(ctx, body.next(time.Now())); err != nil {
						return err
					}
					accepted.Add(int64(len(body.times)))
				}
				return nil
			})
		}
		return senders.Wait()
	})
	b.figures["rate"] = float64(accepted.Load()) / took.Seconds()
	return err
}

// measureLatency sends reports at fixed times and measures from those times. So a report that had
// to wait for an earlier one does not count as fast.
func measureLatency(ctx context.Context, b *bench) (err error) {
	s, err := openServer(ctx, b, latencySenders)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()

	bodies := make([][]*body, latencySenders)
	var register errgroup.Group
	register.SetLimit(32)
	for i := range bodies {
		for j := range sourcesEach {
			bodies[i] = append(bodies[i], newBody(newFleet(i*sourcesEach+j, 1)))
		}
		register.Go(func() error {
			for _, body := range bodies[i] {
				if err := s.post(ctx, body.next(time.Now())); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := register.Wait(); err != nil {
		return err
	}

	length := b.scaledTime(20 * time.Second)
	every := time.Second * perSource / latencyRate
	b.progress("%v of a report of %d samples every %v", length, perSource, every)
	took := make([]time.Duration, int(length/every))
	var next atomic.Int64
	_, err = b.timed(func() error {
		start := time.Now()
		var senders errgroup.Group
		for i := range bodies {
			senders.Go(func() error {
				for n := 0; ; n++ {
					turn := int(next.Add(1)) - 1
					if turn >= len(took) {
						return nil
					}
					due := start.Add(time.Duration(turn) * every)
					time.Sleep(time.Until(due))
					if err := s.post(ctx, bodies[i][n%sourcesEach].next(time.Now())); err != nil {
						return err
					}
					took[turn] = time.Since(due)
				}
			})
		}
		return senders.Wait()
	})
	slices.Sort(took)
	b.figures["p50"] = took[len(took)/2].Seconds()
	b.figures["p99"] = took[len(took)*99/100].Seconds()
	b.figures["max"] = took[len(took)-1].Seconds()
	return err
}
