package acceptance

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// script runs one file of testdata. A directive is one or more commands, one per line. Their
// output, in order, is the expected text. Times are hours of the first day: 16:30, 16:30:05.250,
// +1d/02:00, -1d/20:00.
//
//	new [day=2025-11-21] [block-size=4] [group=4] [partitions=4] [ladder=1h,6h,24h] [retention=24h,0s,…]
//	    [age-cap=24h] [grace=1m] [delay=2m]
//	    a new system on a new store, at 00:00
//	clock T                     move the clock, running nothing
//	clock-jump T [right]        set the clock without time passing; it is wrong then, unless "right"
//	expire                      remove what has expired
//	report A@16:10=3 …          one call of ingest
//	delete A from=T to=T        delete the samples of A in the range; * is all series
//	export                      print the raw samples that readers see
//	raw                         print the number of raw samples, including those that readers do not see
//	run [quiet]                 run what is due and print what each run did; quiet where stores differ
//	rows LEVEL | averages LEVEL print a roll-up table
//	gaps LEVEL                  print its rows that only say that samples may be missing
//	reaggregate                 mark all closed slices to be ground again
//	marks | cache | slices      print what is outstanding; slices prints only open ones
//	fail OP [block=N] [times=N] [error=away|timeout] [after]
//	                            make steps fail, with "after" once they have taken effect
//	heal                        undo fail
//	crash-at N                  let N-1 more steps happen, then none
//	torn                        from now on write row by row; each row is a step
//	restart                     end the process, or what is left of it, and restart it a second later
//	down                        end the process; restart starts it again
//	accept-clock                restart on the word of an operator that a refused clock is right
//	cache-delete | cache-damage | cache-off | cache-on
//	block-size N from=T         add an epoch
//	check                       compare all tables with the acknowledged samples
//	drain                       let time pass until nothing can be outstanding, then check, and
//	                            require that no mark and no cache block is left
type script struct {
	t       testing.TB
	backend Backend
	sys     *System
}

func runScript(t *testing.T, b Backend, path string) {
	s := &script{t: t, backend: b}
	datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
		s.t = t
		var out strings.Builder
		s.command(&out, d.Cmd, d.CmdArgs)
		for line := range strings.SplitSeq(d.Input, "\n") {
			if line = strings.TrimSpace(line); line == "" {
				continue
			}
			cmd, args, err := datadriven.ParseLine(line)
			if err != nil {
				t.Fatal(err)
			}
			s.command(&out, cmd, args)
		}
		return out.String()
	})
	if s.sys != nil {
		s.sys.End()
	}
}

type args []datadriven.CmdArg

func (a args) get(key, otherwise string) string {
	for _, arg := range a {
		if arg.Key == key {
			if len(arg.Vals) == 0 {
				return "true"
			}
			return arg.Vals[0]
		}
	}
	return otherwise
}

func (s *script) number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *script) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

func (s *script) time(text string) time.Time {
	day := s.sys.cfg.Start.Truncate(24 * time.Hour)
	if d, rest, ok := strings.Cut(text, "d/"); ok {
		day = day.AddDate(0, 0, s.number(d))
		text = rest
	}
	t, err := time.Parse("15:04:05.999", text)
	if err != nil {
		if t, err = time.Parse("15:04", text); err != nil {
			s.t.Fatal(err)
		}
	}
	return day.Add(t.Sub(t.Truncate(24 * time.Hour)))
}

