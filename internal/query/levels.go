package query

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/quern/quern/internal/metric"
)

const (
	// maxEdges bounds the times that the Levels of a request hold, maxLevelParts the parts that one selector shows, and
	// maxLevelSelectors the selectors.
	maxEdges          = 1 << 14
	maxLevelParts     = 500
	maxLevelSelectors = 100
	// maxSelectorText bounds the text of a selector, which may be as long as a form.
	maxSelectorText = 1 << 10
)

// Levels record from which buckets the selectors of a request are read, while they are read. They are safe for
// concurrent use.
//
//  1. What is recorded is what the readers of samples and rows were told to read. No plan is made for the record.
//  2. A part of a group counts once for a selector, also if it is read again.
//  3. What is held is bounded. Beyond the bounds the record says that it is cut.
type Levels struct {
	mu    sync.Mutex
	all   []*Reads
	more  int // selectors beyond maxLevelSelectors
	edges int
}

type levelsKey struct{}

// WithLevels returns a context whose PromQL query records its levels.
func WithLevels(ctx context.Context, l *Levels) context.Context {
	return context.WithValue(ctx, levelsKey{}, l)
}

// LevelsOf returns the Levels that the query of a context records into, nil if there are none.
func LevelsOf(ctx context.Context) *Levels {
	l, _ := ctx.Value(levelsKey{}).(*Levels)
	return l
}

// Reads record what one selector is read from. The nil Reads record nothing.
type Reads struct {
	levels *Levels
	text   string

	// The rest is guarded by the mutex of levels.
	counted map[countedPart]bool
	edges   map[edge]int
	cut     bool
}

// countedPart is a group from a time on, which has been read.
type countedPart struct {
	place  int
	fromMs int64
}

// edge is a time at which the number of series of a kind changes that are read from a bucket.
type edge struct {
	bucket metric.Bucket
	kind   edgeKind
	atMs   int64
}

type edgeKind uint8

const (
	edgeSeries edgeKind = iota
	edgeLate
	edgePartial
)

// Selector begins to record a selector.
func (l *Levels) Selector(text string) *Reads {
	if l == nil {
		return nil
	}
	if len(text) > maxSelectorText {
		text = string([]rune(text[:maxSelectorText])) + "…"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) == maxLevelSelectors {
		l.more++
		return nil
	}
	r := &Reads{levels: l, text: text, counted: make(map[countedPart]bool), edges: make(map[edge]int)}
	l.all = append(l.all, r)
	return r
}

// Warnings returns warnings that warn takes, and whose times are recorded.
func (r *Reads) Warnings(warn *Warnings) *Warnings {
	if r == nil {
		return warn
	}
	return &Warnings{with: warn, reads: r}
}

// once returns where a reading of the group from a time on is recorded: nowhere if it has been before.
func (r *Reads) once(g Group, fromMs int64) *Reads {
	if r == nil {
		return nil
	}
	r.levels.mu.Lock()
	defer r.levels.mu.Unlock()
	part := countedPart{g.place, fromMs}
	if r.counted[part] {
		return nil
	}
	r.counted[part] = true
	return r
}

// add records that n series are read from a bucket in [fromMs, toMs).
func (r *Reads) add(b metric.Bucket, fromMs, toMs int64, n int) {
	r.note(b, edgeSeries, fromMs, toMs, n)
}

// late records that rows of [fromMs, toMs) may lack late samples.
func (r *Reads) late(b metric.Bucket, fromMs, toMs int64) { r.note(b, edgeLate, fromMs, toMs, 1) }

// partial records that samples or rows of [fromMs, toMs) may be missing.
func (r *Reads) partial(b metric.Bucket, fromMs, toMs int64) { r.note(b, edgePartial, fromMs, toMs, 1) }

func (r *Reads) note(b metric.Bucket, kind edgeKind, fromMs, toMs int64, n int) {
	if r == nil || fromMs >= toMs {
		return
	}
	from, to := edge{b, kind, fromMs}, edge{b, kind, toMs}
	r.levels.mu.Lock()
	defer r.levels.mu.Unlock()
	more := 0
	for _, e := range []edge{from, to} {
		if _, known := r.edges[e]; !known {
			more++
		}
	}
	// Both or neither: otherwise the series would never end.
	if r.levels.edges+more > maxEdges {
		r.cut = true
		return
	}
	r.levels.edges += more
	r.edges[from] += n
	r.edges[to] -= n
}

// LevelPart is a time range in which series of a selector are read from one bucket.
type LevelPart struct {
	Bucket         metric.Bucket
	StartMs, EndMs int64
	// Series is the number of series.
	Series int
	// Late says that rows may lack late samples, Partial that samples may be missing. Either holds for at least one of
	// the series.
	Late, Partial bool
}

// SelectorLevels are the parts of a selector, by start and bucket. Parts of several buckets may overlap: series differ
// in what is late.
type SelectorLevels struct {
	Selector string
	Parts    []LevelPart
	// Cut says that there were too many parts: the newest are here.
	Cut bool
}

// List returns what was recorded, in the order in which the selectors were begun, and the number of further selectors.
func (l *Levels) List() (all []SelectorLevels, more int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.all {
		s := SelectorLevels{Selector: r.text, Parts: r.parts(), Cut: r.cut}
		if n := len(s.Parts); n > maxLevelParts {
			s.Parts, s.Cut = slices.Clone(s.Parts[n-maxLevelParts:]), true
		}
		all = append(all, s)
	}
	return all, l.more
}

// parts returns the parts that the edges make. Neighbours differ.
func (r *Reads) parts() []LevelPart {
	type change struct {
		edge
		n int
	}
	changes := make([]change, 0, len(r.edges))
	for e, n := range r.edges {
		if n != 0 {
			changes = append(changes, change{e, n})
		}
	}
	slices.SortFunc(changes, func(a, b change) int {
		return cmp.Or(cmp.Compare(a.bucket, b.bucket), cmp.Compare(a.atMs, b.atMs))
	})
	var out []LevelPart
	var now [edgePartial + 1]int
	for i, c := range changes {
		now[c.kind] += c.n
		if i+1 == len(changes) || changes[i+1].bucket != c.bucket { // all have ended
			now = [edgePartial + 1]int{}
			continue
		}
		p := LevelPart{
			Bucket: c.bucket, StartMs: c.atMs, EndMs: changes[i+1].atMs,
			Series: now[edgeSeries], Late: now[edgeLate] > 0, Partial: now[edgePartial] > 0,
		}
		if p.StartMs == p.EndMs || p.Series == 0 {
			continue
		}
		if n := len(out); n > 0 && out[n-1].joins(p) {
			out[n-1].EndMs = p.EndMs
		} else {
			out = append(out, p)
		}
	}
	slices.SortStableFunc(out, func(a, b LevelPart) int { return cmp.Compare(a.StartMs, b.StartMs) })
	return out
}

// joins returns whether o continues p.
func (p LevelPart) joins(o LevelPart) bool {
	p.StartMs, p.EndMs, o.StartMs = o.StartMs, o.EndMs, p.EndMs
	return p == o
}
