package rollup

import (
	"errors"
	"maps"
	"slices"

	"github.com/quern/quern/internal/storage"
)

// mostWaits is how many looks in a row rely on the remembered shards. With sharedRetry between them they take a minute, which is
// longer than a lease lasts.
const mostWaits = 30

// progress is what a Runner remembers between runs: how far it has come in the slices that it could
// not complete. It saves looks, and nothing else: a Runner that forgets it all grinds the same rows.
//
// Run takes the progress of its slice and returns it to ended.
type progress struct {
	partitions int // of a slice's index
	slices     map[storage.SliceKey]*sliceProgress
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

// keep drops the progress of all slices but those that a pass has set aside.
func (p *progress) keep(aside []storage.SliceKey) {
	maps.DeleteFunc(p.slices, func(k storage.SliceKey, _ *sliceProgress) bool { return !slices.Contains(aside, k) })
}
