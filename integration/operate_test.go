package integration

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/process"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/pebble"
)

// TestExplainAndReaggregate: what an operator asks when a row is late, and does when it is wrong.
func TestExplainAndReaggregate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// A run comes seconds after its slice, so that there is time to see what waits for it.
	args := append(slices.Clone(seconds), "--aggregation-delay", "4s")
	p := serve(t, dir, args...)
	second := time.Now().Truncate(time.Second)
	sent := 0
	report := func() error {
		sent++
		_, err := p.Report(t.Context(), []process.Sample{{Source: "a", Metric: "it_late", Ms: second.UnixMilli() + int64(sent), Value: 1}})
		return err
	}
	require.NoError(t, report())

	// The first line about the 1s row, as a script would extract it.
	explain := func() string {
		t.Helper()
		x := start(t, "explain", "--url", p.URL, "--match", `it_late{source="a"}`, "--time", second.UTC().Format(time.RFC3339))
		require.Equal(t, 0, x.ExitCode(), x.Stderr.String())
		_, about, found := strings.Cut(x.Stdout.String(), "\n  1s row of "+second.UTC().Format(time.RFC3339)+": ")
		require.True(t, found, x.Stdout.String())
		about, _, _ = strings.Cut(about, "\n")
		return about
	}
	says := func(want string) func() error {
		return func() error {
			if said := explain(); !strings.Contains(said, want) {
				return fmt.Errorf("it says: %s", said)
			}
			return nil
		}
	}
	rowCount := func() (int, error) {
		type row struct{ Count int }
		rows, err := process.Lines[row](p, "/api/v1/rollups", url.Values{
			"match[]": {"it_late"}, "level": {"1s"},
			"start": {second.UTC().Format(time.RFC3339)}, "end": {second.Add(time.Second).UTC().Format(time.RFC3339)},
		})
		if err != nil || len(rows) == 0 {
			return 0, err
		}
		return rows[0].Count, nil
	}
	right := func() error {
		n, err := rowCount()
		if err == nil && n != sent {
			err = fmt.Errorf("a count of %d, and not of %d", n, sent)
		}
		return err
	}
	process.Eventually(t, "the row", says("complete and up to date"))
	require.NoError(t, right())

	process.Eventually(t, "late data to be seen waiting", func() error {
		require.NoError(t, report()) // on a slow machine the run comes before the look
		return says("late data: will be recomputed by the run at 20")()
	})
	process.Eventually(t, "late data to be in the row", right)
	process.Eventually(t, "late data to be done", says("complete and up to date"))
	p.Stop()

	smuggle(t, dir, second.UnixMilli()+int64(sent)+1)
	sent++
	p = serve(t, dir, args...)
	assert.Contains(t, explain(), "differs from its input")

	x := start(t, "reaggregate", "--url", p.URL, "--match", "it_late",
		"--start", strconv.FormatInt(second.UnixMilli(), 10), "--end", strconv.FormatInt(second.UnixMilli()+1000, 10))
	require.Equal(t, 0, x.ExitCode(), x.Stderr.String())
	assert.Contains(t, x.Stdout.String(), "1 series: 1 slice marked, 0 slices not closed yet, 0 slices expired.\n")
	assert.Contains(t, x.Stdout.String(), "\n   4s     20")
	assert.Empty(t, x.Stderr.String())
	process.Eventually(t, "the row to be right", right)
	process.Eventually(t, "all rows to be right", func() error {
		said := start(t, "explain", "--url", p.URL, "--match", "it_late", "--time", second.UTC().Format(time.RFC3339))
		require.Equal(t, 0, said.ExitCode())
		if n := strings.Count(said.Stdout.String(), ": complete and up to date\n"); n != 3 {
			return fmt.Errorf("%d levels are: %s", n, said.Stdout.String())
		}
		return nil
	})

	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"explain", "--match", "it_none", "--url", p.URL}, 1, "no series match it_none"},
		{[]string{"reaggregate", "--match", "it_none", "--start", "-1h", "--url", p.URL}, 1, "no series match it_none"},
		{[]string{"explain", "--match", "it_late{", "--url", p.URL}, 2, `selector "it_late{"`},
		{[]string{"reaggregate", "--match", "it_late", "--start", "dawn", "--url", p.URL}, 2, `start="dawn": must be a time`},
	} {
		x := start(t, c.args...)
		assert.Equal(t, c.code, x.ExitCode())
		assert.Contains(t, x.Stderr.String(), c.want)
	}
	p.Stop()
}

// smuggle writes a sample of the only series into raw without a mark, so that no run sees it.
func smuggle(t *testing.T, dir string, ms int64) {
	t.Helper()
	ladder, err := metric.ParseLadder("1s,2s,4s")
	require.NoError(t, err)
	st, err := pebble.Open(dir, pebble.Options{
		Settings: storage.Settings{
			Ladder: ladder, GroupSize: 128, IndexPartitions: 16, Epochs: blocks.Epochs{{BlockSize: 128}},
		}, Clock: clock.System{},
	})
	require.NoError(t, err)
	var id metric.ScheduleID
	for s, err := range st.SourceSchedules(t.Context(), "a") {
		require.NoError(t, err)
		id = s.ID
	}
	require.NoError(t, st.Write(t.Context(), &storage.Batch{Raw: []storage.RawChunk{{
		Group: blocks.Of(id, 128).Start, SliceMs: ladder.SliceAt(metric.Raw, ms).StartMs,
		Chunk: storage.Chunk{
			ID:   blocks.NewIDs(1).Next(time.Now().UnixMilli()),
			Data: blocks.AppendSamples(nil, []metric.Sample{{Schedule: id, TimeMs: ms, Value: 1}}),
		},
	}}}))
	require.NoError(t, st.Close())
}
