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
	// Refresh reads refreshIDs ids at a time, in up to refreshAttempts attempts. Of thousands of reads
	// some fail; a Refresh that started over each time would never finish.
	refreshIDs      = 8 * pageSize
	refreshAttempts = 5
	// What cannot be read at once is read by pages, and then in pieces of pieceIDs, the default size of
	// the store's groups, since groups lie in different places. If mostPieces fail before any is read,
	// the whole store is away. A page with a failed piece is read again after awayPolls.
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
	case !r.some && r.lost > 0:
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
	some  bool  // something has been read
	lost  int   // pieces that are out of reach
	err   error // why the last of these is
}

// part reads ids, and puts off the pages of which something is out of reach. It returns an error if the refresh cannot go on.
func (r *refresh) part(ctx context.Context, ids blocks.Range) error {
	away := make(map[int]error)
	if err := r.pieces(ctx, ids, refreshAttempts, away); err != nil {
		return err
	}
	r.index.looked(ids, away)
	return nil
}

// pieces reads ids at once or, if some are out of reach, in smaller pieces. It adds the pages of those that cannot be read to
// away.
func (r *refresh) pieces(ctx context.Context, ids blocks.Range, attempts int, away map[int]error) (err error) {
	for range attempts {
		if err = r.index.read(ctx, r.store, ids); err == nil {
			r.some = true
			return nil
		}
		if !storage.IsAway(err) || ctx.Err() != nil {
			return err
		}
	}
	size := pageSize
	switch n := int(ids.End - ids.Start); {
	case n <= pieceIDs:
		r.lost, r.err = r.lost+1, err
		away[int(ids.Start/pageSize)] = err
		if !r.some && r.lost >= mostPieces {
			return err
		}
		return nil
	case n <= pageSize:
		size = pieceIDs
	}
	for _, piece := range parts(ids, size) {
		if err := r.pieces(ctx, piece, 1, away); err != nil {
			return err
		}
	}
	return nil
}

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

// looked records that the pages of a range have been read, or why not all of them. Those are put off.
func (x *Index) looked(r blocks.Range, away map[int]error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for i := int(r.Start / pageSize); i <= int((r.End-1)/pageSize); i++ {
		p := &x.polls[i]
		if n := x.seriesIn(i); n > p.had {
			p.had, p.grew = n, x.polled
		}
		if p.away = away[i]; p.away != nil {
			p.finished, p.next = false, x.polled+awayPolls
			continue
		}
		p.finished = x.polled-p.leased >= finishedPolls
		p.next = x.polled + min(max((x.polled-p.grew)/idleShare, 1), mostPolls)
	}
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
