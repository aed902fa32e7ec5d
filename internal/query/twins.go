package query

import (
	"cmp"
	"context"
	"encoding/binary"
	"hash/maphash"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/sketch"
	"github.com/quern/quern/internal/storage"
)

// A series has several ids if its source was derived by several lists of labels: by another version, or before the
// list was changed. All reads but Apart take them for one series:
//
//  1. A group has such a series under its lowest selected id, and has its other ids beside.
//  2. Of two samples with the same time the one of the later chunk counts, as for one id.
//  3. Rows of the same slice are added up, since they do not say which samples they have in common. A warning says so.

// twins finds the ids of series with equal labels.
type twins struct {
	seed maphash.Seed
	at   places // of an id of each series, by the hash of its labels
	// of has all ids of each series that has several, sorted, by each of them. several is their number.
	of      map[metric.ScheduleID][]metric.ScheduleID
	several atomic.Int64
	key     []byte
}

func (t *twins) init() {
	t.seed, t.at, t.of = maphash.MakeSeed(), newPlaces(), make(map[metric.ScheduleID][]metric.ScheduleID)
}

// find returns the place of a series, by the numbers of its labels, and the id that is there; ok is false if there is none.
func (t *twins) find(refs []uint32, labels func(metric.ScheduleID) []uint32) (at, id uint32, ok bool) {
	t.key = t.key[:0]
	for _, ref := range refs {
		t.key = binary.NativeEndian.AppendUint32(t.key, ref)
	}
	return t.at.find(maphash.Bytes(t.seed, t.key), func(id uint32) bool { return slices.Equal(labels(metric.ScheduleID(id)), refs) })
}

// add adds a series; labels returns those of the series that were added before.
func (t *twins) add(id metric.ScheduleID, refs []uint32, labels func(metric.ScheduleID) []uint32) {
	at, there, ok := t.find(refs, labels)
	if !ok {
		t.at.put(at, uint32(id))
		return
	}
	other := metric.ScheduleID(there)
	all := []metric.ScheduleID{other, id}
	if more := t.of[other]; more != nil {
		all = append(slices.Clone(more), id) // readers may have the slice
	}
	t.set(all)
}

// remove removes a series, whose labels are still known.
func (t *twins) remove(id metric.ScheduleID, refs []uint32, labels func(metric.ScheduleID) []uint32) {
	at, there, _ := t.find(refs, labels)
	rest := slices.DeleteFunc(slices.Clone(t.of[id]), func(other metric.ScheduleID) bool { return other == id })
	delete(t.of, id)
	switch {
	case len(rest) == 0:
		t.at.put(at, vacant)
	case metric.ScheduleID(there) == id:
		t.at.put(at, uint32(rest[0]))
	}
	t.set(rest)
}

func (t *twins) set(all []metric.ScheduleID) {
	slices.Sort(all)
	for _, id := range all {
		if t.of[id] = all; len(all) == 1 {
			delete(t.of, id)
		}
	}
	t.several.Store(int64(len(t.of)))
}

// also are ids, sorted and of one storage group, of series that a group has under another id.
type also struct {
	ids []metric.ScheduleID
	// as are the ids that the group has the series under.
	as []metric.ScheduleID
}

func (a also) span() blocks.Range { return spanOf(a.ids) }

// spanOf returns the id range from the first of sorted ids to the last.
func spanOf(ids []metric.ScheduleID) blocks.Range {
	return blocks.Range{Start: ids[0], End: ids[len(ids)-1] + 1}
}

// spans returns the id ranges in which the group's series lie.
func (g group) spans() []blocks.Range {
	out := []blocks.Range{g.span()}
	for _, a := range g.also {
		out = append(out, a.span())
	}
	return out
}

// only returns the group with some of its series, by their places, in order.
func (g group) only(places []int) group {
	var out group
	for _, i := range places {
		out.ids = append(out.ids, g.ids[i])
	}
	for _, a := range g.also {
		var some also
		for i, id := range a.ids {
			if _, found := slices.BinarySearch(out.ids, a.as[i]); found {
				some.ids, some.as = append(some.ids, id), append(some.as, a.as[i])
			}
		}
		if len(some.ids) > 0 {
			out.also = append(out.also, some)
		}
	}
	return out
}

