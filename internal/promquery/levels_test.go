package promquery

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/query/querytest"
	"github.com/quern/quern/internal/recovery/late"
	"github.com/quern/quern/internal/storage"
)

// levelsOf evaluates an expression and returns its levels, each selector on a line of its own.
func levelsOf(t *testing.T, e *Engine, q *Queryable, expr string, startMs, endMs, stepMs int64) []string {
	t.Helper()
	levels := new(query.Levels)
	query, err := e.NewRangeQuery(query.WithLevels(t.Context(), levels), q, nil, expr,
		time.UnixMilli(startMs), time.UnixMilli(endMs), time.Duration(stepMs)*time.Millisecond)
	require.NoError(t, err, expr)
	defer query.Close()
	require.NoError(t, query.Exec(t.Context()).Err, expr)
	return shown(t, q.q.Ladder(), levels)
}

func shown(t *testing.T, ladder metric.Ladder, levels *query.Levels) []string {
	all, more := levels.List()
	require.Zero(t, more)
	out := []string{}
	for _, s := range all {
		require.False(t, s.Cut)
		line := s.Selector + ":"
		for _, p := range s.Parts {
			at := func(ms int64) string { return fmt.Sprintf("%gh", float64(ms-midnight)/float64(hour)) }
			line += fmt.Sprintf(" %s [%s, %s) %d", ladder.Name(p.Bucket), at(p.StartMs), at(p.EndMs), p.Series)
			if p.Late {
				line += " late"
			}
			if p.Partial {
				line += " partial"
			}
		}
		out = append(out, line)
	}
	return out
}

