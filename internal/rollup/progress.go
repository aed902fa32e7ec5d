package rollup

import (
	"cmp"
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
type progress struct {
	partitions int // of a slice's index
	slices     map[storage.SliceKey]*sliceProgress
	// mine are the shards of this worker.
	mine []int
	// aside are the slices that the next pass skips. moved says that something changed in this pass
	// that may concern them.
	aside asides
	moved bool
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

// of returns the progress of a slice.
func (p *progress) of(k storage.SliceKey) *sliceProgress {
	if p.slices[k] == nil {
		p.slices[k] = &sliceProgress{
			ended: make([]bool, p.partitions), left: make([]storage.MarkKey, p.partitions), cut: make([]storage.MarkKey, p.partitions),
		}
	}
	return p.slices[k]
}

// own notes which shards are this worker's.
func (p *progress) own(mine []int) {
	if !slices.Equal(mine, p.mine) {
		p.mine, p.moved = mine, true
	}
}

// ran drops the progress of a slice whose run ended with err, unless the run waits for other workers
// or for a part of the store that is away, and has not waited for long. A closed slice gets no new
// marks, but a shard that has ended may still hold some:
//
//   - a mark that was written on time, by a clock that has gone back since;
//   - a mark with a timestamp above the lease's fence, by a writer that stalled, and died before
//     it deleted the mark.
//
// Two workers that each relied on such a shard would wait for each other.
func (p *progress) ran(k storage.SliceKey, err error) {
	was := p.slices[k]
	if was == nil {
		return
	}
	if (errors.Is(err, ErrShared) || errors.Is(err, errLeft) && !errors.Is(err, errState)) && was.waits < mostWaits {
		was.waits++
		return
	}
	delete(p.slices, k)
	if errors.Is(err, errLeft) { // cut tells where to go on, not which marks exist
		p.of(k).cut = was.cut
	}
}

// skipped returns what was set aside after the time since, and starts a pass.
func (p *progress) skipped(since time.Duration) asides {
	set := slices.DeleteFunc(p.aside, func(a aside) bool { return a.at <= since })
	p.aside, p.moved = nil, false
	return set
}

// skip chooses which slices of set the next pass skips, at the end of the pass that began at began:
// if some wait for other workers, all but the oldest of these; else none. What an earlier pass set
// aside is looked at again if something has changed.
func (p *progress) skip(set asides, began time.Duration, order func(a, b storage.SliceKey) int) {
	maps.DeleteFunc(p.slices, func(k storage.SliceKey, _ *sliceProgress) bool { return !slices.Contains(set.keys(), k) })
	slices.SortFunc(set, func(a, b aside) int { return order(a.SliceKey, b.SliceKey) })
	oldest := slices.IndexFunc(set, func(a aside) bool { return errors.Is(a.err, ErrShared) })
	for i, a := range set {
		if oldest >= 0 && i != oldest && (a.at >= began || !p.moved) {
			p.aside = append(p.aside, a)
		}
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

// err joins the reasons.
func (s asides) err() error {
	errs := make([]error, len(s))
	for i, a := range s {
		errs[i] = a.err
	}
	return errors.Join(errs...)
}

// only returns the slices that keep says to keep.
func (s asides) only(keep func(storage.SliceKey) bool) asides {
	return slices.DeleteFunc(slices.Clone(s), func(a aside) bool { return !keep(a.SliceKey) })
}

// withoutOldest leaves out the slice that was set aside first, if that was not after the time at.
func (s asides) withoutOldest(at time.Duration) asides {
	if len(s) == 0 {
		return s
	}
	oldest := slices.MinFunc(s, func(a, b aside) int { return cmp.Compare(a.at, b.at) })
	if oldest.at > at {
		return s
	}
	return s.only(func(k storage.SliceKey) bool { return k != oldest.SliceKey })
}
