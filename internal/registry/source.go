package registry

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
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
	// last is the greatest id, NoID if there is none. doubt holds the ids of claims that failed but may
	// have taken effect: such a series is claimed again with the same id, so that retries against a
	// failing store use up no more ids. Both belong to the holder of turn, as does leaving.
	last    metric.ScheduleID
	doubt   map[digest]metric.ScheduleID
	leaving *leaving

	// What this process has taken of the source since it was loaded, and when it last took some, in Unix ms.
	samples, bytes, lastMs atomic.Int64

	// ids are those of the known series. Only the holder of turn changes them.
	ids atomic.Pointer[known]
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
		id, ok := s.doubt[c.digest]
		if !ok || !s.r.ids.usable(id) {
			id = NoID
			fresh++
		}
		c.id = id
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

// claimed keeps the id that the store has given to a series of the source.
func (s *Source) claimed(c *claim, id metric.ScheduleID) {
	s.ids.Load().add(c.digest, id)
	s.last = max(s.last, id)
	delete(s.doubt, c.digest)
	if id == c.id {
		c.won++
	} else {
		// The series has another id for good. So no attempt to give it this id can take effect any
		// more, not even one that timed out and is still under way.
		s.r.ids.giveBack(blocks.Range{Start: c.id, End: c.id + 1})
	}
	c.id, c.done = id, true
	for _, i := range c.at {
		c.IDs[i] = id
	}
}

// keepForRetry keeps the ids of claims that failed or were not reached, at most LeaseSize of them.
// With more, a client is not retrying but making up series, and ids are cheaper than memory.
func (s *Source) keepForRetry(claims []*claim) {
	left := slices.DeleteFunc(slices.Clone(claims), func(c *claim) bool { return c.done })
	if len(s.doubt)+len(left) > s.r.opts.LeaseSize {
		s.doubt = nil
	}
	if s.doubt == nil {
		s.doubt = make(map[digest]metric.ScheduleID, len(left))
	}
	for _, c := range left[:min(len(left), s.r.opts.LeaseSize)] {
		s.doubt[c.digest] = c.id
	}
}
