package promquery

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSubqueryStepIsAMillisecond: the engine divides by the milliseconds of a subquery's step.
func TestSubqueryStepIsAMillisecond(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	engine, queryable := New(w.q, Options{})
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
		require.ErrorContains(t, err, "the step of a subquery is at least one", expr)
	}
}
