package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	lsm "github.com/cockroachdb/pebble/v2"
)

// set is data that Quern and VictoriaMetrics hold at the same time, and queries that each of them
// answers in turn. All of it is at rest: Quern has ground it and packed its raw samples, and
// VictoriaMetrics has flushed it.
type set struct {
	load    load
	disk    string // name of the rows for bytes, "" for none
	queries []query
}

// query is a query with other hosts and times in each repeat, so that no answer is known from
// before.
type query struct {
	name string
	n    int
	// requests returns the requests of a repeat. They are sent one after the other.
	requests func(i int) []string
}

// warmUps is the number of repeats that do not count.
const warmUps = 3

func measureReads(ctx context.Context, opts options, found []peer, got *table, stderr io.Writer) error {
	named := func(name string) int { return slices.IndexFunc(found, func(p peer) bool { return p.name == name }) }
	q, v := named("Quern"), named("VictoriaMetrics")
	if q < 0 || v < 0 {
		fmt.Fprintln(stderr, "no reads: they need both Quern and VictoriaMetrics")
		return nil
	}
	faulty, err := buildQuern(ctx, opts.dir, "faults")
	if err != nil {
		return err
	}
	end := time.Now().Truncate(time.Hour)
	for _, prepare := range []func() (set, error){
		func() (set, error) { return suite(ctx, opts, end.Add(-time.Hour)) },
		func() (set, error) { return hour(opts, end), nil },
		func() (set, error) { return week(end), nil },
	} {
		s, err := prepare()
		if err != nil {
			return err
		}
		// Quern takes a week of past samples only if it is told to.
		quern := found[q]
		quern.args = func(dir, address string) []string {
			return append(found[q].args(dir, address), "--age-cap=240h", "--retention=raw=30d,1h=90d,6h=1y,24h=5y")
		}
		later := quern
		later.path, later.env = faulty, []string{"QUERN_CLOCK_OFFSET=2h"}
		if err := s.measure(ctx, opts, quern, later, found[v], got, stderr); err != nil {
			return fmt.Errorf("%s: %w", s.load.name, err)
		}
	}
	return nil
}

// measure loads both servers, brings them to rest, and queries them in turn. later is Quern with a
// clock that is ahead, so that the run is due that grinds late data.
func (t set) measure(ctx context.Context, opts options, quern, later, victoria peer, got *table, stderr io.Writer) (err error) {
	place, err := os.MkdirTemp(opts.dir, "reads-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(place)) }()
	quernDir, victoriaDir := filepath.Join(place, "quern"), filepath.Join(place, "victoria")

	fmt.Fprintf(stderr, "%s: loading\n", t.load.name)
	ignored := new(table)
	for _, step := range []struct {
		peer
		dir string
		do  func(*server) error
	}{
		{victoria, victoriaDir, func(s *server) error {
			err := t.load.send(ctx, s, ignored)
			_, _, flushed := s.get(ctx, "/internal/force_flush")
			return errors.Join(err, flushed)
		}},
		{quern, quernDir, func(s *server) error { return t.load.send(ctx, s, ignored) }},
		{later, quernDir, func(s *server) error { return s.ground(ctx) }},
	} {
		if err := within(ctx, step.peer, step.dir, step.do); err != nil {
			return err
		}
	}
	err = within(ctx, victoria, victoriaDir, func(v *server) error {
		return within(ctx, quern, quernDir, func(q *server) error {
			for _, x := range t.queries {
				fmt.Fprintf(stderr, "%s: %s\n", t.load.name, x.name)
				if err := x.measure(ctx, opts, q, v, got); err != nil {
					return fmt.Errorf("%s: %w", x.name, err)
				}
			}
			return nil
		})
	})
	if err != nil || t.disk == "" {
		return err
	}
	return t.sizes(quern.name, quernDir, victoria.name, victoriaDir, got)
}

// within runs do with a started server, which it stops.
func within(ctx context.Context, p peer, dir string, do func(*server) error) error {
	s, err := start(ctx, p, dir)
	if err != nil {
		return err
	}
	return errors.Join(do(s), s.stop())
}

// ground waits until Quern has ground all raw samples that it has, and has packed them.
func (s *server) ground(ctx context.Context) error {
	for deadline := time.Now().Add(15 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		left, err := s.outstanding(ctx)
		if err == nil && left == 0 {
			packed, failed := s.packed(ctx)
			if packed {
				return nil
			}
			err = failed
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("%d slices are not ground, or not all are packed", left), err, ctx.Err())
		}
	}
}

// packed reports whether raw chunks were packed and none are left.
func (s *server) packed(ctx context.Context) (bool, error) {
	_, body, err := s.get(ctx, "/metrics")
	const chunks = "\nquern_packing_chunks_total "
	return bytes.Contains(body, []byte(chunks)) && !bytes.Contains(body, []byte(chunks+"0\n")) &&
		bytes.Contains(body, []byte("\nquern_packing_left_slices 0\n")), err
}

