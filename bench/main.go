// Command bench measures what docs/performance.md promises, on this machine:
//
//	go run ./bench                    everything, about three minutes
//	go run ./bench -run aggregate     what matches
//	go run ./bench -scale 0.1         a quick look, not to be compared with the targets
//	go run ./bench -store cassandra   the same over a Cassandra that it starts
//
// Every step of a measurement runs in its own process, which is this program with -step. So each
// step has its own peak memory. Steps of one measurement share a directory, or a keyspace: one step
// loads what the next one grinds.
//
// History is loaded under a simulated clock. All durations are real time.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		os.Exit(2)
	default:
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("bad usage")

type options struct {
	store   string
	cluster cluster
	dir     string
	scale   float64
	profile string
	only    *regexp.Regexp
	asJSON  bool
	step    string
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	opts, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if opts.step != "" {
		return runStep(ctx, opts, stdout, stderr)
	}

	if opts.store == storeCassandra {
		stop, err := startServer(ctx, &opts, stderr)
		if err != nil {
			return err
		}
		defer stop()
	}

	results := make(results)
	var failed []error
	var ran []measurement
	for _, m := range measurements(opts.store) {
		if !m.always && !opts.only.MatchString(m.name) {
			continue
		}
		if results[m.name], err = measure(ctx, opts, m, stderr); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			failed = append(failed, fmt.Errorf("%s: %w", m.name, err))
			continue
		}
		if m.rows != nil {
			ran = append(ran, m)
		}
	}
	if len(ran) == 0 {
		if len(failed) == 0 {
			return fmt.Errorf("-run %s: no measurement has a matching name", opts.only)
		}
		return errors.Join(failed...)
	}
	report := newReport(ctx, opts, ran, results)
	if opts.asJSON {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(report)
	} else {
		err = report.print(stdout)
	}
	return errors.Join(append(failed, err)...)
}

func parse(args []string, stderr io.Writer) (options, error) {
	var opts options
	var hosts string
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&opts.store, "store", storePebble, "`STORE` to measure: "+storePebble+" or "+storeCassandra)
	fs.StringVar(&hosts, "hosts", "", "`HOSTS` of the Cassandra to measure, host:port,…; without, one is started")
	fs.BoolVar(&opts.cluster.direct, "direct", false, "connect only to these hosts")
	fs.StringVar(&opts.dir, "dir", os.TempDir(), "`DIRECTORY` on the disk to measure; the program removes what it writes there")
	fs.Float64Var(&opts.scale, "scale", 1, "scale factor of the measurements: of their schedules or of their duration")
	fs.StringVar(&opts.profile, "profile", "", "`DIRECTORY` for a CPU and a heap profile of each step")
	only := fs.String("run", ".", "`REGEXP` of the measurements to run")
	fs.BoolVar(&opts.asJSON, "json", false, "print JSON with all figures")
	fs.StringVar(&opts.step, "step", "", "run one step in -dir, or -keyspace, and print its figures as JSON; used by the program itself")
	fs.StringVar(&opts.cluster.keyspace, "keyspace", "", "see -step")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return opts, err
		}
		return opts, errUsage
	}
	var err error
	opts.only, err = regexp.Compile(*only)
	if err == nil && (opts.scale <= 0 || opts.scale > 100) {
		err = fmt.Errorf("-scale %v: must be above 0, at most 100", opts.scale)
	}
	if err == nil && opts.store != storePebble && opts.store != storeCassandra {
		err = fmt.Errorf("-store %s: must be %s or %s", opts.store, storePebble, storeCassandra)
	}
	if hosts != "" {
		opts.cluster.hosts = strings.Split(hosts, ",")
	}
	if err == nil && fs.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if err != nil {
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return opts, errUsage
	}
	return opts, nil
}