// idsOf returns the ids of the series at a place, that of the group first.
func (g group) idsOf(i int) []metric.ScheduleID {
	out := []metric.ScheduleID{g.ids[i]}
	for _, a := range g.also {
		for j, as := range a.as {
			if as == g.ids[i] {
				out = append(out, a.ids[j])
			}
		}
	}
	return out
}

// joined splits series into groups of at most maxIDs, with all ids of each series. ids are sorted, and have one or
// more of a series' ids.
func (q *Querier) joined(ids []metric.ScheduleID, maxIDs int) []group {
	single, several := q.index.several(ids)
	out := q.grouped(single, maxIDs)
	if len(several) == 0 {
		return out
	}
	start := func(id metric.ScheduleID) metric.ScheduleID { return blocks.Of(id, q.groupSize).Start }
	// Series whose ids lie in the same storage groups are read together.
	places := func(a, b []metric.ScheduleID) int {
		return slices.CompareFunc(a, b, func(a, b metric.ScheduleID) int { return cmp.Compare(start(a), start(b)) })
	}
	slices.SortFunc(several, func(a, b []metric.ScheduleID) int { return cmp.Or(places(a, b), slices.Compare(a, b)) })
	for len(several) > 0 {
		n := 1
		for n < min(len(several), maxIDs) && places(several[0], several[n]) == 0 {
			n++
		}
		out = append(out, groupOf(several[:n], start))
		several = several[n:]
	}
	slices.SortFunc(out, func(a, b group) int { return cmp.Compare(a.ids[0], b.ids[0]) })
	return out
}

// groupOf returns the group of series with several ids each, of which the first lie in one storage group and ascend.
// start returns the start of an id's storage group.
func groupOf(several [][]metric.ScheduleID, start func(metric.ScheduleID) metric.ScheduleID) group {
	type pair struct{ id, as metric.ScheduleID }
	var g group
	var pairs []pair
	for _, all := range several {
		g.ids = append(g.ids, all[0])
		for _, id := range all[1:] {
			pairs = append(pairs, pair{id, all[0]})
		}
	}
	slices.SortFunc(pairs, func(a, b pair) int { return cmp.Compare(a.id, b.id) })
	for i, p := range pairs {
		if i == 0 || start(p.id) != start(pairs[i-1].id) {
			g.also = append(g.also, also{})
		}
		a := &g.also[len(g.also)-1]
		a.ids, a.as = append(a.ids, p.id), append(a.as, p.as)
	}
	return g
}

// groupChunk is a raw chunk of one of a group's storage groups. Unless of is nil, it is read for the ids in of.
type groupChunk struct {
	storage.RawChunk
	of *also
}

// chunks yields the raw chunks of a group for the slices that start in [fromMs, toMs), by slice and ID.
func (q *Querier) chunks(ctx context.Context, g group, fromMs, toMs int64) iter.Seq2[groupChunk, error] {
	from := func(ids blocks.Range, of *also) iter.Seq2[groupChunk, error] {
		return func(yield func(groupChunk, error) bool) {
			all := q.store.RawChunks(ctx, ids, fromMs, toMs)
			if len(g.also) == 0 { // otherwise chunks of several ids take turns
				all = q.unpacked.chunks(all)
			}
			for ch, err := range all {
				if !yield(groupChunk{ch, of}, err) {
					return
				}
			}
		}
	}
	streams := []iter.Seq2[groupChunk, error]{from(g.span(), nil)}
	for i := range g.also {
		streams = append(streams, from(g.also[i].span(), &g.also[i]))
	}
	return storage.InTurn(streams, func(a, b groupChunk) int {
		return cmp.Or(cmp.Compare(a.SliceMs, b.SliceMs), a.ID.Compare(b.ID))
	})
}

// rowOf is a row of one of a series' ids, by its place among them.
type rowOf struct {
	metric.RollupRow
	from int
}

