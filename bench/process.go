package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"time"
)

// figures are the results of a step, by name. Durations are in seconds.
type figures map[string]float64

// results are the figures of each measurement. The name of a step's figure begins with the step's
// name and a dot.
type results map[string]figures

// rssFigure is the peak resident memory of a step's process, in bytes.
const rssFigure = "rss"

// bench is the environment of a step.
type bench struct {
	dir     string  // of an embedded store
	cluster cluster // with the keyspace of one in Cassandra
	scale   float64
	figures figures

	name    string
	profile string
	stderr  io.Writer
}

// scaled returns n at the requested scale, but not below least.
func (b *bench) scaled(n, least int) int { return max(least, int(float64(n)*b.scale)) }

// scaledTime returns d at the requested scale, but not below a second.
func (b *bench) scaledTime(d time.Duration) time.Duration {
	return max(time.Second, time.Duration(float64(d)*b.scale))
}

// timed runs f, profiles it if requested, and returns its duration.
func (b *bench) timed(f func() error) (took time.Duration, err error) {
	if b.profile != "" {
		cpu, err := os.Create(filepath.Join(b.profile, b.name+".cpu.pprof"))
		if err != nil {
			return 0, err
		}
		defer cpu.Close() //nolint:errcheck // pprof would have told
		if err := pprof.StartCPUProfile(cpu); err != nil {
			return 0, err
		}
		defer pprof.StopCPUProfile()
	}
	started := time.Now()
	err = f()
	took = time.Since(started)
	if err == nil && b.profile != "" {
		err = b.heapProfile()
	}
	return took, err
}

func (b *bench) heapProfile() (err error) {
	f, err := os.Create(filepath.Join(b.profile, b.name+".heap.pprof"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return pprof.Lookup("heap").WriteTo(f, 0)
}

// runStep is the child's side: it runs one step and prints its figures.
func runStep(ctx context.Context, opts options, stdout, stderr io.Writer) error {
	for _, m := range measurements(opts.store) {
		for _, s := range m.steps {
			if m.name+"."+s.name != opts.step || s.run == nil {
				continue
			}
			b := &bench{
				dir: opts.dir, cluster: opts.cluster, scale: opts.scale, figures: make(figures),
				name: opts.step, profile: opts.profile, stderr: stderr,
			}
			if err := s.run(ctx, b); err != nil {
				return err
			}
			if peak, ok := peakRSS(); ok {
				b.figures[rssFigure] = peak
			}
			return json.NewEncoder(stdout).Encode(b.figures)
		}
	}
	return fmt.Errorf("-step %s: unknown step", opts.step)
}

// measure is the parent's side: it runs a measurement's steps in sequence, each in its own process.
func measure(ctx context.Context, opts options, m measurement, stderr io.Writer) (all figures, err error) {
	if opts.cluster.nodetool == nil && slices.ContainsFunc(m.steps, func(s step) bool { return s.operate != nil }) {
		return nil, errors.New("only on a server that this program starts, since it needs nodetool")
	}
	place, remove, err := newPlace(ctx, &opts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	all = make(figures)
	for _, s := range m.steps {
		if s.operate != nil {
			b := &bench{cluster: opts.cluster, scale: opts.scale, figures: make(figures), name: m.name + "." + s.name, stderr: stderr}
			if err := s.operate(ctx, b); err != nil {
				return all, fmt.Errorf("step %s: %w", s.name, err)
			}
			all.add(s.name, b.figures)
			continue
		}
		cmd := exec.CommandContext(ctx, self, append(place,
			"-step", m.name+"."+s.name,
			"-scale", strconv.FormatFloat(opts.scale, 'g', -1, 64), "-profile", opts.profile)...)
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.WaitDelay = 10 * time.Second
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, stderr
		if err := cmd.Run(); err != nil {
			return all, fmt.Errorf("step %s: %w", s.name, err)
		}
		var got figures
		if err := json.Unmarshal(out.Bytes(), &got); err != nil {
			return all, fmt.Errorf("step %s: %w", s.name, err)
		}
		all.add(s.name, got)
	}
	return all, nil
}

// add adds the figures of a step.
func (f figures) add(step string, more figures) {
	for name, x := range more {
		f[step+"."+name] = x
	}
}

// newPlace creates what the steps of one measurement share, a directory or a keyspace, which it sets in opts. It returns
// the arguments that name it, and a function that removes it.
func newPlace(ctx context.Context, opts *options) (args []string, remove func() error, err error) {
	if opts.store == storeCassandra {
		args, remove = newKeyspace(ctx, opts)
		return args, remove, nil
	}
	opts.dir, err = os.MkdirTemp(opts.dir, "quern-bench-")
	return []string{"-dir", opts.dir}, func() error { return os.RemoveAll(opts.dir) }, err
}

// peakRSS returns this process's peak resident memory in bytes. ok is false if the system has no
// /proc.
func peakRSS() (peak float64, ok bool) {
	if runtime.GOOS != "linux" {
		return 0, false
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(status)) {
		if rest, found := strings.CutPrefix(line, "VmHWM:"); found {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			return kib * 1024, err == nil
		}
	}
	return 0, false
}