// outstanding returns the number of slices that are due, and of raw ones with late data.
func (s *server) outstanding(ctx context.Context) (n int, err error) {
	code, body, err := s.get(ctx, "/api/v1/status/aggregation?waiting=true")
	if err != nil {
		return 0, err
	}
	var status struct {
		Buckets []struct {
			Bucket               string
			Outstanding, Waiting []json.RawMessage
		}
	}
	if err := json.Unmarshal(body, &status); err != nil || code != http.StatusOK {
		return 0, fmt.Errorf("status %d: %.300s", code, body)
	}
	for _, b := range status.Buckets {
		n += len(b.Outstanding)
		if b.Bucket == "raw" {
			n += len(b.Waiting)
		}
	}
	return n, nil
}

// measure sends each repeat to both servers, the second one first in every other repeat.
func (x query) measure(ctx context.Context, opts options, q, v *server, got *table) error {
	if err := x.alike(ctx, q, v); err != nil {
		return err
	}
	took := map[*server][]float64{}
	order := []*server{q, v}
	for i := range warmUps + x.n {
		slices.Reverse(order)
		for _, s := range order {
			began := time.Now()
			for _, path := range x.requests(i) {
				if _, err := s.ask(ctx, path); err != nil {
					return err
				}
			}
			if i >= warmUps {
				took[s] = append(took[s], time.Since(began).Seconds())
			}
		}
	}
	for s, all := range took {
		got.add(millis(x.name), s.name, median(all))
	}
	if opts.cpu == "" {
		return nil
	}
	done := make(chan error, 1)
	wait := q.profile(ctx, filepath.Join(opts.cpu, strings.NewReplacer(" ", "-", "/", "-").Replace(x.name)+".pprof"))
	go func() { done <- wait() }()
	for i := 0; ; i++ {
		select {
		case err := <-done:
			return err
		default:
		}
		for _, path := range x.requests(i) {
			if _, err := q.ask(ctx, path); err != nil {
				return err
			}
		}
	}
}

// alike checks that both answer with as many series, and with as many points but for one of each
// series at either end.
func (x query) alike(ctx context.Context, q, v *server) error {
	for _, path := range x.requests(0) {
		var series, points [2]int
		for i, s := range []*server{q, v} {
			body, err := s.ask(ctx, path)
			if err != nil {
				return err
			}
			if series[i], points[i], err = contents(body); err != nil {
				return err
			}
		}
		if series[0] != series[1] || series[0] == 0 || max(points[0]-points[1], points[1]-points[0]) > 2*series[0] {
			return fmt.Errorf("%s: Quern answers with %d series and %d points, VictoriaMetrics with %d and %d",
				path, series[0], points[0], series[1], points[1])
		}
	}
	return nil
}

func (s *server) ask(ctx context.Context, path string) ([]byte, error) {
	code, body, err := s.get(ctx, path)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("%s: %s: status %d: %.300s", s.name, path, code, body)
	}
	return body, err
}

// sizes adds the bytes of the files for each value, after both servers have stopped. Of Quern's files
// it counts the tables alone: a store of any size has log files beside them that
// are made in advance. Of VictoriaMetrics' it leaves out what it caches.
func (t set) sizes(quern, quernDir, victoria, victoriaDir string, got *table) (err error) {
	values := float64(t.load.values())
	all, err := bytesBelow(quernDir, ".sst")
	if err != nil {
		return err
	}
	// Pebble's defaults suffice to read a table. Raw samples have keys that begin with an r.
	db, err := lsm.Open(quernDir, &lsm.Options{ReadOnly: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	raw, err := db.EstimateDiskUsage([]byte{'r'}, []byte{'r' + 1})
	if err != nil {
		return err
	}
	data, err := bytesBelow(filepath.Join(victoriaDir, "data"), "")
	if err != nil {
		return err
	}
	index, err := bytesBelow(filepath.Join(victoriaDir, "data", "indexdb"), "")
	if err != nil {
		return err
	}
	for _, size := range []struct {
		part            string
		quern, victoria int64
	}{
		{"raw samples", int64(raw), data - index},
		{"series, and Quern's roll-ups", all - int64(raw), index},
		{"everything", all, data},
	} {
		r := each(t.disk + ", " + size.part)
		got.add(r, quern, float64(size.quern)/values)
		got.add(r, victoria, float64(size.victoria)/values)
	}
	return nil
}

// bytesBelow returns the size of the files whose names end as given.
func bytesBelow(dir, ending string) (total int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || !strings.HasSuffix(e.Name(), ending) {
			return err
		}
		info, err := e.Info()
		if err == nil {
			total += info.Size()
		}
		return err
	})
	return total, err
}

