// Package repack keeps how far the raw chunks of slices that were ground earlier have been packed (ADR 47). Package rollup
// packs them.
package repack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Documents are what the progress is kept in; see storage.Documents.
type Documents interface {
	Document(ctx context.Context, key storage.DocumentKey) (storage.Document, error)
	PutDocument(ctx context.Context, d storage.Document) error
}

var key = storage.DocumentKey{Kind: "repack", ID: "progress"}

// Progress is how far each shard is.
type Progress struct {
	// OldestMs is the time from which the store may have raw samples, in Unix ms.
	OldestMs int64 `json:"oldest"`
	// Shards are the slices of raw that are done, by shard. It may have fewer elements than the store has shards.
	Shards []Span `json:"shards"`

	version int64
}

// Span is the slices that start in [FromMs, ToMs), in Unix ms. The zero span has none.
type Span struct {
	FromMs int64 `json:"from"`
	ToMs   int64 `json:"to"`
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

// Span returns what is done of a shard.
func (p *Progress) Span(shard int) Span {
	if shard < len(p.Shards) {
		return p.Shards[shard]
	}
	return Span{}
}

// within returns the part of a span that lies in the range. One without any such part is none.
func (r Range) within(done Span) (Span, bool) {
	done = Span{max(done.FromMs, r.FromMs), min(done.ToMs, r.ToMs)}
	return done, done.FromMs < done.ToMs
}

// Next returns the slice that comes next: newest first, since these are read most. What has ended since the last one
// comes before that, one by one, so that what is done has no gap. ok is false if none is left.
func (r Range) Next(done Span) (s metric.Slice, ok bool) {
	if r.FromMs >= r.ToMs {
		return s, false
	}
	in, some := r.within(done)
	switch {
	case !some:
		return r.Ladder.SliceAt(metric.Raw, r.ToMs-1), true
	case in.ToMs < r.ToMs:
		return r.Ladder.SliceAt(metric.Raw, in.ToMs), true
	case r.FromMs < in.FromMs:
		return r.Ladder.SliceAt(metric.Raw, in.FromMs-1), true
	}
	return s, false
}

// Slices returns the number of slices of the range.
func (r Range) Slices() int { return r.count(r.Span) }

// Left returns how many slices of the range are not done.
func (r Range) Left(done Span) int {
	in, some := r.within(done)
	if !some {
		return r.Slices()
	}
	return r.Slices() - r.count(in)
}

func (r Range) count(s Span) int {
	first := r.Ladder.SliceAt(metric.Raw, s.FromMs)
	return int((s.ToMs - s.FromMs) / (first.EndMs - first.StartMs))
}

// With returns the span with more that is done. If there would be a gap between both, only the latter counts.
func (s Span) With(more Span) Span {
	switch none := (Span{}); {
	case more == none:
		return s
	case s == none || s.ToMs < more.FromMs || more.ToMs < s.FromMs:
		return more
	}
	return Span{min(s.FromMs, more.FromMs), max(s.ToMs, more.ToMs)}
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

// Keep adds what is done of some shards. Other workers may add what is done of theirs meanwhile. oldestMs becomes
// Progress.OldestMs, and nowMs is the current time, both in Unix ms.
func Keep(ctx context.Context, docs Documents, done map[int]Span, oldestMs, nowMs int64) error {
	for {
		p, _, err := Read(ctx, docs)
		if err != nil {
			return err
		}
		p.OldestMs = oldestMs
		for shard, span := range done {
			for len(p.Shards) <= shard {
				p.Shards = append(p.Shards, Span{})
			}
			p.Shards[shard] = p.Shards[shard].With(span)
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