// joinedRows yields the rows of a group whose series have several ids; see rows. It reads each series for itself, so that
// it holds one row of each id at a time.
func (q *Querier) joinedRows(ctx context.Context, g group, level metric.Bucket, fromMs, toMs int64, warn *warnings) iter.Seq2[groupRow, error] {
	return func(yield func(groupRow, error) bool) {
		for i := range g.ids {
			for row, err := range q.seriesRows(ctx, g.idsOf(i), level, fromMs, toMs, warn) {
				if !yield(groupRow{i, row}, err) || err != nil {
					return
				}
			}
		}
	}
}

// seriesRows yields the rows of a series with several ids by time, under the first id.
func (q *Querier) seriesRows(
	ctx context.Context, ids []metric.ScheduleID, level metric.Bucket, fromMs, toMs int64, warn *warnings,
) iter.Seq2[*metric.RollupRow, error] {
	streams := make([]iter.Seq2[rowOf, error], len(ids))
	for i, id := range ids {
		streams[i] = func(yield func(rowOf, error) bool) {
			for row, err := range q.rows(ctx, group{ids: []metric.ScheduleID{id}}, level, fromMs, toMs, warn) {
				if err != nil {
					yield(rowOf{}, err)
					return
				}
				if !yield(rowOf{*row.RollupRow, i}, nil) {
					return
				}
			}
		}
	}
	return func(yield func(*metric.RollupRow, error) bool) {
		var same []rowOf // those of one slice
		last := -1       // the id that alone has the row before, -1 if several have
		flush := func() bool {
			if len(same) == 0 {
				return true
			}
			// The id that the series had before comes first. If that is unknown it is the lower one, which is older.
			slices.SortStableFunc(same, func(a, b rowOf) int {
				switch last {
				case a.from:
					return -1
				case b.from:
					return 1
				}
				return 0
			})
			if last = same[0].from; len(same) > 1 {
				last = -1
				warn.add("several ids: %s has the ids %s, whose %s rows are added up: a sample that several of them have counts several times",
					q.index.Labels(ids[0]), listed(ids), q.ladder.Name(level))
			}
			row, err := sum(same)
			if err != nil {
				warn.add("%s of %s: percentiles are missing: %v", q.rowName(level, row.TimeMs), q.index.Labels(ids[0]), err)
			}
			row.Schedule = ids[0]
			same = same[:0]
			return yield(&row, nil)
		}
		for row, err := range storage.InTurn(streams, func(a, b rowOf) int { return cmp.Compare(a.TimeMs, b.TimeMs) }) {
			if err != nil {
				yield(nil, err)
				return
			}
			if len(same) > 0 && same[0].TimeMs != row.TimeMs && !flush() {
				return
			}
			same = append(same, row)
		}
		flush()
	}
}

// listed returns ids as text.
func listed(ids []metric.ScheduleID) string {
	text := make([]string, len(ids))
	for i, id := range ids {
		text[i] = strconv.FormatInt(int64(id), 10)
	}
	return strings.Join(text, " and ")
}

// sum adds up rows of one slice, in the order of their samples as far as that is known. Where they overlap, what is in
// several of them counts several times. A step down from one row to the next is then no reset, so it does not count. The
// error says that the sum has no sketch.
func sum(rows []rowOf) (metric.RollupRow, error) {
	out := rows[0].RollupRow
	if len(rows) == 1 {
		return out, nil
	}
	var all sketch.Sketch
	err := all.Merge(out.Sketch)
	for i := range rows[1:] {
		r := &rows[1+i].Rollup
		out.Count += r.Count
		out.Sum += r.Sum
		out.Min = min(out.Min, r.Min)
		out.Max = max(out.Max, r.Max)
		out.Increase += r.Increase + max(r.First-out.Last, 0)
		out.Last = r.Last
		out.Partial = out.Partial || r.Partial
		err = cmp.Or(err, all.Merge(r.Sketch))
	}
	if out.Sketch = nil; err == nil {
		out.Sketch = all.AppendEncoded(nil)
	}
	return out, err
}
