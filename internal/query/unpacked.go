package query

import (
	"container/list"
	"iter"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// unpacked keeps the chunks of slices that are not packed yet, packed in memory. A dashboard asks for the last hour every few
// seconds. Without this, each request decodes the chunk of each flush, which has all series of its group.
//
//  1. The first chunks of a slice in a group are packed as they will be at rest, and take the place of these chunks in what a reader is
//     given. The chunks behind them stay as they are, so the order of chunks, by which the later one wins, stays too.
//
//  2. The chunks are still listed. What was packed takes their place only if exactly these chunks are still the first ones.
//     Otherwise the reader is given the listed ones, and what was packed is dropped: a chunk came in between, or packing or a
//     deletion replaced some.
//
//  3. A slice is packed when it is read for the second time, and again once a sixteenth more has come. So a request that reads a
//     range once does not pay for packing it, nor for copies of its chunks.
//
//  4. What is kept is bounded by bytes; the slices that were not read for longest go first. What is packed is a tenth of what
//     readers decode.
//
//  5. One slice at a time is packed; who comes meanwhile does without. So packing takes little memory.
//
// Damaged chunks are not packed: readers name them.
type unpacked struct {
	groupSize int
	maxBytes  int
	gets      *prometheus.CounterVec

	packing sync.Mutex // guards these two
	set     *blocks.SampleSet
	packer  *blocks.Packer

	mu     sync.Mutex
	slices map[sliceKey]*list.Element
	used   *list.List // of *firstChunks, the latest first
	bytes  int
}

// sliceKey is a raw slice of a storage group.
type sliceKey struct {
	group   metric.ScheduleID
	sliceMs int64
}

// firstChunks are the first chunks of a slice, packed. It does not change.
type firstChunks struct {
	key   sliceKey
	ids   []blocks.ID // of the chunks; none if the slice was read once
	data  []byte      // packed; nil if they cannot be
	bytes int
}

const (
	// minUnpacked is the number of chunks of a slice from which on packing them pays.
	minUnpacked = 16
	// maxListed and maxPacked bound the bytes of the chunks of a slice that are held until it is known whether they are packed, and
	// their samples.
	maxListed = 1 << 20
	maxPacked = 1 << 17
	// maxUnpacked bounds the bytes of all slices that are kept: 1,000 groups of 128 series with a sample every 10 s for half an hour.
	maxUnpacked = 32 << 20
	// sliceBytes is what a slice takes aside from its data.
	sliceBytes = 256
)

// newUnpacked keeps up to maxBytes.
func newUnpacked(groupSize, maxBytes int, metrics prometheus.Registerer) *unpacked {
	u := &unpacked{
		groupSize: groupSize, maxBytes: maxBytes, slices: make(map[sliceKey]*list.Element), used: list.New(),
		gets: promauto.With(metrics).NewCounterVec(prometheus.CounterOpts{
			Name: "quern_query_unpacked_slices_total",
			Help: "Slices of a group that were read before they were packed, by result: hit is that most of their chunks were kept packed in memory.",
		}, []string{"result"}),
	}
	promauto.With(metrics).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "quern_query_unpacked_slices_bytes", Help: "Memory that slices kept packed take.",
	}, func() float64 {
		u.mu.Lock()
		defer u.mu.Unlock()
		return float64(u.bytes)
	})
	return u
}

// chunks yields the chunks of a group, which are by slice and ID, with what is kept in place of the first ones of a slice.
func (u *unpacked) chunks(listed iter.Seq2[storage.RawChunk, error]) iter.Seq2[storage.RawChunk, error] {
	return func(yield func(storage.RawChunk, error) bool) {
		s := slice{unpacked: u}
		for ch, err := range listed {
			if err != nil {
				yield(ch, err)
				return
			}
			if at := (sliceKey{ch.Group, ch.SliceMs}); len(s.listed) == 0 && s.n == 0 || at != s.key {
				if !s.end(yield) {
					return
				}
				s.begin(at)
			}
			if !s.next(ch, yield) {
				return
			}
		}
		s.end(yield)
	}
}

// slice is one that is being read.
type slice struct {
	*unpacked
	key    sliceKey
	again  bool               // whether it was read before
	kept   *firstChunks       // nil unless all chunks so far are the first ones of it
	given  int                // chunks that the reader was given what is kept for
	n      int                // chunks listed
	listed []storage.RawChunk // copies, while they may be needed
	room   []byte             // for more copies
	bytes  int                // of the chunks listed
	large  bool               // more than is packed
}

func (s *slice) begin(key sliceKey) {
	*s = slice{unpacked: s.unpacked, key: key, listed: s.listed[:0], room: s.room}
	s.kept, s.again = s.get(key)
}

