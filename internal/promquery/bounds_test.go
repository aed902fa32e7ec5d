package promquery

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSubqueryStepIsAMillisecond: the engine divides by the milliseconds of a subquery's step.
func TestSubqueryStepIsAMillisecond(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	engine, queryable := New(w.Querier, Options{})
	for expr, ok := range map[string]bool{
		"max_over_time(m[1s:0.0001])":                            false,
		"max_over_time(max_over_time(m[1s:0.0009])[1m:1s])":      false,
		"sum(rate(m[1m])) + max_over_time(vector(1)[1s:0.0001])": false,
		"max_over_time(m[1s:0.001])":                             true,
		"max_over_time(m[1s:])":                                  true,
	} {
		q, err := engine.NewInstantQuery(t.Context(), queryable, nil, expr, time.UnixMilli(now))
		if ok {
			require.NoError(t, err, expr)
			require.NoError(t, q.Exec(t.Context()).Err, expr)
			q.Close()
			continue
		}
		require.ErrorContains(t, err, "the step of a subquery must be at least 1ms", expr)
	}
}

// heavy asks for what takes much, and returns what it allocated.
func (w *world) heavy(opts Options, expr string, start, end time.Time, step time.Duration) (took int64, err error) {
	engine, queryable := New(w.Querier, opts)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	q, err := engine.NewRangeQuery(w.t.Context(), queryable, nil, expr, start, end, step)
	if err == nil {
		err = q.Exec(w.t.Context()).Err
		q.Close()
	}
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc), err
}

// TestSubqueriesCountTheirSteps: the engine keeps something of each step of a subquery, also where there are no series.
func TestSubqueriesCountTheirSteps(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	opts := Options{MaxSamples: 1_000_000}
	at := time.UnixMilli(now)
	nested := func(depth, steps int) string {
		expr := "none @ 0"
		for range depth - 1 {
			expr = "(none @ 0) or max_over_time((" + expr + ")[1ms:1ms])"
		}
		return fmt.Sprintf("max_over_time((%s)[%dms:1ms])", expr, steps)
	}
	chained := func(op string, n int) string {
		return strings.Repeat("max_over_time(none[400s:1ms]) "+op+" ", n-1) + "max_over_time(none[400s:1ms])"
	}
	for _, expr := range []string{nested(3, 400_000), nested(20, 60_000), nested(1, 1_000_001), "-(" + nested(3, 400_000) + ")"} {
		took, err := w.heavy(opts, expr, at, at, 0)
		require.ErrorContains(t, err, "larger step", "%.100s", expr)
		require.Less(t, took, int64(opts.MaxSamples*sampleBytes/4), "%.100s", expr)
	}
	// Those that are evaluated one after the other are not held together.
	for _, expr := range []string{nested(1, 900_000), nested(2, 400_000), chained("or", 10), chained("+", 10)} {
		_, err := w.heavy(opts, expr, at, at, 0)
		require.NoError(t, err, "%.100s", expr)
	}
}

// TestDeepExpressionsAreBounded: the engine writes the text of an expression once for each of its levels.
func TestDeepExpressionsAreBounded(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	at := time.UnixMilli(now)
	deep := func(levels, bytes int) string {
		return strings.Repeat("-", levels) + `none{i="` + strings.Repeat("x", bytes) + `"}`
	}
	took, err := w.heavy(Options{}, deep(9000, 200_000), at, at, 0)
	require.ErrorContains(t, err, "levels deep")
	require.Less(t, took, int64(100<<20))
	for _, expr := range []string{deep(9000, 1000), deep(10, 1_000_000), strings.Repeat("none{i=\"x\"} or ", 999) + "none"} {
		_, err := w.heavy(Options{}, expr, at, at, 0)
		require.NoError(t, err, "%.100s", expr)
	}
}

// TestExperimentalFunctionsAreRefused: info() selects series that are not in the expression.
func TestExperimentalFunctionsAreRefused(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	engine, queryable := New(w.Querier, Options{})
	_, err := engine.NewInstantQuery(t.Context(), queryable, nil, `info(m)`, time.UnixMilli(now))
	require.ErrorContains(t, err, "is not enabled")
}

// TestMadeLabels: what functions make of labels is known before they make it.
func TestMadeLabels(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	w.wide("m", 10) // values of 4000 bytes
	at := time.UnixMilli(now)
	opts := Options{MaxSamples: 50_000}
	for expr, want := range map[string]string{
		`label_replace(m, "a", "$1", "l0", "(.*)")`:                               "",
		`label_replace(m, "a", "$1$1$1", "l0", "(.*)")`:                           "",
		`label_join(m, "a", "", "l0", "l1")`:                                      "",
		strings.Repeat(`label_replace(m, "a", "$1", "l0", "(.*)") or `, 29) + "m": "may make",
		`label_join(m, "a", ""` + strings.Repeat(`, "l0"`, 30) + ")":              "may make",
		`label_replace(m, "a", "` + strings.Repeat("y", 90_000) + `", "", "")`:    "may make",
		`label_replace(m, "a", "", "l0", "` + strings.Repeat("x?", 5000) + `")`:   "would take too long",
		`label_replace(m, "a", "", "l0", "(.?){1000}z")`:                          "would take too long",
		`max_over_time(label_join(count_values("v", m), "a", "", "v")[1h:1s])`:    "may make",
		`label_join(count_values("v", m), "a", "", "v")`:                          "",
	} {
		_, err := w.heavy(opts, expr, at, at, 0)
		if want == "" {
			require.NoError(t, err, "%.100s", expr)
		} else {
			require.ErrorContains(t, err, want, "%.100s", expr)
		}
	}
}
