package adaptor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/quern/quern/internal/agent/format"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/wire/excerpt"
)

const (
	// maxOutput bounds what a command may write each time.
	maxOutput = 4 << 20
	// maxComplaint is how much of its standard error is logged.
	maxComplaint = 300
	// outlive is how long a process that a command has left behind may keep its output open.
	outlive = time.Second
	nagios  = "nagios"
)

// Exec runs a command at a fixed interval, and reads what it writes. Its stream counts these bytes.
type Exec struct {
	// Command is a program and its arguments, Shell a line for sh. There is one of them.
	Command []string `yaml:"command"`
	Shell   string   `yaml:"shell"`
	// Interval is the time between two runs, which are aligned to it in UTC.
	Interval span `yaml:"interval"`
	// Timeout is after which time it is killed, with what it has started. The default is the interval.
	Timeout span `yaml:"timeout"`
	// Lines may have the format nagios, too: see performance.
	Lines `yaml:",inline"`
}

// String implements Adaptor.
func (e *Exec) String() string { return "exec " + cmp.Or(e.Shell, strings.Join(e.Command, " ")) }

func (e *Exec) check() error {
	switch {
	case len(e.Command) > 0 && e.Shell != "", strings.TrimSpace(e.Shell) == "" && (len(e.Command) == 0 || e.Command[0] == ""):
		return errors.New("command: give either it, as in command: [/bin/cat, /proc/loadavg], or shell, as in shell: df -P | tail -n +2")
	case e.Interval < span(time.Second) || time.Duration(e.Interval)%time.Millisecond != 0:
		return errors.New("interval: must be whole milliseconds, at least 1s")
	case e.Timeout < 0 || e.Timeout > e.Interval:
		return errors.New("timeout: must not be longer than the interval")
	}
	e.Timeout = cmp.Or(e.Timeout, e.Interval)
	if e.Shell != "" {
		e.Command = []string{"/bin/sh", "-c", e.Shell}
	}
	if e.Format != nagios {
		return e.checkLines()
	}
	e.Prefix = cmp.Or(e.Prefix, "nagios_")
	if !reflect.DeepEqual(e.Options, format.Options{Format: nagios, Labels: e.Labels, Prefix: e.Prefix}) {
		return errors.New("format: nagios uses only labels, prefix and source")
	}
	return nil
}

// Run implements Adaptor.
func (e *Exec) Run(ctx context.Context, out *Output) {
	everyTick(ctx, out.Clock, time.Duration(e.Interval), func(tickMs int64) { e.run(ctx, out, tickMs) })
}

func (e *Exec) run(ctx context.Context, out *Output, tickMs int64) {
	stream := e.String()
	text, code, err := e.output(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		out.Warn("a command failed", stream, "err", err)
	}
	at := out.Spool.Stream(stream)
	var b ingest.Batch
	if e.Format == nagios {
		e.performance(text, code, tickMs, &b)
		out.rejected(stream, at.Seq, &b)
	} else {
		e.decode(out, stream, at.Seq, text, tickMs, &b)
	}
	at.Seq += uint64(len(text))
	if len(b.Reports()) > 0 {
		out.Put(stream, at, &b)
	}
}

// output runs the command. It returns what it wrote, also if it failed, and its exit code, -1 if it has none.
func (e *Exec) output(ctx context.Context) ([]byte, int, error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	ctx, cancel := context.WithTimeoutCause(ctx, time.Duration(e.Timeout), fmt.Errorf("killed after %s", time.Duration(e.Timeout)))
	defer cancel()
	cmd := exec.CommandContext(ctx, e.Command[0], e.Command[1:]...)
	// A group of its own, so that what it starts ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	kill := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel, cmd.WaitDelay = kill, outlive
	text := limited{max: maxOutput, full: func() { end(fmt.Errorf("it wrote more than %d bytes", maxOutput)) }}
	complaint := limited{max: maxComplaint, full: func() {}}
	cmd.Stdout, cmd.Stderr = &text, &complaint
	err := cmd.Start()
	if err != nil {
		return nil, -1, err
	}
	err = cmd.Wait()
	_ = kill() // what it has left behind; there is nothing if it fails
	code := cmd.ProcessState.ExitCode()
	switch {
	case ctx.Err() != nil:
		// The last line may lack its end.
		text.kept.Truncate(bytes.LastIndexByte(text.kept.Bytes(), '\n') + 1)
		err = context.Cause(ctx)
	case e.Format == nagios && code >= 0 && code <= 3 || errors.Is(err, exec.ErrWaitDelay):
		err = nil
	case err != nil && complaint.kept.Len() > 0:
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(strings.ToValidUTF8(complaint.kept.String(), "")))
	}
	return text.kept.Bytes(), code, err
}

// limited keeps the beginning of what is written to it.
type limited struct {
	kept bytes.Buffer // not embedded: its ReadFrom would keep all
	max  int
	full func() // is called when something is not kept
}

func (l *limited) Write(p []byte) (int, error) {
	fits := min(len(p), l.max-l.kept.Len())
	l.kept.Write(p[:fits])
	if fits < len(p) {
		l.full()
	}
	return len(p), nil
}

// datum is one of a Nagios plugin's performance data, 'label'=value[unit];[warn];[crit];[min];[max]. A quote within a label is doubled.
var datum = regexp.MustCompile(`('(?:[^'=]|'')+'|[^\s'=]+)=(-?[0-9.]+(?:[eE][-+]?[0-9]+)?|U)([^\s;]*)(?:;[^\s]*)?`)

// performance adds what a Nagios plugin says: its state, which is its exit code, and its performance data as the metric value with
// the labels perfdata and unit. https://nagios-plugins.org/doc/guidelines.html
func (e *Exec) performance(text []byte, code int, nowMs int64, b *ingest.Batch) {
	all := map[string]string{"check": filepath.Base(e.Command[0])}
	maps.Copy(all, e.allLabels())
	var labels []metric.Label
	for name, value := range all {
		labels = append(labels, metric.Label{Name: name, Value: value})
	}
	if code >= 0 {
		b.Series(e.Prefix+"state", labels)
		b.Add(nowMs, float64(code))
	}
	for line := range bytes.Lines(text) {
		_, data, ok := bytes.Cut(line, []byte("|"))
		if !ok {
			continue
		}
		for _, m := range datum.FindAllSubmatch(data, -1) {
			if string(m[2]) == "U" {
				continue // the plugin could not determine it
			}
			value, ok := metric.ParseDecimal(string(m[2]))
			if !ok {
				b.Reject(ingest.ReasonInvalidValue, "%s is not a number that can be stored", excerpt.Quoted(string(m[2])))
				continue
			}
			name := strings.ReplaceAll(strings.Trim(string(m[1]), "'"), "''", "'")
			b.Series(e.Prefix+"value", append(labels, metric.Label{Name: "perfdata", Value: name}, metric.Label{Name: "unit", Value: string(m[3])}))
			b.Add(nowMs, value)
		}
		if rest := bytes.TrimSpace(datum.ReplaceAll(data, nil)); len(rest) > 0 {
			b.Reject(ingest.ReasonInvalidValue, "%s is not performance data", excerpt.Quoted(string(rest)))
		}
	}
}
