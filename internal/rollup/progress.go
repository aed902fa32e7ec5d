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
// Run takes the progress of its slice and returns it to ended. RunDue begins a pass and ends it.
type progress struct {
	partitions int // of a slice's index
	slices     map[storage.SliceKey]*sliceProgress
	// mine are the shards of this worker, of the last run.
	mine []int
	// aside are the slices that the next pass skips.
	aside []aside
	// moved says that something changed in this pass that may concern the slices set aside earlier.
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

// slice returns the progress of a slice, for a run of it.
func (p *progress) slice(k storage.SliceKey) *sliceProgress {
	if p.slices[k] == nil {
		p.slices[k] = &sliceProgress{
			ended: make([]bool, p.partitions), left: make([]storage.MarkKey, p.partitions), cut: make([]storage.MarkKey, p.partitions),
		}
	}
	return p.slices[k]
}

// ended notes how a run of a slice ended: with err, over the shards in mine, of which it has ended
// some if moved.
//
// It drops the progress of the slice, unless the run waits for other workers or for a part of the
// store that is away, and has not waited for long. A closed slice gets no new marks, but a shard that
// has ended may still hold some:
//
//   - a mark that was written on time, by a clock that has gone back since;
//   - a mark with a timestamp above the lease's fence, by a writer that stalled, and died before
//     it deleted the mark.
//
// Two workers that each relied on such a shard would wait for each other.
func (p *progress) ended(k storage.SliceKey, mine []int, moved bool, err error) {
	p.moved = p.moved || moved || err == nil || !slices.Equal(mine, p.mine)
	p.mine = mine
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

// pass is one call of RunDue.
type pass struct {
	began time.Duration
	// aside are the slices that are set aside, in that order.
	aside []aside
	// again says that the next look may be at the first of aside: the last one was at another slice.
	again bool
}

// beginPass begins a pass at now, by the clock's Elapsed. It skips what was set aside not long ago.
func (p *progress) beginPass(now time.Duration) *pass {
	set := slices.DeleteFunc(p.aside, func(a aside) bool { return a.at <= now-asideFor })
	p.aside, p.moved = nil, false
	return &pass{began: now, aside: set}
}

// skipped returns the slices that the next look skips.
func (p *pass) skipped(now time.Duration) []storage.SliceKey {
	set := p.aside
	if p.again && len(set) > 0 && set[0].at <= now-asideFor {
		set = set[1:]
	}
	keys := make([]storage.SliceKey, len(set))
	for i, a := range set {
		keys[i] = a.SliceKey
	}
	return keys
}

// look takes a slice back from those that are set aside, to run it.
func (p *pass) look(k storage.SliceKey) {
	before := len(p.aside)
	p.aside = slices.DeleteFunc(p.aside, func(a aside) bool { return a.SliceKey == k })
	p.again = len(p.aside) == before
}

// errors joins the reasons of what is set aside, and err.
func (p *pass) errors(err error) error {
	var errs []error
	for _, a := range p.aside {
		errs = append(errs, a.err)
	}
	return errors.Join(errors.Join(errs...), err)
}

// endPass forgets what was not outstanding any more, and chooses which slices the next pass skips: if
// some wait for other workers, all but the oldest of these; else none. What an earlier pass set aside
// is looked at again if something has changed.
func (p *progress) endPass(now *pass, outstanding func(storage.SliceKey) bool, order func(a, b storage.SliceKey) int) {
	now.aside = slices.DeleteFunc(now.aside, func(a aside) bool { return !outstanding(a.SliceKey) })
	var shared []storage.SliceKey
	keep := make(map[storage.SliceKey]bool)
	for _, a := range now.aside {
		keep[a.SliceKey] = true
		if errors.Is(a.err, ErrShared) {
			shared = append(shared, a.SliceKey)
		}
	}
	maps.DeleteFunc(p.slices, func(k storage.SliceKey, _ *sliceProgress) bool { return !keep[k] })
	if len(shared) == 0 {
		return
	}
	oldest := slices.MinFunc(shared, order)
	for _, a := range now.aside {
		if a.SliceKey != oldest && (a.at >= now.began || !p.moved) {
			p.aside = append(p.aside, a)
		}
	}
}
