// Package postings holds sets of the ids of series in memory: for each value of a label, those of the series that have it.
// A list takes ids in any order, at a cost that does not grow with their number, and its readers do not hold up its
// writer.
package postings

import (
	"iter"
	"slices"
	"sync/atomic"
)

// List is a set of ids. The zero value is empty.
//
//  1. Ids without a gap, such as those of a source, or of all series, take no memory beside the List.
//  2. One goroutine at a time calls Add or Remove. Several may call Snapshot, but not meanwhile. A snapshot needs no lock: it
//     never changes, and MUST NOT be changed.
type List struct {
	first, n uint32 // the ids first, first+1, … of which there are n, while more is nil
	more     *chunks
}

// chunks are the ids of a List in parts of chunkSize, in order. None of them is empty.
type chunks struct {
	all   []chunk
	n     uint32
	bytes int
	// shared says that a snapshot has these chunks. They stay as they are from then on.
	shared atomic.Bool
}

// Snapshot returns the list as it is now.
func (l *List) Snapshot() List {
	if l.more != nil && !l.more.shared.Load() {
		l.more.shared.Store(true)
	}
	return *l
}

// Len returns the number of ids.
func (l *List) Len() int {
	if l.more != nil {
		return int(l.more.n)
	}
	return int(l.n)
}

// Bytes returns what the list holds beside itself.
func (l *List) Bytes() int {
	if l.more == nil {
		return 0
	}
	return chunksBytes + chunkBytes*cap(l.more.all) + l.more.bytes
}

// end returns the id after the last of a list without gaps.
func (l *List) end() uint64 { return uint64(l.first) + uint64(l.n) }

// Has returns whether the list has an id.
func (l *List) Has(id uint32) bool {
	if l.more == nil {
		return id >= l.first && uint64(id) < l.end()
	}
	i, found := l.more.find(id >> chunkBits)
	return found && l.more.all[i].has(uint16(id))
}

// Add adds an id, if the list does not have it.
func (l *List) Add(id uint32) {
	if l.more == nil {
		switch {
		case l.n == 0:
			l.first, l.n = id, 1
			return
		case l.Has(id):
			return
		case uint64(id) == l.end():
			l.n++
			return
		case uint64(id)+1 == uint64(l.first):
			l.first, l.n = id, l.n+1
			return
		}
	}
	s := l.writable()
	i, found := s.find(id >> chunkBits)
	if !found {
		if len(s.all) == cap(s.all) {
			s.all = append(make([]chunk, 0, roomFor(len(s.all))), s.all...)
		}
		s.all = slices.Insert(s.all, i, chunk{key: id >> chunkBits})
	}
	s.change(i, (*chunk).add, uint16(id))
	l.joined()
}

// Remove removes an id, if the list has it.
func (l *List) Remove(id uint32) {
	if !l.Has(id) {
		return
	}
	if l.more == nil {
		switch {
		case id == l.first:
			l.first, l.n = l.first+1, l.n-1
			return
		case uint64(id)+1 == l.end():
			l.n--
			return
		}
	}
	s := l.writable()
	i, _ := s.find(id >> chunkBits)
	if s.change(i, (*chunk).remove, uint16(id)); s.all[i].n == 0 {
		s.all = slices.Delete(s.all, i, i+1)
	}
	l.joined()
}

// All yields the ids in order.
func (l *List) All() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for _, c := range l.parts() {
			for low := range c.all {
				if !yield(c.key<<chunkBits | uint32(low)) {
					return
				}
			}
		}
	}
}

// writable returns the chunks of a list for changing them: those of no snapshot.
func (l *List) writable() *chunks {
	switch {
	case l.more == nil:
		l.more = &chunks{all: l.parts(), n: l.n}
		for i := range l.more.all {
			l.more.bytes += l.more.all[i].bytes()
		}
	case l.more.shared.Load():
		s := &chunks{all: slices.Clone(l.more.all), n: l.more.n, bytes: l.more.bytes}
		for i := range s.all {
			s.all[i].shared = true
		}
		l.more = s
	}
	return l.more
}

// joined does without chunks where the ids have no gap any more.
func (l *List) joined() {
	switch s := l.more; {
	case len(s.all) == 0:
		*l = List{}
	case len(s.all) == 1 && s.all[0].hasNoGap():
		*l = List{first: s.all[0].first(), n: s.n}
	}
}