func (s *script) level(a args) metric.Bucket {
	b, err := s.sys.cfg.Ladder.Bucket(a[0].Key)
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

func (s *script) command(out *strings.Builder, cmd string, list []datadriven.CmdArg) {
	s.t.Helper()
	a := args(list)
	if s.sys == nil && cmd != "new" {
		s.fresh(nil)
	}
	switch cmd {
	case "new":
		s.fresh(a)
	case "clock":
		s.sys.SetClock(s.time(a[0].Key))
	case "clock-jump":
		s.sys.JumpClock(s.time(a[0].Key), a.get("right", "") != "")
	case "expire":
		if err := s.sys.Store.Expire(s.t.Context()); err != nil {
			s.t.Fatal(err)
		}
	case "report":
		s.report(out, a)
	case "delete":
		s.delete(out, a)
	case "export":
		for _, line := range s.sys.export() {
			out.WriteString(line + "\n")
		}
	case "raw":
		fmt.Fprintf(out, "%d raw samples\n", len(s.sys.RawSamples()))
	case "run":
		runs, err := s.sys.Run()
		if a.get("quiet", "") != "" {
			return
		}
		for _, r := range runs {
			s.printRun(out, r)
		}
		if err != nil {
			fmt.Fprintf(out, "aborted: %s\n", class(err))
		}
	case "rows", "averages":
		s.printRows(out, s.level(a), cmd == "averages")
	case "gaps":
		names, level := s.sys.names(), s.level(a)
		for _, r := range s.sys.storedRows(level) {
			if r.Count == 0 && r.Partial {
				fmt.Fprintf(out, "gap %s %s %s\n", s.sys.cfg.Ladder.Name(level), names[r.Schedule], s.sys.clockOf(r.TimeMs))
			}
		}
	case "reaggregate":
		s.sys.reaggregate(false)
	case "marks":
		s.printMarks(out)
	case "cache":
		for _, b := range s.sys.cfg.Ladder.Ground() {
			for _, c := range s.sys.CacheBlocks(b) {
				fmt.Fprintf(out, "cache %s %s block %d\n", s.sys.cfg.Ladder.Name(b), s.sys.clockOf(c.StartMs), c.Start)
			}
		}
	case "slices":
		for _, b := range s.sys.cfg.Ladder.Ground() {
			for _, st := range s.sys.Slices(b) {
				if !st.Complete {
					fmt.Fprintf(out, "open %s %s\n", s.sys.cfg.Ladder.Name(b), s.sys.clockOf(st.StartMs))
				}
			}
		}
	case "fail":
		s.fail(a)
	case "heal":
		s.sys.Store.Heal()
	case "crash-at":
		s.sys.Store.CrashAt(s.number(a[0].Key))
	case "torn":
		s.sys.Store.Tear(true)
	case "down":
		s.sys.Stop()
	case "restart":
		s.sys.Restart()
	case "accept-clock":
		s.sys.AcceptClock()
	case "cache-delete":
		s.sys.DeleteCache()
	case "cache-damage":
		s.sys.DamageCache()
	case "cache-off", "cache-on":
		s.sys.tables.noCache = cmd == "cache-off"
	case "block-size":
		s.sys.SetBlockSize(s.number(a[0].Key), s.time(a.get("from", "")))
	case "check":
		s.printProblems(out, s.sys.Check(Raw))
	case "drain":
		s.sys.Drain()
		s.printProblems(out, append(s.sys.Check(Raw), s.sys.Leftovers()...))
	default:
		s.t.Fatalf("no command %q", cmd)
	}
}

func (s *script) fresh(a args) {
	if s.sys != nil {
		s.sys.End()
	}
	day, err := time.Parse(time.DateOnly, a.get("day", "2025-11-21"))
	if err != nil {
		s.t.Fatal(err)
	}
	ladder, err := metric.ParseLadder(a.get("ladder", "1h,6h,24h"))
	if err != nil {
		s.t.Fatal(err)
	}
	var retention storage.Retention
	if r := a.get("retention", ""); r != "" {
		for part := range strings.SplitSeq(r, ",") {
			retention = append(retention, s.duration(part))
		}
	}
	s.sys = Start(s.t, s.backend, Config{
		Start: day, Ladder: ladder, Retention: retention, AgeCap: s.duration(a.get("age-cap", "24h")),
		Timing:    cache.Timing{Grace: s.duration(a.get("grace", "1m")), Delay: s.duration(a.get("delay", "2m"))},
		BlockSize: s.number(a.get("block-size", "4")), GroupSize: s.number(a.get("group", "4")),
		IndexPartitions: s.number(a.get("partitions", "4")),
	})
}

func (s *script) report(out *strings.Builder, a args) {
	var points []Point
	for _, arg := range a {
		name, at, ok := strings.Cut(arg.Key, "@")
		if !ok || len(arg.Vals) != 1 {
			s.t.Fatalf("report %s: want A@16:10=3", arg)
		}
		v, err := strconv.ParseFloat(arg.Vals[0], 64)
		if err != nil {
			s.t.Fatal(err)
		}
		points = append(points, Point{Series: name, TimeMs: s.time(at).UnixMilli(), Value: v})
	}
	res, err := s.sys.Report(points...)
	if err != nil {
		fmt.Fprintf(out, "error: %s\n", class(err))
		return
	}
	if len(res.Rejected) > 0 {
		fmt.Fprintf(out, "accepted %d\n", res.Accepted)
	}
	for _, r := range res.Rejected {
		fmt.Fprintf(out, "rejected %s: %s\n", a[r.Index].Key, r.Reason)
	}
}

func (s *script) delete(out *strings.Builder, a args) {
	series := a[0].Key
	if series == "*" {
		series = ""
	}
	warnings, err := s.sys.Delete(series, s.time(a.get("from", "")), s.time(a.get("to", "")))
	for _, w := range warnings {
		fmt.Fprintf(out, "warning: %s\n", w)
	}
	if err != nil {
		fmt.Fprintf(out, "error: %s\n", class(err))
	}
}

func class(err error) string {
	switch {
	case errors.Is(err, storagetest.ErrCrashed):
		return "dead"
	case storage.IsAway(err):
		return "away"
	case errors.Is(err, ingest.ErrBusy):
		return "busy"
	}
	return "failed"
}

func (s *script) fail(a args) {
	err := errInjected
	switch a.get("error", "") {
	case "away":
		err = storage.ErrUnavailable
	case "timeout":
		err = storage.ErrTimeout
	}
	fail := func() error { return err }
	r := storagetest.Rule{Op: a[0].Key, Times: s.number(a.get("times", "1")), Before: fail}
	if a.get("after", "") != "" {
		r.Before, r.After = nil, fail
	}
	if b := a.get("block", ""); b != "" {
		r.Block = blocks.BlockAt(metric.ScheduleID(s.number(b)), s.sys.cfg.BlockSize)
	}
	s.sys.Store.Add(r)
}

func (s *script) printRun(out *strings.Builder, r storage.Run) {
	fmt.Fprintf(out, "ran %s %s:", s.sys.cfg.Ladder.Name(r.Bucket), s.sys.clockOf(r.StartMs))
	fmt.Fprintf(out, " blocks=%d rows=%d", r.Blocks, r.Schedules)
	fmt.Fprintf(out, " queries=%d+%d", r.BlockQueries, r.IndexQueries)
	for _, n := range []struct {
		name string
		n    int
	}{{"late", r.Late}, {"rescheduled", r.Rescheduled}, {"dropped", r.Dropped}} {
		if n.n > 0 {
			fmt.Fprintf(out, " %s=%d", n.name, n.n)
		}
	}
	if r.Err != "" {
		out.WriteString(" aborted")
	}
	out.WriteString("\n")
}

func (s *script) printRows(out *strings.Builder, level metric.Bucket, averages bool) {
	names := s.sys.names()
	for _, r := range s.sys.Rows(level) {
		fmt.Fprintf(out, "%s %s %s", s.sys.cfg.Ladder.Name(level), names[r.Schedule], s.sys.clockOf(r.TimeMs))
		if averages {
			fmt.Fprintf(out, " %.6f\n", r.Avg())
			continue
		}
		partial := ""
		if r.Partial {
			partial = " partial"
		}
		fmt.Fprintf(out, " n=%d sum=%v min=%v max=%v first=%v last=%v increase=%v%s\n",
			r.Count, r.Sum, r.Min, r.Max, r.First, r.Last, r.Increase, partial)
	}
}

func (s *script) printMarks(out *strings.Builder) {
	names := s.sys.names()
	seen := map[string]bool{}
	for _, b := range s.sys.cfg.Ladder.Ground() {
		for _, m := range s.sys.Marks(b) {
			var sb strings.Builder
			fmt.Fprintf(&sb, "mark %s %s block %d", s.sys.cfg.Ladder.Name(b), s.sys.clockOf(m.Slice.StartMs), m.Start)
			if m.TimeMs != m.Slice.StartMs {
				fmt.Fprintf(&sb, " of %s", s.sys.clockOf(m.TimeMs))
			}
			if m.Kind != storage.MarkFresh {
				fmt.Fprintf(&sb, " %s", m.Kind)
			}
			for _, id := range m.Schedules {
				fmt.Fprintf(&sb, " %s", names[id])
			}
			if m.Attempt > 0 {
				fmt.Fprintf(&sb, " attempt=%d", m.Attempt)
			}
			// Equal marks are printed once: each slice hands on its own.
			if line := sb.String(); !seen[line] {
				seen[line] = true
				out.WriteString(line + "\n")
			}
		}
	}
}

func (s *script) printProblems(out *strings.Builder, problems []string) {
	if len(problems) == 0 {
		out.WriteString("ok\n")
	}
	for _, p := range problems {
		out.WriteString(p + "\n")
	}
}
