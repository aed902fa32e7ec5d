package rollup

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/quern/quern/internal/storage"
)

const (
	// asideFor is the maximum time for which a slice is set aside.
	asideFor = 30 * time.Second
	// mostWaits is how many looks in a row rely on the remembered shards. At one look per second this
	// is about as long as a lease lasts.
	mostWaits = 30
)

// progress is what a Runner remembers between runs: how far it has come in the slices that it could
// not complete, and which of them the next pass skips. It saves looks, and nothing else: a Runner
// that forgets it all grinds the same rows.
//
// Run takes the progress of its slice and returns it to ended. RunDue takes what was set aside from
// beginPass and returns it to endPass.
type progress struct {
	partitions int // of a slice's index
	slices     map[storage.SliceKey]*sliceProgress
	// aside are the slices that the next pass skips.
	aside asides
}

// sliceProgress is the progress of a slice that this worker could not complete.
type sliceProgress struct {
	// ended says, by shard, that no mark was left.
	ended []bool
	// left is, by shard, the first mark that the last look found. The next look starts there: all
	// marks before it are gone, and the shard is not done before that mark is gone too.
	left []storage.MarkKey
	// cut is, by shard, the mark at which a run gave up. The next run begins after it, and comes to
	// the marks before it last, so each mark gets its turn.
	cut []storage.MarkKey
	// waits counts in a row the failures to complete the slice.
	waits int
}

func newProgress(partitions int) progress {
	return progress{partitions: partitions, slices: make(map[storage.SliceKey]*sliceProgress)}
}

// slice returns the progress of a slice, for a run of it.
func (p *progress) slice(k storage.SliceKey) *sliceProgress {
	if p.slices[k] == nil {
		p.slices[k] = &sliceProgress{
			ended: make([]bool, p.partitions), left: make([]storage.MarkKey, p.partitions), cut: make([]storage.MarkKey, p.partitions),
		}
	}
	return p.slices[k]
}

// ended drops the progress of a slice whose run ended with err, unless the run waits for other workers
// or for a part of the store that is away, and has not waited for long. A closed slice gets no new
// marks, but a shard that has ended may still hold some:
//
//   - a mark that was written on time, by a clock that has gone back since;
//   - a mark with a timestamp above the lease's fence, by a writer that stalled, and died before
//     it deleted the mark.
//
// Two workers that each relied on such a shard would wait for each other.
func (p *progress) ended(k storage.SliceKey, err error) {
	s, left := p.slice(k), errors.Is(err, errLeft)
	if (errors.Is(err, ErrShared) || left && !errors.Is(err, errState)) && s.waits < mostWaits {
		s.waits++
		return
	}
	delete(p.slices, k)
	if left { // cut tells where to go on, not which marks exist
		p.slice(k).cut = s.cut
	}
}

// aside is a slice that a pass set aside, and the reason.
type aside struct {
	storage.SliceKey

	err error
	// at is when that was, by the clock's Elapsed.
	at time.Duration
}

type asides []aside

func (s asides) keys() []storage.SliceKey {
	out := make([]storage.SliceKey, len(s))
	for i, a := range s {
		out[i] = a.SliceKey
	}
	return out
}

// errors joins the reasons, and err.
func (s asides) errors(err error) error {
	var errs []error
	for _, a := range s {
		errs = append(errs, a.err)
	}
	return errors.Join(append(errs, err)...)
}

// beginPass returns what a pass that begins at now skips: what was set aside not long ago.
func (p *progress) beginPass(now time.Duration) asides {
	set := slices.DeleteFunc(p.aside, func(a aside) bool { return a.at <= now-asideFor })
	p.aside = nil
	return set
}

// endPass keeps the progress of what a pass has set aside, and chooses which of these slices the next
// pass skips: if some wait for other workers, all but the oldest of these; else none.
func (p *progress) endPass(set asides, order func(a, b storage.SliceKey) int) {
	var shared []storage.SliceKey
	for _, a := range set {
		if errors.Is(a.err, ErrShared) {
			shared = append(shared, a.SliceKey)
		}
	}
	keys := set.keys()
	maps.DeleteFunc(p.slices, func(k storage.SliceKey, _ *sliceProgress) bool { return !slices.Contains(keys, k) })
	if len(shared) > 0 {
		oldest := slices.MinFunc(shared, order)
		p.aside = slices.DeleteFunc(set, func(a aside) bool { return a.SliceKey == oldest })
	}
}
