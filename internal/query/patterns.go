package query

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	// leastRemembered is the number of values of a label from which on it is remembered which of them a pattern matches.
	leastRemembered = 1024
	// maxPatternsBytes bounds what all patterns take together.
	maxPatternsBytes = 8 << 20
	// patternBytes is what a pattern takes, beside its text and the values.
	patternBytes = 200
)

// pattern is what values are compared with.
type pattern struct {
	name, text string
	// matching says that the values are wanted that the text matches, otherwise the others.
	matching bool
}

// patterns remember which values patterns match. Values are only ever added to a label, so what was remembered stays true
// for those that were looked at, and only later ones are looked at again. It is safe for concurrent use.
type patterns struct {
	mu    sync.Mutex
	all   map[pattern]matches
	bytes atomic.Int64
}

// matches are the numbers of the values that a pattern matches, of the first looked values of its label.
type matches struct {
	looked int
	found  []uint32
}

func (m matches) bytes(key pattern) int64 {
	return int64(patternBytes + len(key.name) + len(key.text) + 4*cap(m.found))
}

// get returns how many of the first n values of a label have been looked at, and which of these match.
func (p *patterns) get(key pattern, n int) (looked int, found []uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.all[key]; m.looked <= n { // otherwise another knows of more values by now
		return m.looked, m.found[:len(m.found):len(m.found)]
	}
	return 0, nil
}

// put remembers which of the first looked values of a label match. It forgets other patterns where there is no room.
func (p *patterns) put(key pattern, looked int, found []uint32) {
	m := matches{looked, slices.Clip(found)}
	size := m.bytes(key)
	p.mu.Lock()
	defer p.mu.Unlock()
	old, known := p.all[key]
	if size > maxPatternsBytes/4 || old.looked >= looked {
		return
	}
	if known {
		p.forget(key, old)
	}
	for other, m := range p.all {
		if p.bytes.Load()+size <= maxPatternsBytes {
			break
		}
		p.forget(other, m)
	}
	if p.all == nil {
		p.all = make(map[pattern]matches)
	}
	p.all[pattern{strings.Clone(key.name), strings.Clone(key.text), key.matching}] = m // they may be views into a body
	p.bytes.Add(size)
}

func (p *patterns) forget(key pattern, m matches) {
	delete(p.all, key)
	p.bytes.Add(-m.bytes(key))
}