// parts returns the chunks of a list, which the caller MUST NOT change.
func (l *List) parts() []chunk {
	if l.more != nil {
		return l.more.all
	}
	if l.n == 0 {
		return nil
	}
	out := make([]chunk, 0, 1+(l.end()-1)>>chunkBits-uint64(l.first)>>chunkBits)
	for id := uint64(l.first); id < l.end(); {
		next := min((id>>chunkBits+1)<<chunkBits, l.end())
		out = append(out, run(uint32(id>>chunkBits), uint16(id), uint32(next-id)))
		id = next
	}
	return out
}

// find returns the place of the chunk with a key, or where it would be.
func (s *chunks) find(key uint32) (at int, found bool) {
	if len(s.all) == 0 || key < s.all[0].key {
		return 0, false
	}
	if i := uint64(key - s.all[0].key); i < uint64(len(s.all)) && s.all[i].key == key { // most lists have ids everywhere
		return int(i), true
	}
	return slices.BinarySearchFunc(s.all, key, func(c chunk, key uint32) int { return int(int64(c.key) - int64(key)) })
}

// change changes a chunk, and counts what that comes to.
func (s *chunks) change(i int, how func(*chunk, uint16), low uint16) {
	c := &s.all[i]
	n, bytes := c.n, c.bytes()
	how(c, low)
	s.n += c.n - n
	s.bytes += c.bytes() - bytes
}

// roomFor returns the capacity for a slice that outgrows n.
func roomFor(n int) int { return n + n/4 + 1 }

// And returns the ids that are in both lists.
func And(a, b List) List {
	return combine(a, b, false, and)
}

// AndNot returns the ids of a that are not in b.
func AndNot(a, b List) List {
	return combine(a, b, true, andNot)
}

// combine applies do to the chunks of a and b with the same key. The others of a are kept as they are, or left out.
func combine(a, b List, keep bool, do func(a, b chunk) chunk) List {
	var out []chunk
	others := b.parts()
	for _, c := range a.parts() {
		for len(others) > 0 && others[0].key < c.key {
			others = others[1:]
		}
		if len(others) > 0 && others[0].key == c.key {
			if c = do(c, others[0]); c.n > 0 {
				out = append(out, c)
			}
		} else if keep {
			out = append(out, c)
		}
	}
	return snapshotOf(out)
}

// snapshotOf returns a snapshot of chunks.
func snapshotOf(all []chunk) List {
	if len(all) == 0 {
		return List{}
	}
	s := &chunks{all: all}
	for i := range all {
		s.n += all[i].n
	}
	s.shared.Store(true)
	return List{more: s}
}

// Union collects the ids of lists. It holds one bit for each id of the chunks that several lists have ids in. The zero
// value is empty.
type Union struct {
	byKey []chunk // n is 0 where there is none
	only  List    // the list, while there is one
	lists int
}

// Add adds the ids of a snapshot.
func (u *Union) Add(l List) {
	if l.Len() == 0 {
		return
	}
	if u.lists++; u.lists == 1 {
		u.only = l
		return
	}
	if u.lists == 2 {
		u.addAll(u.only.parts())
		u.only = List{}
	}
	u.addAll(l.parts())
}

func (u *Union) addAll(all []chunk) {
	for _, c := range all {
		if n := int(c.key) + 1; n > len(u.byKey) {
			u.byKey = append(u.byKey, make([]chunk, n-len(u.byKey))...)
		}
		at := &u.byKey[c.key]
		switch {
		case at.n == 0:
			*at = c
			at.shared = true
			continue
		case at.shared:
			*at = chunk{key: c.key, n: at.n, bits: at.copyBits()}
		}
		at.bits.or(c)
	}
}

// List returns the ids. The Union MUST NOT be used after.
func (u *Union) List() List {
	if u.lists < 2 {
		return u.only
	}
	out := make([]chunk, 0, len(u.byKey))
	for _, c := range u.byKey {
		if c.n > 0 && !c.shared {
			c = c.bits.chunk(c.key)
		}
		if c.n > 0 {
			out = append(out, c)
		}
	}
	return snapshotOf(out)
}