// next lists a chunk more.
func (s *slice) next(ch storage.RawChunk, yield func(storage.RawChunk, error) bool) bool {
	s.n++
	if s.bytes += len(ch.Data); s.bytes > maxListed {
		s.large = true
	}
	first := s.kept != nil && s.given == 0
	if s.again && !s.large || first {
		s.keep(ch)
	} else {
		s.listed, s.room = nil, nil
	}
	if !first {
		return yield(ch, nil)
	}
	if s.n > len(s.kept.ids) || ch.ID != s.kept.ids[s.n-1] {
		return s.differs(yield)
	}
	if s.n < len(s.kept.ids) {
		return true
	}
	s.given = s.n
	ch.Data = s.kept.data
	return yield(ch, nil)
}

// keep lists a copy of a chunk.
func (s *slice) keep(ch storage.RawChunk) {
	const step = 64 << 10
	n := len(ch.Data)
	if n > cap(s.room)-len(s.room) {
		s.room = make([]byte, 0, max(n, step))
	}
	from := len(s.room)
	s.room = append(s.room, ch.Data...)
	ch.Data = s.room[from : from+n : from+n]
	s.listed = append(s.listed, ch)
}

// differs gives the reader the chunks that were listed, instead of what is kept.
func (s *slice) differs(yield func(storage.RawChunk, error) bool) bool {
	s.drop(s.kept)
	s.kept = nil
	for _, ch := range s.listed {
		if !yield(ch, nil) {
			return false
		}
	}
	return true
}

// end packs the slice if that pays. It returns false if the reader wants no more.
func (s *slice) end(yield func(storage.RawChunk, error) bool) bool {
	if s.n == 0 {
		return true
	}
	if s.kept != nil && s.given == 0 && !s.differs(yield) {
		return false
	}
	if s.n < minUnpacked {
		return true
	}
	result := "miss"
	if s.given > 0 {
		result = "hit"
	}
	s.gets.WithLabelValues(result).Inc()
	if !s.again {
		s.saw(s.key)
	} else if !s.large && s.n-s.given >= max(minUnpacked, s.given/16) && s.pays() && s.packing.TryLock() {
		s.put(s.pack())
		s.packing.Unlock()
	}
	return true
}

// get returns what is kept of a slice, nil if that is nothing, and whether the slice was read before.
func (u *unpacked) get(key sliceKey) (kept *firstChunks, again bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	e := u.slices[key]
	if e == nil {
		return nil, false
	}
	u.used.MoveToFront(e)
	if f := e.Value.(*firstChunks); f.data != nil {
		return f, true
	}
	return nil, true
}

// saw keeps that a slice was read.
func (u *unpacked) saw(key sliceKey) {
	u.mu.Lock()
	known := u.slices[key] != nil
	u.mu.Unlock()
	if !known {
		u.put(&firstChunks{key: key})
	}
}

// pays returns whether packing the slice may give something.
func (s *slice) pays() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.slices[s.key]
	if e == nil {
		return true
	}
	f := e.Value.(*firstChunks)
	// What could not be packed is tried again once it is twice as much.
	return f.data != nil || s.n >= 2*len(f.ids)
}

// pack packs the chunks of the slice. The caller holds packing.
func (s *slice) pack() *firstChunks {
	f := &firstChunks{key: s.key, ids: make([]blocks.ID, len(s.listed))}
	rest := make([][]byte, 0, len(s.listed)+1)
	if s.given > 0 {
		rest = append(rest, s.kept.data)
	}
	for i, ch := range s.listed {
		if f.ids[i] = ch.ID; i >= s.given {
			rest = append(rest, ch.Data)
		}
	}
	samples := 0
	for _, data := range rest {
		samples += blocks.Count(data)
	}
	if samples > maxPacked {
		return f
	}
	if s.set == nil {
		s.set, s.packer = new(blocks.SampleSet), new(blocks.Packer)
	}
	group := blocks.Range{Start: s.key.group, End: s.key.group + metric.ScheduleID(s.groupSize)}
	s.set.Reset(group)
	for _, data := range rest {
		if s.set.Add(data) != nil {
			return f
		}
	}
	if data, err := s.packer.Pack(s.set, group, maxPacked); err == nil {
		f.data = slices.Clone(data)
	}
	if s.set.Bytes() > leastWanted {
		s.set, s.packer = nil, nil
	}
	return f
}

// put keeps the first chunks of a slice, and drops what is too much.
func (u *unpacked) put(f *firstChunks) {
	f.bytes = sliceBytes + len(f.ids)*len(blocks.ID{}) + len(f.data)
	u.mu.Lock()
	defer u.mu.Unlock()
	if e := u.slices[f.key]; e != nil {
		u.remove(e)
	}
	u.slices[f.key] = u.used.PushFront(f)
	for u.bytes += f.bytes; u.bytes > u.maxBytes; {
		u.remove(u.used.Back())
	}
}

// drop forgets the first chunks of a slice, unless others are kept since.
func (u *unpacked) drop(f *firstChunks) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if e := u.slices[f.key]; e != nil && e.Value == f {
		u.remove(e)
	}
}

// remove removes an element. The caller holds mu.
func (u *unpacked) remove(e *list.Element) {
	f := u.used.Remove(e).(*firstChunks)
	delete(u.slices, f.key)
	u.bytes -= f.bytes
}
