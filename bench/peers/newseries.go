package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/prompb"
)

// newSeries are series that a server has never seen, 20 of a host, each with two samples. First come
// the first samples of all series, over four connections.
//
// Meanwhile another connection sends samples of series that the server knows: a fleet that grows must
// not delay the hosts that are there.
type newSeries struct {
	series  int
	load    load
	newOnes int // the requests of each connection that bring new series
}

const (
	newSamples = 2
	// knownSeries are the series of each request that brings nothing new, and knownEvery is the time
	// between two of these.
	knownSeries = 100
	knownEvery  = 20 * time.Millisecond
)

func sizesOf(text string) (sizes []int, err error) {
	for field := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(field))
		if err != nil || n < 1 {
			return nil, fmt.Errorf("-new %s: must be numbers of series, separated by commas", text)
		}
		sizes = append(sizes, n)
	}
	return sizes, nil
}

func measureNewSeries(ctx context.Context, opts options, found []peer, got *table, stderr io.Writer) error {
	sizes, err := sizesOf(opts.new)
	if err != nil {
		return err
	}
	order := slices.Clone(found)
	for _, n := range sizes {
		fmt.Fprintf(stderr, "generating requests with %d new series\n", n)
		x := newSeries{series: n}
		x.load = remoteWrite(fmt.Sprintf("%d-new-series", n), time.Now().Truncate(time.Hour), 1,
			family{metric: "m", series: n, perHost: 20, samples: newSamples, every: time.Minute})
		x.newOnes = (len(x.load.byConn[0]) + newSamples - 1) / newSamples
		for r := range opts.runs {
			for _, p := range order {
				fmt.Fprintf(stderr, "run %d of %d: %s, %d new series\n", r+1, opts.runs, p.name, n)
				if err := x.measure(ctx, opts, p, got); err != nil {
					return fmt.Errorf("%s, %d new series: %w", p.name, n, err)
				}
			}
			slices.Reverse(order) // so that no peer has the quiet moments
		}
	}
	return nil
}

// measure starts a peer on an empty directory, sends it the series, and stops it.
func (x *newSeries) measure(ctx context.Context, opts options, p peer, got *table) (err error) {
	place, err := os.MkdirTemp(opts.dir, "quern-peers-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(place)) }()
	if err := os.WriteFile(filepath.Join(place, "prometheus.yml"), []byte("global: {scrape_interval: 1h}\n"), 0o600); err != nil {
		return err
	}
	s, err := start(ctx, p, filepath.Join(place, "data"))
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, s.stop()) }()
	known := newKnown()
	if err := s.deliver(ctx, s.writePath, x.load.header, known.next()); err != nil {
		return err
	}
	before, _ := s.peakRSS()
	cpuBefore, _ := s.cpuTime()
	stopProfile := func() error { return nil }
	if opts.cpu != "" && p.name == "Quern" {
		stopProfile = s.profile(ctx, filepath.Join(opts.cpu, x.load.name+".pprof"))
	}
	took, ofNew, ofKnown, err := x.send(ctx, s, known)
	if err := errors.Join(err, stopProfile()); err != nil {
		return err
	}
	what := fmt.Sprintf("%d new series", x.series)
	got.add(rate(what+": series"), p.name, float64(x.series)/took.Seconds())
	got.add(millis(what+", p99 of requests that bring new ones"), p.name, p99(ofNew))
	got.add(millis(what+", p99 of requests that bring nothing new meanwhile"), p.name, p99(ofKnown))
	if cpu, ok := s.cpuTime(); ok {
		got.add(micros(what+", processor time of each"), p.name, (cpu-cpuBefore)/float64(x.series))
	}
	if peak, ok := s.peakRSS(); ok {
		got.add(each(what+": peak memory of each"), p.name, (peak-before)/float64(x.series))
	}
	return nil
}

// send sends all requests. It returns how long that took, and the seconds of each request with new
// series, and of each without.
func (x *newSeries) send(ctx context.Context, s *server, known *known) (took time.Duration, ofNew, ofKnown []float64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	var failed error
	var done atomic.Bool
	deliver := func(body []byte, into *[]float64) bool {
		began := time.Now()
		err := s.deliver(ctx, s.writePath, x.load.header, body)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			failed = cmp.Or(failed, err)
			cancel()
			return false
		}
		if into != nil {
			*into = append(*into, time.Since(began).Seconds())
		}
		return true
	}
	var probing, all sync.WaitGroup
	probing.Go(func() {
		// A request counts from when it is due: one that waits for another does not count as fast.
		for due := time.Now(); !done.Load(); due = due.Add(knownEvery) {
			time.Sleep(time.Until(due))
			if !deliver(known.next(), nil) {
				return
			}
			ofKnown = append(ofKnown, time.Since(due).Seconds())
		}
	})
	began := time.Now()
	for _, requests := range x.load.byConn {
		all.Go(func() {
			for i, r := range requests {
				into := &ofNew
				if i >= x.newOnes {
					into = nil
				}
				if !deliver(r.body, into) {
					return
				}
			}
		})
	}
	all.Wait()
	took = time.Since(began)
	done.Store(true)
	probing.Wait()
	return took, ofNew, ofKnown, failed
}

// known makes requests of series that are always the same, each with a later sample of each.
type known struct {
	w  prompb.WriteRequest
	at int64
}

func newKnown() *known {
	k := &known{at: time.Now().Truncate(time.Hour).UnixMilli()}
	for i := range knownSeries {
		k.w.Timeseries = append(k.w.Timeseries, prompb.TimeSeries{
			Labels: []prompb.Label{
				{Name: "__name__", Value: "known"},
				{Name: "id", Value: fmt.Sprintf("k%03d", i)},
				{Name: "instance", Value: fmt.Sprintf("known-%d", i/20)},
			},
			Samples: []prompb.Sample{{Value: float64(i)}},
		})
	}
	return k
}

func (k *known) next() []byte {
	k.at += 10
	for i := range k.w.Timeseries {
		k.w.Timeseries[i].Samples[0].Timestamp = k.at
	}
	raw, err := k.w.Marshal()
	if err != nil {
		panic(err) // cannot happen here
	}
	return snappy.Encode(nil, raw)
}

// p99 returns the value that 99 of 100 do not exceed, and sorts v.
func p99(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	slices.Sort(v)
	return v[(len(v)*99+99)/100-1]
}
