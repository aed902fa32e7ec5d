package query

import "github.com/quern/quern/internal/blocks"

// SampleBytes is what a sample takes in an answer. What queries may hold is counted in samples.
const SampleBytes = 16

const (
	// leastWanted is what the samples wanted of a part take at least, beside what it takes to decode a chunk. Each part reads
	// all chunks of its slice, so there should be few.
	leastWanted = 1 << 20
	// pooledBytes bounds the sets that are kept for the next request.
	pooledBytes = 4 << 20
)

// groupBytes is what a group's samples may take while they are put together: a request reads several groups at a time, which
// together hold what its samples may take.
func (q *Querier) groupBytes() int {
	return q.opts.MaxSamples / q.opts.Parallel * SampleBytes
}

// set returns an empty set, until it is given back.
func (q *Querier) set() *blocks.SampleSet { return q.sets.Get().(*blocks.SampleSet) }

// giveBack lets another request use a set.
func (q *Querier) giveBack(s *blocks.SampleSet) {
	if s.Bytes() <= pooledBytes {
		q.sets.Put(s)
	}
}

// open begins to add what a set wants of a chunk of [fromMs, toMs). The error is errTooMany if that takes more than a group may
// hold, and a smaller part takes less: what it takes to decode the chunk is the same for each.
func (q *Querier) open(s *blocks.SampleSet, chunk []byte, fromMs, toMs int64) (*blocks.Incoming, error) {
	in := s.Open(chunk)
	if needs := in.Needs(); needs > q.groupBytes() && needs-in.Scratch() > leastWanted && toMs-fromMs > 1 {
		return nil, errTooMany
	}
	return in, nil
}
