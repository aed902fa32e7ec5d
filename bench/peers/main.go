// Command peers compares Quern with alternatives on this machine and in one run:
//
//	go run ./bench/peers                                   all
//	go run ./bench/peers -part loads -runs 1 -only quern   a quick look at the loads
//	go run ./bench/peers -part newseries                   series that the servers have never seen
//	go run ./bench/peers -part reads                       reads and bytes alone
//
// VictoriaMetrics and Prometheus are built from their modules, which takes some minutes the first time.
//
// The loads measure one server after the other, each on an empty directory. Requests are generated
// before the clock starts, and sent over as many connections as there would be workers. A rate
// counts from the first request to the last response. Only Quern has data synced to disk before it
// responds.
//
// New series are sent while another connection sends samples of known ones: see newSeries.
//
// The reads measure Quern and VictoriaMetrics side by side, on equal data at rest: see set.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	default:
		fmt.Fprintf(os.Stderr, "peers: %v\n", err)
		os.Exit(1)
	}
}

type options struct {
	part   string
	runs   int
	only   string
	series int
	new    string
	dir    string
	cpu    string
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var opts options
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&opts.part, "part", "", "part to measure: loads, newseries or reads (default: all)")
	flags.IntVar(&opts.runs, "runs", 3, "number of runs of each load; the table shows the medians")
	flags.StringVar(&opts.only, "only", "", "names, or parts of names, of those to measure, separated by commas")
	flags.IntVar(&opts.series, "series", 10_000, "number of series sent by remote write")
	flags.StringVar(&opts.new, "new", "100000,300000", "numbers of new series to measure, separated by commas")
	flags.StringVar(&opts.dir, "dir", "", "data directory (default: the directory for temporary files)")
	flags.StringVar(&opts.cpu, "cpu-profile", "", "directory for CPU profiles of Quern, one of each load and query")
	if err := flags.Parse(args); err != nil {
		return err
	}
	place, err := os.MkdirTemp(opts.dir, "quern-peers-")
	if err != nil {
		return err
	}
	opts.dir = place
	return errors.Join(measureAll(ctx, opts, stdout, stderr), os.RemoveAll(place))
}

func measureAll(ctx context.Context, opts options, stdout, stderr io.Writer) error {
	if !slices.Contains([]string{"", "loads", "newseries", "reads"}, opts.part) {
		return fmt.Errorf("-part %s: neither loads, newseries nor reads", opts.part)
	}
	found, err := peers(ctx, opts, stderr)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%d cores; load average before: %s\n\n", runtime.NumCPU(), loadAverage())
	got := new(table)
	for _, part := range []struct {
		name    string
		measure func(context.Context, options, []peer, *table, io.Writer) error
	}{{"loads", measureLoads}, {"newseries", measureNewSeries}, {"reads", measureReads}} {
		if opts.part == "" || opts.part == part.name {
			if err := part.measure(ctx, opts, found, got, stderr); err != nil {
				return err
			}
		}
	}
	got.print(stdout, found)
	fmt.Fprintf(stdout, "\nload average after: %s\n", loadAverage())
	return nil
}

// loadAverage returns the averages over 1, 5 and 15 minutes, which tell how busy others are.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if fields := strings.Fields(string(text)); err == nil && len(fields) >= 3 {
		return strings.Join(fields[:3], " ")
	}
	return "unknown"
}

func measureLoads(ctx context.Context, opts options, found []peer, got *table, stderr io.Writer) error {
	end := time.Now().Truncate(time.Hour)
	fmt.Fprintln(stderr, "generating requests")
	loads := []load{hourOfGauges(opts.series, 60, end), influx(50, 24*time.Hour-20*time.Minute, time.Now())}
	for r := range opts.runs {
		for _, p := range found {
			for i := range loads {
				l := &loads[i]
				if l.influx && p.influxPath == "" {
					continue
				}
				fmt.Fprintf(stderr, "run %d of %d: %s, %s\n", r+1, opts.runs, p.name, l.name)
				if err := measure(ctx, opts, p, l, got); err != nil {
					return fmt.Errorf("%s, %s: %w", p.name, l.name, err)
				}
			}
		}
	}
	return nil
}

// peer is a metrics server.
type peer struct {
	name       string
	args       func(dir, address string) []string
	ready      string
	writePath  string
	influxPath string // "" if it does not accept lines
	path       string // of the program
	env        []string
}

