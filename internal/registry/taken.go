package registry

import (
	"github.com/quern/quern/internal/metric"
)

// Taken is what this process has taken of a source in memory, since it was loaded.
type Taken struct {
	Name    string
	Derived bool
	// Series is the number of series that the store has of the source.
	Series int
	// Samples and Bytes are those that were accepted; see Source.Took.
	Samples, Bytes int64
	// LastMs is when the last were accepted, in Unix ms, 0 if none was.
	LastMs int64
}

// Took counts accepted samples, and what they are in bytes as they were told: times, values, names and values of labels.
func (s *Source) Took(samples int, bytes, nowMs int64) {
	s.samples.Add(int64(samples))
	s.bytes.Add(bytes)
	s.lastMs.Store(nowMs)
}

// taken returns what was taken.
func (s *Source) taken() Taken {
	return Taken{
		Name: s.name, Derived: s.derived, Series: s.Len(),
		Samples: s.samples.Load(), Bytes: s.bytes.Load(), LastMs: s.lastMs.Load(),
	}
}

// Sources calls visit for each source in memory that has series, in no order, until visit returns false. forgotten is the
// number of sources that were dropped from memory with their counts: one that reports again counts from 0.
func (r *Registry) Sources(visit func(Taken) bool) (forgotten int) {
	r.mu.RLock()
	all := make([]*Source, 0, len(r.sources))
	for _, s := range r.sources {
		all = append(all, s)
	}
	forgotten = r.forgotten
	r.mu.RUnlock()
	for _, s := range all {
		if t := s.taken(); t.Series > 0 && !visit(t) {
			break
		}
	}
	return forgotten
}

// SourcesBytes is what the list takes that Sources makes.
func (r *Registry) SourcesBytes() int64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return int64(8 * len(r.sources))
}

// HasSource returns whether a source is in memory with series.
func (r *Registry) HasSource(name string, derived bool) bool {
	s := r.loaded(sourceKey{name, derived})
	return s != nil && s.Len() > 0
}

// SourceTaken returns what was taken of a source in memory, and the ids of its series, sorted; ok is false if it is not
// in memory. It does not load the source.
func (r *Registry) SourceTaken(name string, derived bool) (t Taken, ids []metric.ScheduleID, ok bool) {
	s := r.loaded(sourceKey{name, derived})
	if s == nil {
		return Taken{}, nil, false
	}
	return s.taken(), s.all(), true
}
