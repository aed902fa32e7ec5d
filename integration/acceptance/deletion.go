package acceptance

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/operate/deletion"
	"github.com/quern/quern/internal/operate/reaggregate"
	"github.com/quern/quern/internal/query"
)

// Delete deletes the samples of a series, "" for all, in [from, to), and tells the oracle.
func (s *System) Delete(series string, from, to time.Time) (warnings []string, err error) {
	s.t.Helper()
	warnings, err = s.deleteBy(s.engine.Ingest, series, from, to)
	s.Oracle.deleted(series, from.UnixMilli(), to.UnixMilli(), err)
	return warnings, err
}

func (s *System) deleteBy(in deletion.Ingest, series string, from, to time.Time) (warnings []string, err error) {
	s.t.Helper()
	s.Advance(time.Millisecond) // as in Report
	q, index := s.querier()
	kept := reaggregate.New(reaggregate.Parts{
		Store: s.Store, Index: index, Cache: s.engine.Cache, Clock: s.Clock, Logger: slog.New(slog.DiscardHandler),
	})
	d := deletion.New(deletion.Parts{Querier: q, Ingest: in, Kept: kept, Clock: s.Clock, Logger: slog.New(slog.DiscardHandler)})
	matcher := labels.MustNewMatcher(labels.MatchEqual, metric.NameLabel, series)
	if series == "" {
		matcher = labels.MustNewMatcher(labels.MatchNotEqual, metric.NameLabel, "")
	}
	res, err := d.Delete(s.t.Context(), from.UnixMilli(), to.UnixMilli(), []*labels.Matcher{matcher})
	return res.Warnings, err
}

// meeting is ingest that something happens to after a deletion has read, and before its tombstones are written.
type meeting struct {
	*ingest.Ingest
	happens func()
}

// Delete implements deletion.Ingest.
func (m meeting) Delete(ctx context.Context, at *blocks.Place, samples []metric.Sample) error {
	m.happens()
	return m.Ingest.Delete(ctx, at, samples)
}

// testDeletionMeetsReports: what is acknowledged while its series is being deleted stays, by whichever process it comes and
// wherever its slice stands, and is in the rows.
func testDeletionMeetsReports(t *testing.T, b Backend) {
	for who, report := range map[string]func(s *System, points ...Point){
		"this process": func(s *System, points ...Point) { s.MustReport(points...) },
		"another":      func(s *System, points ...Point) { s.elsewhere(points) },
	} {
		for when, hour := range map[string]int{"an open slice": 10, "a slice that was ground": 12} {
			for then, next := range map[string]func(s *System){
				"":                  func(*System) {},
				", then it dies":    (*System).Restart,
				", then an old one": func(s *System) { s.MustReport(s.point("A", 9, 50, 3)) },
			} {
				t.Run(who+", "+when+then, func(t *testing.T) {
					s := Start(t, b, Config{BlockSize: 2})
					s.Clock.Set(time.UnixMilli(at(s, 10, 30)))
					s.MustReport(s.point("A", 10, 10, 1), s.point("A", 10, 20, 2), s.point("B", 10, 10, 3))
					s.SetClock(time.UnixMilli(at(s, hour, 40)))
					if hour > 10 {
						s.MustRun()
					}
					from, to := time.UnixMilli(at(s, 10, 0)), time.UnixMilli(at(s, 11, 0))
					_, err := s.deleteBy(meeting{s.engine.Ingest, func() {
						s.Oracle.deleted("", from.UnixMilli(), to.UnixMilli(), nil)
						report(s, s.point("A", 10, 10, 42), s.point("B", 10, 20, 43))
					}}, "", from, to)
					require.NoError(t, err)
					next(s)
					s.MustShow()
					require.Contains(t, strings.Join(s.export(), "\n"), "=42")
					require.Contains(t, strings.Join(s.export(), "\n"), "=43")
					s.DrainAndCheck()
					s.MustShow()
				})
			}
		}
	}
}

// querier returns what reads the store as any reader does. Series are listed without counting and
// faults.
func (s *System) querier() (*query.Querier, *query.Index) {
	s.t.Helper()
	index := query.NewIndex()
	require.NoError(s.t, index.Refresh(s.t.Context(), s.inspect()))
	return query.New(query.Parts{
		Store: s.Store, Index: index, Settings: s.inspect().Settings(), WholeFrom: s.Store.WholeFrom, Clock: s.Clock,
	}, query.Options{}), index
}

// deleted records what was deleted: what was acknowledged, and what was stored of the rest.
func (o *Oracle) deleted(series string, fromMs, toMs int64, err error) {
	for name, moments := range o.points {
		if series != "" && series != name {
			continue
		}
		for ms := range moments {
			p := Point{Series: name, TimeMs: ms, Value: metric.Tombstone()}
			switch {
			case ms < fromMs || toMs <= ms:
			case err == nil && moments[ms].acked:
				o.Acknowledged(p)
			default:
				o.Tried(p)
			}
		}
	}
}

// export returns what readers see of raw, a line per series.
func (s *System) export() (lines []string) {
	s.t.Helper()
	q, _ := s.querier()
	sel := query.Selector{labels.MustNewMatcher(labels.MatchNotEqual, metric.NameLabel, "")}
	from, to := s.timesMs()
	found, err := q.Export(s.t.Context(), []query.Selector{sel}, from, to)
	require.NoError(s.t, err)
	for piece, err := range found.All() {
		require.NoError(s.t, err)
		line := piece.Labels.Get(metric.NameLabel)
		for _, sm := range piece.Samples {
			line += fmt.Sprintf(" %s=%v", s.clockOf(sm.TimeMs), sm.Value)
		}
		lines = append(lines, line)
	}
	return lines
}

// MustShow fails the test if readers of raw see a deleted sample, or miss another.
func (s *System) MustShow() {
	s.t.Helper()
	type key struct {
		id metric.ScheduleID
		ms int64
	}
	want, got := map[key]uint64{}, map[key]uint64{}
	for _, sm := range s.RawSamples() {
		if !metric.IsTombstone(sm.Value) {
			want[key{sm.Schedule, sm.TimeMs}] = math.Float64bits(sm.Value)
		}
	}
	q, _ := s.querier()
	from, to := s.timesMs()
	found, err := q.Export(s.t.Context(), []query.Selector{{labels.MustNewMatcher(labels.MatchNotEqual, metric.NameLabel, "")}}, from, to)
	require.NoError(s.t, err)
	for piece, err := range found.All() {
		require.NoError(s.t, err)
		for _, sm := range piece.Samples {
			got[key{piece.ID, sm.TimeMs}] = math.Float64bits(sm.Value)
		}
	}
	require.Equal(s.t, want, got)
}
