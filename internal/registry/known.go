package registry

import (
	"fmt"
	"hash/maphash"
	"iter"
	"math/bits"
	"sync/atomic"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// digest stands for the key of a series: 96 bits of two hashes under seeds that only this process knows. Two of n
// series of a source have the same digest with a probability of n²/2⁹⁷ at most, whatever their labels; see ADR 53.
type digest struct {
	a uint64
	b uint32
}

// seeds are those of a registry's digests.
type seeds struct{ a, b maphash.Seed }

func newSeeds() seeds { return seeds{maphash.MakeSeed(), maphash.MakeSeed()} }

func (s *seeds) digest(key []byte) digest {
	return digest{maphash.Bytes(s.a, key), uint32(maphash.Bytes(s.b, key))}
}

// known has the ids of a source's series, by their digests: each at the place that the digest says, or at the next that
// was free. Many may look up ids while one adds some.
type known struct {
	slots []slot
	n     atomic.Int64
}

// slot is a series. What is beside the id never changes once the id is there.
type slot struct {
	a  uint64
	b  uint32
	id atomic.Uint32 // plus 1; 0 if there is no series
}

// checkID returns an error if no series can have the id.
func checkID(id metric.ScheduleID) error {
	if id < 0 || id > metric.MaxScheduleID {
		return fmt.Errorf("%w: schedule id %d: must be 0 to %d", storage.ErrCorrupt, id, metric.MaxScheduleID)
	}
	return nil
}

// newKnown makes room for n series.
func newKnown(n int) *known { return &known{slots: make([]slot, slotsFor(n))} }

// slotsFor returns how many slots n series take: a fifth of them, and at least one, stays empty, so that searches are
// short and end.
func slotsFor(n int) int { return n + n/4 + 1 }

// find returns the id of a series.
func (k *known) find(d digest) (id metric.ScheduleID, ok bool) {
	for i := k.home(d); ; {
		s := &k.slots[i]
		id := s.id.Load()
		if id == 0 {
			return 0, false
		}
		if s.a == d.a && s.b == d.b {
			return metric.ScheduleID(id - 1), true
		}
		if i++; i == len(k.slots) {
			i = 0
		}
	}
}

func (k *known) home(d digest) int {
	hi, _ := bits.Mul64(d.a, uint64(len(k.slots)))
	return int(hi)
}

// add adds a series that is not there. There must be room.
func (k *known) add(d digest, id metric.ScheduleID) {
	i := k.home(d)
	for k.slots[i].id.Load() != 0 {
		if i++; i == len(k.slots) {
			i = 0
		}
	}
	s := &k.slots[i]
	s.a, s.b = d.a, d.b
	s.id.Store(uint32(id) + 1) // who sees it sees the digest
	k.n.Add(1)
}

// with returns k if it has room for n series more, otherwise a larger one with the same series.
func (k *known) with(n int) *known {
	had := k.len()
	if slotsFor(had+n) <= len(k.slots) {
		return k
	}
	if had > 0 {
		n = max(n, had/4) // adding them one by one costs the same each
	}
	more := newKnown(had + n)
	for d, id := range k.all() {
		more.add(d, id)
	}
	return more
}

func (k *known) len() int { return int(k.n.Load()) }

// all yields the series, in no order.
func (k *known) all() iter.Seq2[digest, metric.ScheduleID] {
	return func(yield func(digest, metric.ScheduleID) bool) {
		for i := range k.slots {
			s := &k.slots[i]
			if id := s.id.Load(); id != 0 && !yield(digest{s.a, s.b}, metric.ScheduleID(id-1)) {
				return
			}
		}
	}
}
