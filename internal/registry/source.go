package registry

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Source is the known series of one source. It is safe for concurrent use.
type Source struct {
	r       *Registry
	number  uint64 // no other source of the registry has it
	name    string
	derived bool
	used    atomic.Bool // since the ring's hand came by

	partition string // its name in the store

	// turn is held while registering, so that one source's goroutines do not claim the same series
	// with different ids. It is a channel so that waiting can be cancelled. Who takes several turns
	// takes them in the order of number.
	turn chan struct{}
	// last is the greatest id, NoID if there is none. doubt holds the ids with which some series
	// without an id are to be claimed. Both belong to the holder of turn, as does leaving.
	last    metric.ScheduleID
	doubt   map[digest]attempt
	leaving *leaving

	// What this process has taken of the source since it was loaded, and when it last took some, in Unix ms.
	samples, bytes, lastMs atomic.Int64

	// checked is the store's Doubts when the known series were last read or checked.
	checked atomic.Int64

	// ids are those of the known series. Only the holder of turn changes them.
	ids atomic.Pointer[known]
}

// attempt is the id of a claim that failed but may have taken effect. The series is claimed again
// with the same id, so that retries against a failing store use up no more ids.
type attempt struct {
	id metric.ScheduleID
	// had: the series had the id, and samples may lie under it. So no other series may get it.
	had bool
}

func (s *Source) key() sourceKey { return sourceKey{s.name, s.derived} }

// read returns the series that the store has, and their greatest id.
func (s *Source) read(ctx context.Context) (ids *known, last metric.ScheduleID, err error) {
	type series struct {
		digest
		id metric.ScheduleID
	}
	last = NoID
	var all []series
	var key []byte
	for sch, err := range s.r.store.SourceSchedules(ctx, s.partition) {
		if err == nil {
			err = checkID(sch.ID)
		}
		if err != nil {
			return nil, 0, err
		}
		key = s.appendKey(key[:0], sch.Labels)
		all = append(all, series{s.r.seeds.digest(key), sch.ID})
		last = max(last, sch.ID)
	}
	ids = newKnown(len(all))
	for _, one := range all {
		ids.add(one.digest, one.id)
	}
	return ids, last, nil
}

// check compares the known series with the store, if the store may have forgotten some. Forgotten
// series are claimed again under their ids, so that what was written to them has its labels. If
// another process may have got these ids since, the series are claimed under new ids. This goes on
// when ctx is done.
func (s *Source) check(ctx context.Context) error {
	if s.checked.Load() == s.r.store.Doubts() {
		return nil
	}
	_, err := s.r.checks.Do(ctx, s, func(ctx context.Context) (struct{}, error) { return struct{}{}, s.compare(ctx) })
	return err
}

func (s *Source) compare(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	doubts := s.r.store.Doubts()
	if s.checked.Load() == doubts {
		return nil
	}
	if err := s.reclaim(ctx); err != nil {
		return fmt.Errorf("check whether the store still has the series of source %q: %w", s.name, err)
	}
	s.checked.Store(doubts)
	return nil
}

func (s *Source) reclaim(ctx context.Context) error {
	if err := s.r.ids.confirm(ctx); err != nil {
		return err
	}
	there, last, err := s.read(ctx)
	if err != nil {
		return err
	}
	lost, doubt := s.lost(there)
	fresh := 0
	for i := range lost {
		if !s.r.ids.mine(lost[i].id) {
			lost[i].id = NoID
			fresh++
		}
	}
	if fresh > 0 {
		got, err := s.r.ids.take(ctx, fresh, NoID)
		if err != nil {
			return err
		}
		for i := range lost {
			if lost[i].id == NoID {
				lost[i].id = got.Start
				got.Start++
			}
		}
	}
	there = there.with(len(lost))
	for some := range slices.Chunk(lost, claimSize) {
		want := make([]storage.Claim, len(some))
		schedules := make([]storage.Schedule, len(some))
		for i, c := range some {
			schedules[i] = storage.Schedule{ID: c.id, Labels: c.labels}
			want[i] = storage.Claim{Source: s.partition, Schedule: schedules[i]}
		}
		ids, err := s.r.claimSchedules(ctx, want)
		if err != nil {
			return err
		}
		for i, c := range some {
			there.add(c.digest, ids[i])
			schedules[i].ID, last = ids[i], max(last, ids[i])
		}
		if s.r.opts.OnNew != nil {
			s.r.opts.OnNew(schedules)
		}
	}
	s.ids.Store(there)
	s.last, s.doubt = max(s.last, last), doubt
	return nil
}