func peers(ctx context.Context, opts options, stderr io.Writer) ([]peer, error) {
	all := []peer{
		{
			name: "Quern", ready: "/-/ready", writePath: "/api/v1/write", influxPath: "/write",
			args: func(dir, address string) []string {
				return []string{"serve", "--data-dir", dir, "--listen", address, "--host-metrics=false"}
			},
		},
		{
			name: "VictoriaMetrics", ready: "/health", writePath: "/api/v1/write", influxPath: "/write",
			args: func(dir, address string) []string {
				return []string{"-storageDataPath=" + dir, "-httpListenAddr=" + address, "-retentionPeriod=100y", "-search.maxUniqueTimeseries=2000000", "-search.latencyOffset=0"}
			},
		},
		{
			name: "Prometheus", ready: "/-/ready", writePath: "/api/v1/write",
			args: func(dir, address string) []string {
				return []string{
					"--config.file=" + filepath.Join(dir, "..", "prometheus.yml"), "--storage.tsdb.path=" + dir,
					"--web.listen-address=" + address, "--web.enable-remote-write-receiver", "--log.level=warn",
				}
			},
		},
	}
	var out []peer
	for _, p := range all {
		if !slices.ContainsFunc(strings.Split(opts.only, ","), func(s string) bool {
			return strings.Contains(strings.ToLower(p.name), strings.ToLower(strings.TrimSpace(s)))
		}) {
			continue
		}
		var err error
		fmt.Fprintf(stderr, "building %s\n", p.name)
		switch p.name {
		case "Quern":
			p.path, err = buildQuern(ctx, opts.dir)
		case "VictoriaMetrics":
			p.path, err = buildVictoria(ctx, filepath.Join(opts.dir, "victoria"))
		default:
			p.path, err = buildPrometheus(ctx, filepath.Join(opts.dir, "prometheus"))
		}
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// row is what a row of the table measures.
type row struct {
	name string
	// format is that of the figure times scale.
	format string
	scale  float64
}

func rate(name string) row   { return row{name + "/s", "%.0f", 1} }
func millis(name string) row { return row{name + ": ms", "%.2f", 1e3} } // of seconds
func micros(name string) row { return row{name + ": µs", "%.1f", 1e6} } // of seconds
func memory(name string) row { return row{name + ": peak memory", "%.0f MB", 1e-6} }
func each(name string) row   { return row{name + ": bytes", "%.3f", 1} }

// table holds the figures, by row and by peer. Rows are in the order in which they began.
type table struct {
	rows    []row
	figures map[string]map[string][]float64
}

func (t *table) add(r row, peer string, v float64) {
	if t.figures == nil {
		t.figures = map[string]map[string][]float64{}
	}
	if t.figures[r.name] == nil {
		t.figures[r.name] = map[string][]float64{}
		t.rows = append(t.rows, r)
	}
	t.figures[r.name][peer] = append(t.figures[r.name][peer], v)
}

// print prints the medians.
func (t *table) print(out io.Writer, found []peer) {
	fmt.Fprint(out, "| what |")
	for _, p := range found {
		fmt.Fprintf(out, " %s |", p.name)
	}
	fmt.Fprint(out, " Quern against VictoriaMetrics |\n| --- |"+strings.Repeat(" ---: |", len(found)+1)+"\n")
	for _, r := range t.rows {
		got := t.figures[r.name]
		fmt.Fprintf(out, "| %s |", r.name)
		for _, p := range found {
			if v := got[p.name]; len(v) > 0 {
				fmt.Fprintf(out, " "+r.format+" |", median(v)*r.scale)
			} else {
				fmt.Fprint(out, " |")
			}
		}
		if q, v := got["Quern"], got["VictoriaMetrics"]; len(q) > 0 && len(v) > 0 {
			fmt.Fprintf(out, " %.2f × |\n", median(q)/median(v))
		} else {
			fmt.Fprintln(out, " |")
		}
	}
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// measure starts a peer on an empty directory, loads it, queries it, and stops it.
func measure(ctx context.Context, opts options, p peer, l *load, got *table) (err error) {
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
	stopProfile := func() error { return nil }
	if opts.cpu != "" && p.name == "Quern" {
		stopProfile = s.profile(ctx, filepath.Join(opts.cpu, strings.ReplaceAll(l.name, " ", "-")+".pprof"))
	}
	if err := l.send(ctx, s, got); err != nil {
		return err
	}
	if err := stopProfile(); err != nil {
		return err
	}
	if err := l.ask(ctx, s, got); err != nil {
		return err
	}
	if peak, ok := s.peakRSS(); ok {
		got.add(memory(l.name), p.name, peak)
	}
	return nil
}