// TestLevels: the levels are those that the evaluation has read, for each selector, with what is late and partial.
func TestLevels(t *testing.T) {
	for kind := range querytest.Stores {
		t.Run(kind, func(t *testing.T) {
			series, samples := walks(rand.New(rand.NewPCG(1, 2)), midnight-9*day)
			open := midnight + 10*hour
			p := newPair(t, kind, open, series, samples)
			w := p.rolled
			ask := func(expr string, startMs, endMs, stepMs int64) []string {
				t.Helper()
				return levelsOf(t, p.engine, w.queryable, expr, startMs, endMs, stepMs)
			}
			start, end := midnight-3*day, midnight+12*hour
			// The planner reads a few rows before the first window.
			const old = "6h [-102h, 6h) 10 1h [6h, 10h) 10 raw [10h, 12h) 10"
			require.Equal(t, []string{"level[6h]: " + old}, ask("avg_over_time(level[6h])", start, end, 6*hour))
			young := fmt.Sprintf("raw [%gh, %gh) 10", 11-5./60+.001/3600, 12+.001/3600)
			require.Equal(t, []string{"up_total: " + young}, ask("sum(up_total)", end-hour, end, minute))
			// Each selector has its own, in its own words.
			require.Equal(t, []string{
				`{__name__=~"up_total|level"}: ` + strings.ReplaceAll(young, " 10", " 20"),
				`up_total: ` + young,
				`up_total: ` + young,
				`none:`,
			}, ask(`count({__name__=~"up_total|level"}) + on() group_right() timestamp(up_total) or up_total * 0 or none`, end-hour, end, minute))
			both := ask("max_over_time(level[6h]) - max_over_time(level[6h] offset 1d)", start, end, 6*hour)
			require.Equal(t, []string{"level[6h]: " + old, "level[6h] offset 1d: 6h [-126h, -12h) 10"}, both)
			require.Equal(t, []string{"level[6h]: " + strings.Replace(old, "-102h", "-96h", 1)}, ask("max_over_time(avg_over_time(level[6h])[6h:6h])", start+6*hour, end, 6*hour))

			// Late data: group 0 reads finer levels around it. What has expired is read from the late row.
			clk := clock.NewSimulated(time.UnixMilli(now))
			current := storage.SliceKey{StartMs: midnight + 14*hour}
			batch := &storage.Batch{Open: []storage.SliceKey{current}}
			for i, lateMs := range []int64{midnight - 16*hour, midnight - 64*hour} {
				batch.Marks = append(batch.Marks, storage.PlacedMark{
					Partition: storage.IndexPartition{SliceKey: current},
					Mark:      storage.Mark{TimeMs: lateMs, ID: w.Chunks.Next(now + int64(i)), Kind: storage.MarkLate},
				})
			}
			require.NoError(t, w.Store.Write(t.Context(), batch))
			tracker := late.New(w.Store, clk, late.Options{Outstanding: func(context.Context) ([]storage.SliceKey, error) {
				return []storage.SliceKey{current}, nil
			}})
			reader := query.New(query.Parts{
				Store: w.Store, Index: w.Index, Settings: w.Store.Settings(), WholeFrom: w.Store.WholeFrom, Clock: clk,
			}, query.Options{Late: tracker})
			engine, queryable := New(reader, Options{})
			require.Equal(t, []string{
				"level[6h]: " +
					"6h [-102h, -66h) 10 1h [-66h, -64h) 4 6h [-66h, -60h) 6 1h [-64h, -63h) 4 late 1h [-63h, -60h) 4 " +
					"6h [-60h, -18h) 10 1h [-18h, -16h) 4 6h [-18h, -12h) 6 raw [-16h, -15h) 4 1h [-15h, -12h) 4 " +
					"6h [-12h, 6h) 10 1h [6h, 10h) 10 raw [10h, 12h) 10",
			}, levelsOf(t, engine, queryable, "avg_over_time(level[6h])", start, end, 6*hour))

			// If the late data cannot be read, all rows may lack some.
			away := late.New(w.Store, clk, late.Options{Outstanding: func(context.Context) ([]storage.SliceKey, error) {
				return nil, storage.ErrUnavailable
			}})
			unsure := query.New(query.Parts{
				Store: w.Store, Index: w.Index, Settings: w.Store.Settings(), WholeFrom: w.Store.WholeFrom, Clock: clk,
			}, query.Options{Late: away})
			engine, queryable = New(unsure, Options{})
			require.Equal(t, []string{"level[6h]: 6h [-102h, 6h) 10 late 1h [6h, 10h) 10 late raw [10h, 12h) 10"},
				levelsOf(t, engine, queryable, "avg_over_time(level[6h])", start, end, 6*hour))

			// A damaged row.
			engine, queryable = New(query.New(query.Parts{
				Store: damagedRow{w.Store}, Index: w.Index, Settings: w.Store.Settings(), WholeFrom: w.Store.WholeFrom, Clock: clk,
			}, query.Options{}), Options{})
			require.Equal(t, []string{
				"level[6h]: 6h [-102h, -48h) 10 6h [-48h, -42h) 10 partial 6h [-42h, 6h) 10 1h [6h, 10h) 10 raw [10h, 12h) 10",
			}, levelsOf(t, engine, queryable, "avg_over_time(level[6h])", start, end, 6*hour))

			// Partial rows and damaged chunks.
			row := metric.RollupRow{Schedule: 9, TimeMs: midnight - day}
			row.Rollup, _ = querytest.RollupOf(samples[9])
			row.Partial = true
			require.NoError(t, w.Store.WriteRollups(t.Context(), 0, 2, []metric.RollupRow{row}))
			require.NoError(t, w.Store.Write(t.Context(), &storage.Batch{Raw: []storage.RawChunk{{
				Group: 16, SliceMs: midnight + 11*hour, Chunk: storage.Chunk{ID: w.Chunks.Next(now), Data: []byte("damaged")},
			}}}))
			require.Equal(t, []string{
				"level[6h]: 6h [-102h, -24h) 10 6h [-24h, -18h) 10 partial 6h [-18h, 6h) 10 1h [6h, 10h) 10 raw [10h, 11h) 10 raw [11h, 12h) 10 partial",
			}, ask("avg_over_time(level[6h])", start, end, 6*hour))
		})
	}
}

// damagedRow is a store in which the 6h row of a series that begins two days ago is damaged.
type damagedRow struct{ storage.Store }

func (s damagedRow) Rollups(
	ctx context.Context, level metric.Bucket, ids blocks.Range, fromMs, toMs int64,
) iter.Seq2[metric.RollupRow, error] {
	return func(yield func(metric.RollupRow, error) bool) {
		for row, err := range s.Store.Rollups(ctx, level, ids, fromMs, toMs) {
			row.Damaged = row.Damaged || level == 2 && row.Schedule == 9 && row.TimeMs == midnight-2*day
			if !yield(row, err) {
				return
			}
		}
	}
}