// times returns an arbitrary time of each repeat, at a multiple of every, so that the span before it
// lies within the data.
func times(start, end time.Time, span, every time.Duration) func(i int) (from, to time.Time) {
	return func(i int) (from, to time.Time) {
		rng := rand.New(rand.NewPCG(3, uint64(i)))
		room := end.Sub(start) - span
		to = start.Add(span)
		if steps := int64(room / every); steps > 0 {
			to = to.Add(time.Duration(rng.Int64N(steps)) * every)
		}
		return to.Add(-span), to
	}
}

// ranged is a range query without VictoriaMetrics' cache of answers.
func ranged(promql string, from, to time.Time, step time.Duration) string {
	return "/api/v1/query_range?" + url.Values{
		"query": {promql}, "start": {unix(from)}, "end": {unix(to)}, "step": {strconv.Itoa(int(step.Seconds()))}, "nocache": {"1"},
	}.Encode()
}

// hour is an hour of gauges at 10 s.
func hour(opts options, end time.Time) set {
	const every, samples = 10 * time.Second, 360
	at := times(end.Add(-samples*every), end.Add(-every), 5*time.Minute, every)
	instant := func(name, promql string, n int) query {
		return query{name, n, func(i int) []string {
			_, to := at(i)
			return []string{"/api/v1/query?" + url.Values{"query": {promql}, "time": {unix(to)}, "nocache": {"1"}}.Encode()}
		}}
	}
	return set{
		load: remoteWrite("an hour of gauges", end, 20, family{metric: "m", series: opts.series, perHost: 20, samples: samples, every: every}),
		disk: "a value of a walk of two decimals, 10,000 series × 360",
		queries: []query{
			instant("topk(5, m) of 10,000 series", "topk(5, m)", 30),
			instant("avg by (job) (m) of 10,000 series", "avg by (job) (m)", 30),
		},
	}
}

// week is a week of a few hosts, and half a day of many.
func week(end time.Time) set {
	const (
		every   = 15 * time.Second
		week    = 7 * 24 * time.Hour
		halfDay = 12 * time.Hour
		hosts   = 1000
	)
	one := func(name, function string, span, step time.Duration) query {
		at := times(end.Add(-week), end.Add(-every), span, step)
		return query{name, 40, func(i int) []string {
			from, to := at(i)
			return []string{ranged(fmt.Sprintf(function, fmt.Sprintf(`temperature{id="s%06d"}`, i*7%100)), from, to, step)}
		}}
	}
	fleet := func(name, promql string, span, step time.Duration, n int) query {
		at := times(end.Add(-halfDay-2*time.Hour), end, span, step)
		return query{name, n, func(i int) []string {
			from, to := at(i)
			return []string{ranged(promql, from, to, step)}
		}}
	}
	const hundred = `avg by (instance) (avg_over_time(load{instance=~"host-00.."}[1h]))`
	const thousand = `avg by (instance) (avg_over_time(load[1h]))`
	return set{
		load: remoteWrite("a week of hosts", end, 20,
			family{metric: "temperature", series: 100, perHost: 20, samples: int(week / every), every: every},
			family{metric: "load", series: hosts, perHost: 1, samples: int((halfDay + 2*time.Hour) / every), every: every},
			family{metric: "requests_total", series: hosts, perHost: 1, samples: int((halfDay + 2*time.Hour) / every), every: every, counter: true},
		),
		queries: []query{
			one("one series over 1 h at 15 s", "%s", time.Hour, 15*time.Second),
			one("one series over 24 h at 15 s", "%s", 24*time.Hour, 15*time.Second),
			one("one series over 24 h at 1 min", "%s", 24*time.Hour, time.Minute),
			one("one series over 7 d at 1 min", "%s", week-time.Hour, time.Minute),
			one("one series over 24 h at 1 h, averages", "avg_over_time(%s[1h])", 24*time.Hour, time.Hour),
			one("one series over 7 d at 1 h, averages", "avg_over_time(%s[1h])", week-2*time.Hour, time.Hour),
			fleet("averages by hours of 100 hosts over 12 h", hundred, halfDay, time.Hour, 20),
			fleet("averages by hours of 1,000 hosts over 12 h", thousand, halfDay, time.Hour, 10),
			fleet("rate(requests_total[5m]) of 1,000 series over 1 h at 1 min", `rate(requests_total[5m])`, time.Hour, time.Minute, 15),
			fleet("sum by (job) (rate(requests_total[5m])) of 1,000 series over 1 h at 1 min", `sum by (job) (rate(requests_total[5m]))`,
				time.Hour, time.Minute, 15),
		},
	}
}
