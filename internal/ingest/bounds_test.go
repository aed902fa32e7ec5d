package ingest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/access/bound"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/registry"
)

// TestBound: of a request that is restricted to some series the others are rejected, whichever label keeps them out, and
// whether they are there already. Nothing is registered for them.
func TestBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, store := start(t, ingest.Options{}, registry.Options{})
		b, err := bound.Parse([]string{`{team=~"web|ops"}`, `{__name__="shared",source="web-1"}`}, 0)
		require.NoError(t, err)
		ctx := bound.WithBound(t.Context(), b)
		team := func(value string) []metric.Label { return []metric.Label{{Name: "team", Value: value}} }
		db := team("db")
		now := clock.NowMs(clock.System{})
		known := []ingest.Report{{Source: "web-1", Measurements: []ingest.Measurement{{Metric: "known", Labels: db, TimeMs: now}}}}
		_, err = in.Append(t.Context(), known)
		require.NoError(t, err)
		reports := []ingest.Report{
			{Source: "web-1", Measurements: []ingest.Measurement{
				{Metric: "a", Labels: team("web"), TimeMs: now},
				{Metric: "known", Labels: db, TimeMs: now},
				{Metric: "known", Labels: db, TimeMs: now + 1},
				{Metric: "a", Labels: team("ops"), TimeMs: now},
				{Metric: "a", Labels: team(""), TimeMs: now},
				{Metric: "a", TimeMs: now},
				{Metric: "shared", TimeMs: now},
				{Metric: "shared", Labels: team("db"), TimeMs: now},
				{Metric: "a", Labels: append(team("web"), team("db")...), TimeMs: now}, // no series has a label twice
			}},
			{Source: "db-1", Measurements: []ingest.Measurement{{Metric: "shared", TimeMs: now}}},
			{Source: "web-1", Derived: true, Measurements: []ingest.Measurement{{Metric: "shared", TimeMs: now}}}, // has no label source
		}
		for name, write := range map[string]func(context.Context, []ingest.Report) (ingest.Result, error){"append": in.Append, "back-fill": in.BackFill} {
			result, err := write(ctx, reports)
			require.NoError(t, err, name)
			require.Equal(t, 4, result.Accepted, name)
			reasons := map[int]ingest.Reason{}
			for _, r := range result.Rejected {
				reasons[r.Index] = r.Reason
			}
			require.Equal(t, map[int]ingest.Reason{
				1: ingest.ReasonForbidden, 2: ingest.ReasonForbidden, 4: ingest.ReasonForbidden, 5: ingest.ReasonForbidden,
				8: ingest.ReasonInvalidLabel, 9: ingest.ReasonForbidden, 10: ingest.ReasonForbidden,
			}, reasons, name)
			require.Equal(t, `metric known: label team is "db", and the token may write only {team=~"web|ops"} or {__name__="shared",source="web-1"}`, result.Rejected[0].Message)
		}
		names := map[string]int{}
		for s, err := range store.Schedules(t.Context(), blocks.Range{End: 1 << 20}) {
			require.NoError(t, err)
			names[s.Labels.Get(metric.NameLabel)+" "+s.Labels.Get("team")]++
		}
		require.Equal(t, map[string]int{"known db": 1, "a web": 1, "a ops": 1, "shared ": 1, "shared db": 1}, names)
		require.NoError(t, in.Close())
	})
}

// TestRateOfSenders: what is sent beyond a client's rate is refused before it is looked at, and is not kept.
func TestRateOfSenders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, store := start(t, ingest.Options{}, registry.Options{})
		ctx := limits.WithRate(t.Context(), limits.NewRate(2, clock.System{}.Elapsed))
		_, err := in.Append(ctx, report(1, 2, 3, 4, 5, 6))
		require.NoError(t, err)
		writes := store.Count("Write")
		_, err = in.Append(ctx, report(7))
		var early *limits.RateError
		require.ErrorAs(t, err, &early)
		require.Equal(t, 2*time.Second, early.After)
		require.Equal(t, writes, store.Count("Write"))
		_, err = in.Append(t.Context(), report(7)) // of another client
		require.NoError(t, err)
		time.Sleep(early.After) // the bubble's clock
		_, err = in.Append(ctx, report(8))
		require.NoError(t, err)
		require.NoError(t, in.Close())
	})
}
