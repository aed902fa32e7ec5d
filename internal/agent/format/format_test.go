package format

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/quern/quern/internal/ingest"
)

var noon = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC).UnixMilli()

// TestLines runs the files of testdata. options takes Options as YAML. lines reads lines, and quoted reads one that is a string
// of Go. flush flushes, and resume sets LastMs. now, last and times of day are seconds after noon. `go test -rewrite` rewrites the results.
func TestLines(t *testing.T) {
	datadriven.Walk(t, "testdata/lines", func(t *testing.T, path string) {
		var f *Format
		var b ingest.Batch
		datadriven.RunTest(t, path, func(t *testing.T, c *datadriven.TestData) string {
			now := noon
			var seconds float64
			if c.HasArg("now") {
				text := ""
				c.ScanArgs(t, "now", &text)
				var err error
				seconds, err = strconv.ParseFloat(text, 64)
				require.NoError(t, err)
			}
			now += int64(seconds * 1000)
			b.Reset()
			var lines [][]byte
			switch c.Cmd {
			case "options":
				var o Options
				require.NoError(t, yaml.Unmarshal([]byte(c.Input), &o))
				var err error
				if f, err = New(o); err != nil {
					return err.Error()
				}
			case "resume":
				f.LastMs = now
			case "flush":
				f.Flush(&b)
			case "quoted":
				line, err := strconv.Unquote(strings.TrimSpace(c.Input))
				require.NoError(t, err)
				lines = append(lines, []byte(line))
			case "lines":
				for line := range strings.SplitSeq(c.Input, "\n") {
					lines = append(lines, []byte(line))
				}
			}
			for _, line := range lines {
				f.Line(line, now, &b)
			}
			defer func() {
				for _, line := range lines { // as a reader does that uses its buffer again
					copy(line, strings.Repeat("#", len(line)))
				}
			}()
			return result(&b)
		})
	})
}

// result returns a line for each sample, and for each rejected measurement.
func result(b *ingest.Batch) string {
	var sb strings.Builder
	for _, r := range b.Reports() {
		for _, m := range r.Measurements {
			sb.WriteString(m.Metric)
			if !r.Derived {
				fmt.Fprintf(&sb, " source=%q", r.Source)
			}
			for _, l := range m.Labels {
				fmt.Fprintf(&sb, " %s=%q", l.Name, l.Value)
			}
			fmt.Fprintf(&sb, " %v", m.Value)
			if m.TimeMs != noon {
				sb.WriteString(" @" + time.UnixMilli(m.TimeMs).UTC().Format("2006-01-02T15:04:05.999"))
			}
			sb.WriteByte('\n')
		}
	}
	for _, r := range b.Result(ingest.Result{}).Rejected {
		fmt.Fprintf(&sb, "%s: %s\n", r.Reason, r.Message)
	}
	return sb.String()
}
