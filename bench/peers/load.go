package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/prompb"
)

const (
	rowRemote  = "remote write, 10,000 series × 60: samples/s"
	rowInflux  = "Influx lines, 50 hosts × 10 fields × 24 h at 10 s: values/s"
	rowHour    = "one series over 1 h at 1 min: ms"
	rowAverage = "avg_over_time(m[1h]) of 10,000 series: ms"
	rowDay     = "one series over 24 h at 10 s: ms"
)

// rows are the rows of the table, in order.
var rows = []struct {
	name, format string
	scale        float64
}{
	{rowRemote, "%.0f", 1},
	{rowInflux, "%.0f", 1},
	{rowHour, "%.2f", 1e3},
	{rowAverage, "%.0f", 1e3},
	{rowDay, "%.1f", 1e3},
	{"remote write: peak memory", "%.0f MB", 1e-6},
	{"Influx lines: peak memory", "%.0f MB", 1e-6},
}

// load is a number of requests, generated beforehand, and the queries that follow.
type load struct {
	name   string
	row    string
	influx bool
	header http.Header
	// byConn are the requests of each connection.
	byConn [][]request
	ask    func(ctx context.Context, s *server, got table) error
}

type request struct {
	body   []byte
	values int
	step   int // position in time
}

// send sends all requests and measures the rate.
func (l *load) send(ctx context.Context, s *server, got table) error {
	path := s.writePath
	if l.influx {
		path = s.influxPath
	}
	// Prometheus refuses samples an hour behind the newest, so no connection may get far ahead.
	at := make([]atomic.Int64, len(l.byConn))
	var sent atomic.Int64
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	began := time.Now()
	for c, requests := range l.byConn {
		all.Go(func() {
			defer at[c].Store(math.MaxInt64)
			for _, r := range requests {
				for slowest(at) < int64(r.step)-20 && failed.Load() == nil {
					time.Sleep(200 * time.Microsecond)
				}
				if err := s.deliver(ctx, path, l.header, r.body); err != nil {
					failed.Store(&err)
					return
				}
				sent.Add(int64(r.values))
				at[c].Store(int64(r.step))
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	got.add(l.row, s.name, float64(sent.Load())/time.Since(began).Seconds())
	return nil
}

func slowest(at []atomic.Int64) int64 {
	least := int64(math.MaxInt64)
	for i := range at {
		least = min(least, at[i].Load())
	}
	return least
}

// deliver sends one request until it is accepted.
func (s *server) deliver(ctx context.Context, path string, h http.Header, b []byte) error {
	for {
		code, body, err := s.post(ctx, path, h, b)
		switch {
		case err != nil:
			return err
		case code/100 == 2:
			return nil
		case code != http.StatusTooManyRequests && code != http.StatusServiceUnavailable:
			return fmt.Errorf("status %d: %.300s", code, body)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// walk returns gauges of two decimals that walk at random.
func walk(rng *rand.Rand, n int) []float64 {
	out := make([]float64, n)
	x := 20 + 60*rng.Float64()
	for i := range out {
		x += rng.NormFloat64()
		out[i] = math.Round(x*100) / 100
	}
	return out
}

// remoteWrite returns one sample a minute of each series, ordered by time, with 2,000 samples per
// request over four connections.
func remoteWrite(series, samples int, end time.Time) load {
	const conns, batch = 4, 2000
	start := end.Add(-time.Duration(samples) * time.Minute)
	rng := rand.New(rand.NewPCG(1, 1))
	values := make([][]float64, series)
	for i := range values {
		values[i] = walk(rng, samples)
	}
	l := load{name: "remote write", row: rowRemote, header: http.Header{
		"Content-Type": {"application/x-protobuf"}, "Content-Encoding": {"snappy"}, "X-Prometheus-Remote-Write-Version": {"0.1.0"},
	}}
	for c := range conns {
		var requests []request
		var w prompb.WriteRequest
		flush := func(step int) {
			if n := len(w.Timeseries); n > 0 {
				raw, err := w.Marshal()
				if err != nil {
					panic(err) // cannot happen here
				}
				requests = append(requests, request{snappy.Encode(nil, raw), n, step})
				w.Timeseries = w.Timeseries[:0]
			}
		}
		for j := range samples {
			for i := c * series / conns; i < (c+1)*series/conns; i++ {
				w.Timeseries = append(w.Timeseries, prompb.TimeSeries{
					Labels: []prompb.Label{
						{Name: "__name__", Value: "m"},
						{Name: "id", Value: fmt.Sprintf("s%06d", i)},
						{Name: "instance", Value: fmt.Sprintf("host-%04d", i/20)},
						{Name: "job", Value: "peers"},
					},
					Samples: []prompb.Sample{{Timestamp: start.Add(time.Duration(j) * time.Minute).UnixMilli(), Value: values[i][j]}},
				})
				if len(w.Timeseries) == batch {
					flush(j)
				}
			}
		}
		flush(samples)
		l.byConn = append(l.byConn, requests)
	}
	l.ask = func(ctx context.Context, s *server, got table) error {
		hour := url.Values{"query": {`m{id="s004242"}`}, "start": {unix(start)}, "end": {unix(end.Add(-time.Second))}, "step": {"60"}, "nocache": {"1"}}
		if series < 4243 {
			hour.Set("query", `m{id="s000000"}`)
		}
		if err := s.timed(ctx, got, rowHour, "/api/v1/query_range?"+hour.Encode(), 100, 1, samples); err != nil {
			return err
		}
		average := url.Values{"query": {`avg_over_time(m[1h])`}, "time": {unix(end.Add(-time.Second))}, "nocache": {"1"}}
		return s.timed(ctx, got, rowAverage, "/api/v1/query?"+average.Encode(), 5, series, series)
	}
	return l
}

// influx returns lines in the shape of the Time Series Benchmark Suite's cpu-only: 10 tags, 10
// fields, 10,000 lines per request, two connections.
func influx(hosts int, span time.Duration, now time.Time) load {
	const conns, batch, fields = 2, 10_000, 10
	names := strings.Fields("usage_user usage_system usage_idle usage_nice usage_iowait usage_irq usage_softirq usage_steal usage_guest usage_guest_nice")
	end := now.Truncate(10 * time.Second)
	start := end.Add(-span)
	steps := int(span / (10 * time.Second))
	l := load{name: "Influx lines", row: rowInflux, influx: true, header: http.Header{"Content-Type": {"text/plain"}}}
	for c := range conns {
		rng := rand.New(rand.NewPCG(2, uint64(c)))
		type host struct {
			tags   string
			values [fields]float64
		}
		var own []host
		for h := c; h < hosts; h += conns {
			x := host{tags: fmt.Sprintf("cpu,hostname=host_%d,region=eu-west-1,datacenter=eu-west-1%c,rack=%d,os=Ubuntu16.04LTS,arch=x64,team=SF,service=%d,service_version=1,service_environment=production ",
				h, 'a'+rune(h%3), rng.IntN(100), rng.IntN(20))}
			for i := range x.values {
				x.values[i] = 100 * rng.Float64()
			}
			own = append(own, x)
		}
		var requests []request
		var body []byte
		lines := 0
		flush := func() {
			if lines > 0 {
				requests = append(requests, request{body: body, values: lines * fields})
				body, lines = nil, 0
			}
		}
		for j := range steps {
			ns := start.Add(time.Duration(j) * 10 * time.Second).UnixNano()
			for i := range own {
				body = append(body, own[i].tags...)
				for f, name := range names {
					v := &own[i].values[f]
					*v = min(100, max(0, *v+rng.NormFloat64()))
					if f > 0 {
						body = append(body, ',')
					}
					body = append(append(body, name...), '=')
					body = append(strconv.AppendInt(body, int64(*v), 10), 'i')
				}
				body = append(strconv.AppendInt(append(body, ' '), ns, 10), '\n')
				if lines++; lines == batch {
					flush()
				}
			}
		}
		flush()
		l.byConn = append(l.byConn, requests)
	}
	l.ask = func(ctx context.Context, s *server, got table) error {
		day := url.Values{
			"query": {`cpu_usage_user{hostname="host_7"}`}, "start": {unix(start)}, "end": {unix(end.Add(-10 * time.Second))}, "step": {"10"}, "nocache": {"1"},
		}
		return s.timed(ctx, got, rowDay, "/api/v1/query_range?"+day.Encode(), 20, 1, steps)
	}
	return l
}

func unix(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }

// timed sends a query n times, and adds the median response time, in seconds. First it waits until
// the response is complete, with the given numbers of series and points.
func (s *server) timed(ctx context.Context, got table, row, path string, n, series, points int) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		err := s.whole(ctx, path, series, points)
		if err == nil {
			break
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	var took []float64
	for range n {
		began := time.Now()
		code, body, err := s.get(ctx, path)
		took = append(took, time.Since(began).Seconds())
		if err != nil {
			return err
		}
		if code != http.StatusOK {
			return fmt.Errorf("%s: status %d: %.300s", path, code, body)
		}
	}
	got.add(row, s.name, median(took))
	return nil
}

func (s *server) whole(ctx context.Context, path string, series, points int) error {
	code, body, err := s.get(ctx, path)
	if err != nil {
		return err
	}
	var answer struct {
		Data struct {
			Result []struct {
				Value  [2]any
				Values [][2]any
			}
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil || code != http.StatusOK {
		return fmt.Errorf("status %d: %.300s", code, body)
	}
	found := 0
	for _, r := range answer.Data.Result {
		found += max(1, len(r.Values))
	}
	if len(answer.Data.Result) != series || found != points {
		return fmt.Errorf("%d series with %d points, want %d with %d", len(answer.Data.Result), found, series, points)
	}
	return nil
}