// lost returns the known series that are not there, in the order of their ids. Those of which nobody
// knows the labels are claimed when they report again, if the ids are still this process's.
func (s *Source) lost(there *known) (lost []claim, doubt map[digest]attempt) {
	again := func(d digest, id metric.ScheduleID) {
		if !s.r.ids.mine(id) {
			return
		}
		if doubt == nil {
			doubt = make(map[digest]attempt)
		}
		doubt[d] = attempt{id: id, had: true}
	}
	for d, at := range s.doubt { // the others may be ids of leases that were given up
		if _, ok := there.find(d); !ok && at.had {
			again(d, at.id)
		}
	}
	for d, id := range s.ids.Load().all() {
		if _, ok := there.find(d); ok {
			continue
		}
		if labels := s.labels(d, id); labels != nil {
			lost = append(lost, claim{digest: d, labels: labels, id: id})
		} else {
			again(d, id)
		}
	}
	slices.SortFunc(lost, func(a, b claim) int { return cmp.Compare(a.id, b.id) })
	return lost, doubt
}

// labels returns the labels of a known series as the store has them, nil if nobody knows them.
func (s *Source) labels(d digest, id metric.ScheduleID) metric.Labels {
	if s.r.opts.Labels == nil {
		return nil
	}
	labels := s.r.opts.Labels(id)
	if s.r.seeds.digest(s.appendKey(nil, labels)) != d { // of another series, which has the id by now
		return nil
	}
	return labels
}

// Lookup finds a series by its key: the canonical bytes (metric.Labels.AppendKey) of its labels,
// without the source label unless the source is derived. It neither allocates nor waits.
func (s *Source) Lookup(key []byte) (metric.ScheduleID, bool) {
	return s.ids.Load().find(s.r.seeds.digest(key))
}

// Len is the number of known series.
func (s *Source) Len() int { return s.ids.Load().len() }

// all returns the ids of the known series, sorted.
func (s *Source) all() []metric.ScheduleID {
	var out []metric.ScheduleID
	for _, id := range s.ids.Load().all() {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

// assign picks the ids to claim: for each series the id of an earlier attempt if there was one, and
// consecutive new ids for the rest.
func (s *Source) assign(ctx context.Context, want []*claim) error {
	fresh := 0
	for _, c := range want {
		at, ok := s.doubt[c.digest]
		if !ok || !s.r.ids.usable(at.id) {
			at = attempt{id: NoID}
			fresh++
		}
		c.id, c.had = at.id, at.had
	}
	if fresh == 0 {
		return nil
	}
	got, err := s.r.ids.take(ctx, fresh, s.last+1)
	if err != nil {
		return fmt.Errorf("register %d series of source %q: %w", len(want), s.name, err)
	}
	for _, c := range want {
		if c.id == NoID {
			c.id = got.Start
			got.Start++
		}
	}
	return nil
}

// claimed keeps the ids that the store has given to some series of the source. It returns how many
// of them are those that were claimed.
func (s *Source) claimed(want []*claim, ids []metric.ScheduleID) (won int) {
	known := s.ids.Load().with(len(want))
	for i, c := range want {
		known.add(c.digest, ids[i])
	}
	s.ids.Store(known)
	for i, c := range want {
		s.last = max(s.last, ids[i])
		delete(s.doubt, c.digest)
		switch {
		case ids[i] == c.id:
			won++
		case c.had:
			c.id = ids[i]
		default:
			// The series has another id for good. So no attempt to give it this id can take effect any
			// more, not even one that timed out and is still under way.
			s.r.ids.giveBack(blocks.Range{Start: c.id, End: c.id + 1})
			c.id = ids[i]
		}
		c.done = true
	}
	return won
}

// keepForRetry keeps the ids of claims that failed or were not reached, at most LeaseSize of them.
// With more, a client is not retrying but making up series, and ids are cheaper than memory.
func (s *Source) keepForRetry(want []*claim) {
	if len(s.doubt)+len(want) > s.r.opts.LeaseSize {
		s.doubt = nil
	}
	if s.doubt == nil {
		s.doubt = make(map[digest]attempt, len(want))
	}
	for _, c := range want[:min(len(want), s.r.opts.LeaseSize)] {
		s.doubt[c.digest] = attempt{id: c.id, had: c.had}
	}
}
