// Package packing keeps which slices of raw have been packed (ADR 47). Package rollup packs them.
package packing

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Documents are what the progress is kept in; see storage.Documents.
type Documents interface {
	Document(ctx context.Context, key storage.DocumentKey) (storage.Document, error)
	PutDocument(ctx context.Context, d storage.Document) error
}

var key = storage.DocumentKey{Kind: "packing", ID: "progress"}

// Progress is how far each shard is.
type Progress struct {
	// OldestMs is the time from which the store may have raw samples, in Unix ms.
	OldestMs int64 `json:"oldest"`
	// Shards are the slices of raw that are done, by shard. It may have fewer elements than the store has shards.
	Shards []Done `json:"shards"`

	version int64
}

// Span is the slices that start in [FromMs, ToMs), in Unix ms.
type Span struct {
	FromMs int64 `json:"from"`
	ToMs   int64 `json:"to"`
}

// Done is slices that are done: spans in order of time that do not touch each other.
type Done []Span

// mostSpans is how many spans are kept. What is older is looked through once more.
const mostSpans = 1000

// Without returns d without the slices of s.
func (d Done) Without(s Span) (out Done) {
	for _, x := range d {
		for _, part := range []Span{{x.FromMs, min(x.ToMs, s.FromMs)}, {max(x.FromMs, s.ToMs), x.ToMs}} {
			if part.FromMs < part.ToMs {
				out = append(out, part)
			}
		}
	}
	return out
}

// With returns d and the slices of more.
func (d Done) With(more ...Span) Done {
	for _, s := range more {
		d = d.Without(s)
		at, _ := slices.BinarySearchFunc(d, s.FromMs, func(x Span, ms int64) int { return cmp.Compare(x.FromMs, ms) })
		d = slices.Insert(d, at, s)
	}
	var out Done
	for _, x := range d {
		if n := len(out); n > 0 && out[n-1].ToMs == x.FromMs {
			out[n-1].ToMs = x.ToMs
			continue
		}
		out = append(out, x)
	}
	return out
}

// Range is the slices of raw that are to be packed: those that are over, and that raw still has in whole. Both times are
// starts of slices.
type Range struct {
	Ladder metric.Ladder
	Span
}

// RangeOf returns the range of slices of raw that have ended by endedMs, and start at fromMs or later.
func RangeOf(l metric.Ladder, fromMs, endedMs int64) Range {
	to := l.SliceAt(metric.Raw, endedMs).StartMs
	from := min(fromMs, to)
	if first := l.SliceAt(metric.Raw, from); first.StartMs < from {
		from = first.EndMs
	}
	return Range{l, Span{from, to}}
}

// Shard returns what is done of a shard.
func (p *Progress) Shard(shard int) Done {
	if shard < len(p.Shards) {
		return p.Shards[shard]
	}
	return nil
}

// left returns what of the range is not done.
func (r Range) left(done Done) (out []Span) {
	fromMs := r.FromMs
	for _, d := range append(slices.Clip(done), Span{r.ToMs, r.ToMs}) {
		if toMs := min(d.FromMs, r.ToMs); fromMs < toMs {
			out = append(out, Span{fromMs, toMs})
		}
		fromMs = max(fromMs, d.ToMs)
	}
	return out
}

// Next returns the slice that comes next: the newest, which is read most; then the others, oldest first. ok is false if
// none is left.
func (r Range) Next(done Done) (s metric.Slice, ok bool) {
	left := r.left(done)
	switch n := len(left); {
	case n == 0:
		return s, false
	case left[n-1].ToMs == r.ToMs:
		return r.Ladder.SliceAt(metric.Raw, r.ToMs-1), true
	}
	return r.Ladder.SliceAt(metric.Raw, left[0].FromMs), true
}

// Slices returns the number of slices of the range.
func (r Range) Slices() int { return r.Left(nil) }

// Left returns how many slices of the range are not done.
func (r Range) Left(done Done) int {
	first := r.Ladder.SliceAt(metric.Raw, r.FromMs)
	n := int64(0)
	for _, s := range r.left(done) {
		n += (s.ToMs - s.FromMs) / (first.EndMs - first.StartMs)
	}
	return int(n)
}

// Read returns the progress. ok is false if none was kept. What is no progress counts as none: what is packed is found to be.
func Read(ctx context.Context, docs Documents) (p Progress, ok bool, err error) {
	doc, err := docs.Document(ctx, key)
	switch {
	case errors.Is(err, storage.ErrNoDocument):
		return p, false, nil
	case err != nil:
		return p, false, fmt.Errorf("read the progress of packing: %w", err)
	}
	if json.Unmarshal(doc.Body, &p) != nil {
		p = Progress{}
	}
	p.version = doc.Version
	return p, len(p.Shards) > 0, nil
}

// Keep stores what is done of some shards. Other workers may store what is done of theirs meanwhile. oldestMs becomes
// Progress.OldestMs, and nowMs is the current time, both in Unix ms.
func Keep(ctx context.Context, docs Documents, done map[int]Done, oldestMs, nowMs int64) error {
	for {
		p, _, err := Read(ctx, docs)
		if err != nil {
			return err
		}
		p.OldestMs = oldestMs
		for shard, d := range done {
			for len(p.Shards) <= shard {
				p.Shards = append(p.Shards, nil)
			}
			p.Shards[shard] = d[max(0, len(d)-mostSpans):]
		}
		body, err := json.Marshal(p)
		if err != nil {
			return fmt.Errorf("keep the progress of packing: %w", err)
		}
		head := storage.DocumentHead{DocumentKey: key, Version: p.version + 1, UpdatedMs: nowMs}
		err = docs.PutDocument(ctx, storage.Document{DocumentHead: head, Body: body})
		if err == nil {
			return nil
		}
		if !errors.Is(err, storage.ErrConflict) || ctx.Err() != nil {
			return fmt.Errorf("keep the progress of packing: %w", err)
		}
	}
}

// Oldest returns the time from which a store may have raw samples at nowMs, in Unix ms: what it has in whole. If raw is
// kept for ever, that is the age cap before the first slice on record, math.MaxInt64 if there is none.
func Oldest(ctx context.Context, st storage.Store, nowMs int64) (ms int64, err error) {
	if whole := st.WholeFrom(metric.Raw, nowMs); whole != math.MinInt64 {
		return whole, nil
	}
	states, err := st.Slices(ctx, metric.Raw, math.MinInt64, math.MaxInt64)
	if err != nil || len(states) == 0 {
		return math.MaxInt64, err
	}
	return states[0].StartMs - st.Settings().Policy.AgeCap.Milliseconds(), nil
}
