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

var (
	rowRemote  = rate("remote write, 10,000 series × 60: samples")
	rowInflux  = rate("Influx lines, 50 hosts × 10 fields × 24 h at 10 s: values")
	rowHour    = millis("one series over 1 h at 1 min, not ground")
	rowAverage = millis("avg_over_time(m[1h]) of 10,000 series, not ground")
	rowDay     = millis("one series over 24 h at 10 s, not ground")
)

// load is a number of requests, generated beforehand, and the queries that follow.
type load struct {
	name   string
	row    row
	influx bool
	header http.Header
	// byConn are the requests of each connection.
	byConn [][]request
	ask    func(ctx context.Context, s *server, got *table) error
}

type request struct {
	body   []byte
	values int
}

// values is the number of values in all requests.
func (l *load) values() (n int) {
	for _, requests := range l.byConn {
		for _, r := range requests {
			n += r.values
		}
	}
	return n
}

// send sends all requests and measures the rate.
func (l *load) send(ctx context.Context, s *server, got *table) error {
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
			for i, r := range requests {
				for slowest(at) < int64(i)-20 && failed.Load() == nil {
					time.Sleep(200 * time.Microsecond)
				}
				if err := s.deliver(ctx, path, l.header, r.body); err != nil {
					failed.Store(&err)
					return
				}
				sent.Add(int64(r.values))
				at[c].Store(int64(i))
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

// family is a number of series of one metric, each with a sample every so often.
type family struct {
	metric  string
	series  int
	perHost int // series of a host
	samples int
	every   time.Duration
	counter bool // else a gauge of two decimals
}

// remoteWrite returns requests with the samples of the families up to end, ordered by time, over
// four connections. A request has up to 2,000 samples, and up to per of a series in a row.
func remoteWrite(name string, end time.Time, per int, families ...family) load {
	const conns, batch = 4, 2000
	rng := rand.New(rand.NewPCG(1, 1))
	l := load{name: name, header: http.Header{
		"Content-Type": {"application/x-protobuf"}, "Content-Encoding": {"snappy"}, "X-Prometheus-Remote-Write-Version": {"0.1.0"},
	}, byConn: make([][]request, conns)}
	for _, f := range families {
		values := make([][]float64, f.series)
		for i := range values {
			values[i] = walk(rng, f.samples)
			if f.counter {
				count(values[i])
			}
		}
		start := end.Add(-time.Duration(f.samples) * f.every)
		for c := range conns {
			var w prompb.WriteRequest
			held := 0
			flush := func() {
				if held == 0 {
					return
				}
				raw, err := w.Marshal()
				if err != nil {
					panic(err) // cannot happen here
				}
				l.byConn[c] = append(l.byConn[c], request{snappy.Encode(nil, raw), held})
				w.Timeseries, held = w.Timeseries[:0], 0
			}
			for j := 0; j < f.samples; j += per {
				for i := c * f.series / conns; i < (c+1)*f.series/conns; i++ {
					host := i / f.perHost
					series := prompb.TimeSeries{Labels: []prompb.Label{
						{Name: "__name__", Value: f.metric},
						{Name: "id", Value: fmt.Sprintf("s%06d", i)},
						{Name: "instance", Value: fmt.Sprintf("host-%04d", host)},
						{Name: "job", Value: fmt.Sprintf("job-%d", host%10)},
					}}
					for k := j; k < min(j+per, f.samples); k++ {
						series.Samples = append(series.Samples, prompb.Sample{
							Timestamp: start.Add(time.Duration(k) * f.every).UnixMilli(), Value: values[i][k],
						})
					}
					w.Timeseries = append(w.Timeseries, series)
					if held += len(series.Samples); held+per > batch {
						flush()
					}
				}
			}
			flush()
		}
	}
	return l
}

// count turns gauges into the values of a counter.
func count(values []float64) {
	total := 0.0
	for i, v := range values {
		total += math.Abs(math.Trunc(v))
		values[i] = total
	}
}

// hourOfGauges returns one sample a minute of each series, each in a request with those of others.
func hourOfGauges(series, samples int, end time.Time) load {
	start := end.Add(-time.Duration(samples) * time.Minute)
	l := remoteWrite("remote write", end, 1, family{metric: "m", series: series, perHost: 20, samples: samples, every: time.Minute})
	l.row = rowRemote
	l.ask = func(ctx context.Context, s *server, got *table) error {
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
		var ofConn []host
		for h := c; h < hosts; h += conns {
			x := host{tags: fmt.Sprintf("cpu,hostname=host_%d,region=eu-west-1,datacenter=eu-west-1%c,rack=%d,os=Ubuntu16.04LTS,arch=x64,team=SF,service=%d,service_version=1,service_environment=production ",
				h, 'a'+rune(h%3), rng.IntN(100), rng.IntN(20))}
			for i := range x.values {
				x.values[i] = 100 * rng.Float64()
			}
			ofConn = append(ofConn, x)
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
			for i := range ofConn {
				body = append(body, ofConn[i].tags...)
				for f, name := range names {
					v := &ofConn[i].values[f]
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
	l.ask = func(ctx context.Context, s *server, got *table) error {
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
func (s *server) timed(ctx context.Context, got *table, r row, path string, n, series, points int) error {
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
		if _, err := s.ask(ctx, path); err != nil {
			return err
		}
		took = append(took, time.Since(began).Seconds())
	}
	got.add(r, s.name, median(took))
	return nil
}

func (s *server) whole(ctx context.Context, path string, series, points int) error {
	body, err := s.ask(ctx, path)
	if err != nil {
		return err
	}
	foundSeries, foundPoints, err := contents(body)
	if err == nil && (foundSeries != series || foundPoints != points) {
		err = fmt.Errorf("%d series with %d points, want %d with %d", foundSeries, foundPoints, series, points)
	}
	return err
}

// contents returns the number of series and points of an answer.
func contents(body []byte) (series, points int, err error) {
	var answer struct {
		Data struct {
			Result []struct {
				Value  [2]any
				Values [][2]any
			}
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return 0, 0, fmt.Errorf("%w: %.300s", err, body)
	}
	for _, r := range answer.Data.Result {
		points += max(1, len(r.Values))
	}
	return len(answer.Data.Result), points, nil
}
