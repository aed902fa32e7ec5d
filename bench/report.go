package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// row is one line of the table.
type row struct {
	What    string `json:"what"`
	Figure  string `json:"figure"`
	Target  string `json:"target"`
	Verdict string `json:"verdict"`
}

// report is what the program prints.
type report struct {
	Conditions string  `json:"conditions"`
	Rows       []row   `json:"rows"`
	Figures    results `json:"figures"`
}

func newReport(ctx context.Context, opts options, ran []measurement, all results) report {
	r := report{Conditions: conditions(ctx, opts), Figures: all}
	for _, m := range ran {
		r.Rows = append(r.Rows, m.rows(all)...)
	}
	if opts.scale != 1 {
		for i := range r.Rows {
			r.Rows[i].Verdict = "scaled"
		}
	}
	return r
}

func (r report) print(w io.Writer) error {
	var sb strings.Builder
	fmt.Fprintf(&sb, "%s\n\n| what | figure | target | verdict |\n| --- | ---: | ---: | --- |\n", r.Conditions)
	for _, row := range r.Rows {
		fmt.Fprintf(&sb, "| %s | %s | %s | %s |\n", row.What, row.Figure, row.Target, row.Verdict)
	}
	_, err := io.WriteString(w, sb.String())
	return err
}

// info returns a row without a target.
func info(what, figure string) row { return row{What: what, Figure: figure} }

// atLeast returns a row whose figure should reach the target.
func atLeast(what string, got, target float64, unit string) row {
	return judged(what, count(got)+unit, "≥ "+count(target)+unit, got >= target, got/target)
}

// atMost returns a row whose figure should not exceed the target. format prints both.
func atMost(what string, got, target float64, format func(float64) string) row {
	return judged(what, format(got), "≤ "+format(target), got <= target, got/target)
}

// exactly returns a row whose figure follows from the design.
func exactly(what string, got, target float64) row {
	return judged(what, count(got), count(target), got == target, got/target)
}

func judged(what, figure, target string, met bool, ratio float64) row {
	word := "missed"
	if met {
		word = "met"
	}
	return row{What: what, Figure: figure, Target: target, Verdict: fmt.Sprintf("%s, %.2f ×", word, ratio)}
}

// peakMemory returns the row for a step's peak memory. A targetMB of 0 is no target.
func peakMemory(what string, f figures, step string, targetMB float64) row {
	peak, ok := f[step+"."+rssFigure]
	what += ": peak memory"
	switch {
	case !ok:
		return info(what, "not told by this system")
	case targetMB == 0:
		return info(what, megabytes(peak))
	}
	return atMost(what, peak, targetMB*1e6, megabytes)
}

// count formats a number with separators between thousands.
func count(x float64) string {
	digits := fmt.Sprintf("%.0f", x)
	var sb strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			sb.WriteByte(',')
		}
		sb.WriteRune(d)
	}
	return sb.String()
}

func seconds(x float64) string      { return fmt.Sprintf("%.2f s", x) }
func milliseconds(x float64) string { return fmt.Sprintf("%.0f ms", x*1000) }
func megabytes(x float64) string    { return fmt.Sprintf("%.0f MB", x/1e6) }
func bytesEach(x float64) string    { return fmt.Sprintf("%.2f bytes", x) }

// conditions describes the machine and the program that were measured.
func conditions(ctx context.Context, opts options) string {
	parts := []string{
		fmt.Sprintf("%d cores", runtime.GOMAXPROCS(0)),
		fmt.Sprintf("%s %s/%s", runtime.Version(), runtime.GOOS, runtime.GOARCH),
		"commit " + commit(ctx),
	}
	if opts.store == storeCassandra {
		parts = append(parts, opts.cluster.about)
	} else {
		parts = append(parts, "file system "+fileSystem(opts.dir))
	}
	if opts.scale != 1 {
		parts = append(parts, fmt.Sprintf("scale %v: not to be compared with the targets", opts.scale))
	}
	return strings.Join(parts, "; ")
}

// commit asks git, because go run records no version. "+" says that there are uncommitted changes.
func commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--exclude=*", "--dirty=+").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// fileSystem returns the type of dir's file system: that of the longest mount point above dir.
func fileSystem(dir string) string {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "unknown"
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "unknown"
	}
	kind, longest := "unknown", 0
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) < 3 || len(f[1]) < longest {
			continue
		}
		if rest, ok := strings.CutPrefix(dir, strings.TrimSuffix(f[1], "/")); ok && (rest == "" || rest[0] == '/') {
			kind, longest = f[2], len(f[1])
		}
	}
	if kind == "tmpfs" {
		kind += " (in memory: a sync costs nothing here, choose a disk with -dir)"
	}
	return kind
}
