// Package programs runs programs of others that send to a real server for a while, configured as
// their users would, and checks that everything they count as sent is stored. Settings that a
// program does not offer stay at their defaults: these tests show what no specification says.
//
// The programs come from Debian packages, see package debian, or are Go libraries.
package programs

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/debian"
	"github.com/quern/quern/integration/process"
	"github.com/quern/quern/internal/wire"
)

var quern string

func TestMain(m *testing.M) {
	os.Exit(process.Tests{M: m, Use: func(p *process.Programs) { quern = p.Quern }}.Run())
}

// serve starts a server on which a day takes eight seconds.
func serve(t *testing.T, args ...string) *process.Process {
	t.Helper()
	p := process.Start(t, exec.CommandContext(t.Context(), quern, append([]string{
		"serve", "--listen", "127.0.0.1:0", "--data-dir", t.TempDir(), "--host-metrics=false",
		"--rollups", "2s,4s,8s", "--aggregation-delay", "500ms", "--late-grace", "200ms",
	}, args...)...))
	p.Ready()
	return p
}

// start starts another project's program.
func start(t *testing.T, p debian.Program, args ...string) *process.Process {
	t.Helper()
	return process.Start(t, find(t, p).Command(t.Context(), args...))
}

func find(t *testing.T, p debian.Program) debian.Found {
	t.Helper()
	found, err := p.Find(t.Context())
	require.NoError(t, err)
	return found
}

// write writes a file.
func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

// point is a time of a series.
type point struct {
	series string // in PromQL notation
	ms     int64
}

// points holds the bits of the values, since not all NaNs are the same.
type points map[point]uint64

func (p points) add(series labels.Labels, ms int64, v float64) {
	p[point{series.String(), ms}] = math.Float64bits(v)
}

// missing returns an error for points of want that p lacks or has with other values.
func (p points) missing(want points) error {
	var wrong []string
	for k, v := range want {
		got, ok := p[k]
		switch {
		case !ok:
			wrong = append(wrong, fmt.Sprintf("%s at %d is missing", k.series, k.ms))
		case got != v:
			wrong = append(wrong, fmt.Sprintf("%s at %d is %v, must be %v; in bits %x and %x",
				k.series, k.ms, math.Float64frombits(got), math.Float64frombits(v), got, v))
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	slices.Sort(wrong)
	return fmt.Errorf("of %d samples %d: %s", len(want), len(wrong), strings.Join(wrong[:min(len(wrong), 10)], "; "))
}

// requireSame requires that the sent and the stored points are equal.
func requireSame(t *testing.T, sent, stored points) {
	t.Helper()
	require.NotEmpty(t, sent)
	require.NoError(t, stored.missing(sent), "stored, of what was sent")
	require.NoError(t, sent.missing(stored), "sent, of what is stored")
}

// exported returns all stored points.
func exported(p *process.Process) (points, error) {
	query := process.Within(`{__name__!=""}`, time.Hour)
	query.Set("exact", "true")
	lines, err := process.Lines[wire.Samples](p, "/api/v1/export", query)
	out := points{}
	for _, l := range lines {
		series := labels.FromMap(l.Metric)
		for i, v := range l.Values {
			out.add(series, l.Timestamps[i], float64(v))
		}
		if len(l.Values) != len(l.Timestamps) {
			return nil, fmt.Errorf("%s has %d values, and %d times", series, len(l.Values), len(l.Timestamps))
		}
	}
	return out, err
}

// storedAll waits until as many samples are stored as a program says it sent, and returns them.
func storedAll(t *testing.T, p *process.Process, sent func() (int, error)) points {
	t.Helper()
	var stored points
	process.Eventually(t, "all that was sent", func() error {
		n, err := sent()
		if err != nil {
			return err
		}
		if stored, err = exported(p); err == nil && len(stored) != n {
			err = fmt.Errorf("%d samples were sent, %d are stored", n, len(stored))
		}
		return err
	})
	return stored
}

// ground waits until everything is ground, and compares the roll-ups with the samples.
func ground(t *testing.T, p *process.Process) {
	t.Helper()
	process.Eventually(t, "roll-ups", func() error {
		out, err := exec.CommandContext(t.Context(), quern, "verify", "--url", p.URL, "--start", "-1h").CombinedOutput()
		require.NoError(t, err, "%s", out)
		for _, level := range []string{"2s", "4s", "8s"} {
			// After this line it reports how many rows are still to come.
			if !regexp.MustCompile(`\n` + level + `: [1-9]\d* rows compared, 0 differ\n`).Match(out) {
				return fmt.Errorf("%s", out)
			}
		}
		return nil
	})
	p.Stop()
}

// counted sums a program's own metrics in Prometheus' text format, over all series of the named
// metrics.
func counted(t *testing.T, url string, names ...string) (float64, error) {
	resp, err := get(t, url+"/metrics")
	if err != nil {
		return 0, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(resp))
	if err != nil {
		return 0, err
	}
	var sum float64
	for _, name := range names {
		if families[name] == nil {
			return 0, fmt.Errorf("%s has no metric %s", url, name)
		}
		for _, m := range families[name].GetMetric() {
			// Only one of these is set.
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()
		}
	}
	return sum, nil
}

// get sends a GET request to a program.
func get(t *testing.T, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := process.Client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, resp.Status, body)
	}
	return body, err
}
