package query

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
)

const (
	// Refresh reads refreshIDs ids at a time and retries each read up to refreshAttempts times. Of
	// thousands of reads some fail; a Refresh that started over each time would never finish.
	refreshIDs      = 8 * pageSize
	refreshAttempts = 5
	// What cannot be read at once is read in pieces of pieceIDs, the default size of the store's
	// groups, since groups lie in different places. If mostPieces fail before any is read, the whole
	// store is away. A page with a failed piece is tried again after awayPolls.
	pieceIDs   = 128
	mostPieces = 64
	awayPolls  = 6
)

// RefreshEvery is the interval at which to call Refresh where other processes register series.
const RefreshEvery = 5 * time.Second

const (
	// idleShare and mostPolls space out the looks at ids that stay unused: the wait is an eighth of
	// the idle time, at most about five minutes.
	idleShare = 8
	mostPolls = 64
	// finishedPolls is the number of polls after which ids are no longer looked for. No process
	// uses a lease for that long; the extra hour lets the last claims arrive.
	finishedPolls = int((registry.LeaseAge + time.Hour) / RefreshEvery)
)

// Refresh adds the series that the store has and the index lacks. It reads only ranges with missing
// ids, so it can be called repeatedly for series that other processes register; see RefreshEvery.
// It looks at the unused rest of a lease ever more rarely, and after about a day never again. So
// the cost of a call depends on the processes that run now, not on past ones. Errors are those of
// the store. A *UnreadError says that some series are out of reach, and that all others are there.
func (x *Index) Refresh(ctx context.Context, store storage.Registry) error {
	x.refreshing.Lock()
	defer x.refreshing.Unlock()
	x.polled++
	ids, err := store.LeasedIDs(ctx)
	if err != nil {
		return fmt.Errorf("refresh the label index: %w", err)
	}
	r := refresh{index: x, store: store}
	for _, missing := range x.missing(ids) {
		for _, part := range parts(missing, refreshIDs) {
			if err := r.part(ctx, part); err != nil {
				return fmt.Errorf("refresh the label index: %w", err)
			}
		}
	}
	e := x.unreadPages()
	x.unread.Store(e)
	switch {
	case e == nil:
		return nil
	case r.read == 0 && r.lost > 0:
		return fmt.Errorf("refresh the label index: %w", r.err)
	}
	return e
}

// parts returns r in parts that are aligned to multiples of size.
func parts(r blocks.Range, size int) []blocks.Range {
	out := r.Cover(size)
	if n := len(out); n > 0 {
		out[0].Start, out[n-1].End = r.Start, r.End
	}
	return out
}

// refresh is a Refresh under way.
type refresh struct {
	index *Index
	store storage.Registry
	// read and lost count the reads that succeeded, and the pieces that are out of reach.
	read, lost int
	// err is the last error.
	err error
}

// part reads ids at once or, if some of them are out of reach, piece by piece. It returns an error
// if the refresh cannot go on.
func (r *refresh) part(ctx context.Context, ids blocks.Range) error {
	err := r.try(ctx, ids)
	if err == nil {
		r.read++
		r.index.looked(ids)
		return nil
	}
	r.err = err
	for _, page := range parts(ids, pageSize) {
		if err := r.page(ctx, page); err != nil {
			return err
		}
	}
	if r.broken(ctx) {
		return r.err
	}
	return nil
}

// try reads ids, and repeats that while they are out of reach.
func (r *refresh) try(ctx context.Context, ids blocks.Range) (err error) {
	for range refreshAttempts {
		if err = r.index.read(ctx, r.store, ids); !storage.IsAway(err) || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// page reads a page, or a part of one, piece by piece. A page with a piece out of reach is put off.
func (r *refresh) page(ctx context.Context, ids blocks.Range) error {
	var away error
	for _, piece := range parts(ids, pieceIDs) {
		if r.broken(ctx) || r.read == 0 && r.lost >= mostPieces {
			return r.err
		}
		if err := r.index.read(ctx, r.store, piece); err != nil {
			away, r.err = err, err
			r.lost++
		} else {
			r.read++
		}
	}
	if r.index.looked(ids); away != nil {
		r.index.putOff(ids, away)
	}
	return nil
}

// broken returns whether the last error is more than that some ids are out of reach.
func (r *refresh) broken(ctx context.Context) bool { return !storage.IsAway(r.err) || ctx.Err() != nil }

// unreadPages returns what the last looks at all pages could not read, nil if it is nothing.
func (x *Index) unreadPages() *UnreadError {
	var out *UnreadError
	x.mu.RLock()
	defer x.mu.RUnlock()
	for i := range x.polls {
		p := &x.polls[i]
		if p.away == nil {
			continue
		}
		if out == nil {
			out = &UnreadError{Err: p.away}
		}
		out.IDs += int(p.end) - i*pageSize
		out.IDs -= x.seriesIn(i)
	}
	return out
}

// looked records that the pages of a range have been read.
func (x *Index) looked(r blocks.Range) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for i := int(r.Start / pageSize); i <= int((r.End-1)/pageSize); i++ {
		p := &x.polls[i]
		if n := x.seriesIn(i); n > p.had {
			p.had, p.grew = n, x.polled
		}
		p.away = nil
		p.finished = x.polled-p.leased >= finishedPolls
		p.next = x.polled + min(max((x.polled-p.grew)/idleShare, 1), mostPolls)
	}
}

// putOff has the next polls pass over the page of ids, of which something is out of reach.
func (x *Index) putOff(ids blocks.Range, away error) {
	p := &x.polls[ids.Start/pageSize]
	p.away, p.finished, p.next = away, false, x.polled+awayPolls
}

// read adds the series with ids in r. Those of pages that were out of reach are not new.
func (x *Index) read(ctx context.Context, store storage.Registry, r blocks.Range) error {
	var found, late []storage.Schedule
	for s, err := range store.Schedules(ctx, r) {
		if err != nil {
			return err
		}
		if x.polls[s.ID/pageSize].away != nil {
			late = append(late, s)
		} else {
			found = append(found, s)
		}
	}
	x.Add(found)
	for some := range slices.Chunk(late, addAtOnce) {
		x.addAll(some, false)
	}
	return nil
}

// missing returns the ranges of ids whose pages are not full and are due for a look. It joins
// adjacent pages.
func (x *Index) missing(ids blocks.Range) []blocks.Range {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var out []blocks.Range
	for _, r := range parts(ids, pageSize) {
		i := int(r.Start / pageSize)
		if x.seriesIn(i) == pageSize {
			continue
		}
		if i >= len(x.polls) {
			x.polls = append(x.polls, make([]poll, i+1-len(x.polls))...)
		}
		p := &x.polls[i]
		if p.end != r.End {
			*p = poll{end: r.End, leased: x.polled, grew: x.polled, had: p.had}
		}
		if p.finished || x.polled < p.next {
			continue
		}
		if n := len(out); n > 0 && out[n-1].End == r.Start {
			out[n-1].End = r.End
		} else {
			out = append(out, r)
		}
	}
	return out
}

// seriesIn returns the number of series in a page. The caller holds the lock.
func (x *Index) seriesIn(i int) int {
	if p := x.pages.page(metric.ScheduleID(i) * pageSize); p != nil {
		return p.n
	}
	return 0
}
