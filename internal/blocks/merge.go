package blocks

import (
	"cmp"
	"iter"
	"slices"

	"github.com/quern/quern/internal/metric"
)

// SampleSet merges the chunks of one block. Add the chunks in the order of their IDs. Series then
// yields the samples of each schedule by time; of samples with the same time it yields the last
// added. The zero value is a set without schedules. A set can be reused, and allocates only to
// grow.
type SampleSet struct {
	ids    Range
	added  []metric.Sample
	groups groups[metric.Sample]
}

// Reset empties the set and sets the schedules that it keeps. Memory and the cost of Series grow
// with ids.Len(), which should be that of a block.
func (s *SampleSet) Reset(ids Range) {
	s.ids = ids
	s.added = s.added[:0]
}

// Add adds the samples of a chunk, except those of schedules that the set does not keep. On error
// it returns ErrCorrupt and leaves the set unchanged. The set does not keep a reference to chunk.
func (s *SampleSet) Add(chunk []byte) error {
	var err error
	s.added, err = DecodeSamplesIn(s.added, chunk, s.ids)
	return err
}

// Len returns the number of samples added, duplicates included.
func (s *SampleSet) Len() int { return len(s.added) }

// Series yields the schedules that have samples, by id. The set owns the samples: they are valid
// until the next call of Reset, Add or Series.
func (s *SampleSet) Series() iter.Seq2[metric.ScheduleID, []metric.Sample] {
	return s.groups.series(s.ids, s.added, sampleSchedule, compareSampleTimes)
}

func sampleSchedule(s *metric.Sample) metric.ScheduleID { return s.Schedule }
func compareSampleTimes(a, b metric.Sample) int         { return cmp.Compare(a.TimeMs, b.TimeMs) }

// RollupSet is like SampleSet, for roll-up rows.
type RollupSet struct {
	ids    Range
	added  []metric.RollupRow
	groups groups[metric.RollupRow]
}

// Reset empties the set and sets the schedules that it keeps; see SampleSet.Reset.
func (s *RollupSet) Reset(ids Range) {
	s.ids = ids
	clear(s.added) // releases the sketches
	clear(s.groups.sorted)
	s.added = s.added[:0]
}

// Add adds the rows of a roll-up chunk, except those of schedules that the set does not keep. The
// sketches alias chunk, which must not change while the set is used. On error Add returns
// ErrCorrupt and leaves the set unchanged.
func (s *RollupSet) Add(chunk []byte) error {
	before := len(s.added)
	all, err := DecodeRollups(s.added, chunk)
	if err != nil {
		return err
	}
	s.added = all[:before]
	s.AddRows(all[before:])
	return nil
}

// AddRows adds rows that were read from a table, in any order. It keeps their sketches without
// copying them.
func (s *RollupSet) AddRows(rows []metric.RollupRow) {
	for i := range rows {
		if s.ids.Contains(rows[i].Schedule) {
			s.added = append(s.added, rows[i])
		}
	}
}

// Len returns the number of rows added, duplicates included.
func (s *RollupSet) Len() int { return len(s.added) }

// Series yields the schedules that have rows, by id; see SampleSet.Series.
func (s *RollupSet) Series() iter.Seq2[metric.ScheduleID, []metric.RollupRow] {
	return s.groups.series(s.ids, s.added, rollupSchedule, compareRollupTimes)
}

func rollupSchedule(r *metric.RollupRow) metric.ScheduleID { return r.Schedule }
func compareRollupTimes(a, b metric.RollupRow) int         { return cmp.Compare(a.TimeMs, b.TimeMs) }

// groups is the working memory of a set. It groups by schedule with a counting sort, which is
// stable, and linear because a block is small. Then it checks the times of each schedule, which
// already ascend unless data came late or twice.
type groups[T any] struct {
	sorted []T
	ends   []int
}

func (g *groups[T]) series(
	ids Range, added []T, schedule func(*T) metric.ScheduleID, compareTimes func(a, b T) int,
) iter.Seq2[metric.ScheduleID, []T] {
	return func(yield func(metric.ScheduleID, []T) bool) {
		if len(added) == 0 {
			return
		}
		n := ids.Len()
		g.ends = slices.Grow(g.ends[:0], n)[:n]
		clear(g.ends)
		for i := range added {
			g.ends[schedule(&added[i])-ids.Start]++
		}
		sum := 0
		for i, count := range g.ends {
			g.ends[i] = sum
			sum += count
		}
		g.sorted = slices.Grow(g.sorted[:0], len(added))[:len(added)]
		for i := range added {
			at := &g.ends[schedule(&added[i])-ids.Start]
			g.sorted[*at] = added[i]
			*at++
		}

		start := 0
		for i, end := range g.ends {
			rows := g.sorted[start:end:end]
			start = end
			if len(rows) > 0 && !yield(ids.Start+metric.ScheduleID(i), keepLast(rows, compareTimes)) {
				return
			}
		}
	}
}

// keepLast sorts rows by time, in place, and keeps the last row of each time.
func keepLast[T any](rows []T, compareTimes func(a, b T) int) []T {
	ascends := true
	for i := 1; i < len(rows) && ascends; i++ {
		ascends = compareTimes(rows[i-1], rows[i]) < 0
	}
	if ascends {
		return rows
	}
	slices.SortStableFunc(rows, compareTimes)
	n := 0
	for i := range rows {
		if n > 0 && compareTimes(rows[n-1], rows[i]) == 0 {
			n--
		}
		rows[n] = rows[i]
		n++
	}
	return rows[:n]
}
