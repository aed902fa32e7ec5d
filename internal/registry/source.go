package registry

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Source is the known series of one source. It is safe for concurrent use.
type Source struct {
	r         *Registry
	number    uint64 // no other source of the registry has it
	name      string
	derived   bool
	partition string // its name in the store

	// turn is held while registering, so that one source's goroutines do not claim the same series
	// with different ids. It is a channel so that waiting can be cancelled. Who takes several turns
	// takes them in the order of number.
	turn chan struct{}
	// last is the greatest id, NoID if there is none. doubt holds the ids of claims that failed but
	// may have taken effect. Such a series is claimed again with the same id, so that retries
	// against a failing store use up no more ids. Both belong to the holder of turn.
	last    metric.ScheduleID
	doubt   map[string]metric.ScheduleID
	leaving *leaving

	// What this process has taken of the source since it was loaded, and when it last took some, in Unix ms.
	samples, bytes, lastMs atomic.Int64

	// checked is the store's Doubts when the known series were last read or checked.
	checked atomic.Int64

	mu  sync.RWMutex
	ids map[string]metric.ScheduleID
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
	s.doubt = nil // ids of leases that may have been given up
	there := make(map[string]metric.ScheduleID)
	var key []byte
	for sch, err := range s.r.store.SourceSchedules(ctx, s.partition) {
		if err != nil {
			return err
		}
		key = s.appendKey(key[:0], sch.Labels)
		there[string(key)] = sch.ID
	}
	s.mu.RLock()
	known := maps.Clone(s.ids)
	s.mu.RUnlock()
	var lost []claim
	fresh := 0
	for _, k := range slices.Sorted(maps.Keys(known)) {
		if _, ok := there[k]; ok {
			continue
		}
		labels, err := s.labels(k)
		if err != nil {
			return err
		}
		c := claim{key: k, labels: labels, id: known[k]}
		if !s.r.ids.mine(c.id) {
			c.id = NoID
			fresh++
		}
		lost = append(lost, c)
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
	for some := range slices.Chunk(lost, claimSize) {
		want := make([]storage.Claim, len(some))
		schedules := make([]storage.Schedule, len(some))
		for i, c := range some {
			schedules[i] = storage.Schedule{ID: c.id, Labels: c.labels}
			want[i] = storage.Claim{Source: s.partition, Schedule: schedules[i]}
		}
		ids, err := s.r.store.ClaimSchedules(ctx, want)
		if err != nil {
			return err
		}
		for i, c := range some {
			there[c.key], schedules[i].ID = ids[i], ids[i]
		}
		if s.r.opts.OnNew != nil {
			s.r.opts.OnNew(schedules)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids = there
	for _, id := range there {
		s.last = max(s.last, id)
	}
	return nil
}

// labels returns the labels of a series by its key, with the source label unless the source is
// derived.
func (s *Source) labels(key string) (metric.Labels, error) {
	ls, err := metric.ParseLabels([]byte(key))
	if err == nil && !s.derived {
		ls, err = metric.NewLabels(append(ls, metric.Label{Name: metric.SourceLabel, Value: s.name})...)
	}
	return ls, err
}

// Lookup finds a series by its key: the canonical bytes (metric.Labels.AppendKey) of its labels,
// without the source label unless the source is derived. It does not allocate.
func (s *Source) Lookup(key []byte) (metric.ScheduleID, bool) {
	s.mu.RLock()
	id, ok := s.ids[string(key)]
	s.mu.RUnlock()
	return id, ok
}

// Len is the number of known series.
func (s *Source) Len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.ids)
}

// all returns the ids of the known series, sorted.
func (s *Source) all() []metric.ScheduleID {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Sorted(maps.Values(s.ids))
}

// assign picks the ids to claim: for each series the id of an earlier attempt if there was one, and
// consecutive new ids for the rest.
func (s *Source) assign(ctx context.Context, want []*claim) error {
	fresh := 0
	for _, c := range want {
		id, ok := s.doubt[c.key]
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

// claimed keeps the ids that the store has given to some series of the source. It returns how many
// of them are those that were claimed.
func (s *Source) claimed(want []*claim, ids []metric.ScheduleID) (won int) {
	s.mu.Lock()
	for i, c := range want {
		s.ids[c.key] = ids[i]
	}
	s.mu.Unlock()
	for i, c := range want {
		s.last = max(s.last, ids[i])
		delete(s.doubt, c.key)
		if ids[i] == c.id {
			won++
		} else {
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
		s.doubt = make(map[string]metric.ScheduleID, len(want))
	}
	for _, c := range want[:min(len(want), s.r.opts.LeaseSize)] {
		s.doubt[c.key] = c.id
	}
}
