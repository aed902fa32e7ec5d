package registry

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// claimSize is the number of series claimed at once. A claim holds up other claims of the process,
// and on a cluster one that fails is repeated as a whole.
const claimSize = 4096

// yieldEvery is the number of new series after which other goroutines get their turn; see ADR 9.
const yieldEvery = 64

// Newcomers are series of one source that are to be registered, and what came of it.
type Newcomers struct {
	Source *Source
	// Series MUST NOT hold the source unless the source is derived. The same series may be given more
	// than once. What Register keeps of them it copies: strings may be views into a request's buffer.
	Series []metric.Labels
	// IDs are the ids of the series, NoID where a limit forbids one. Refused then says which limit.
	IDs     []metric.ScheduleID
	Refused *LimitError
}

// claim is a series without an id, and the id that it is to get.
type claim struct {
	digest digest
	labels metric.Labels
	id     metric.ScheduleID
	done   bool // the store has decided the id
}

// registration is the work on the newcomers of one source.
type registration struct {
	*Newcomers
	// at has the claim of each series, nil where the id is known.
	at      []*claim
	granted grant
	won     int
}

// Register gives an id to each series that has none. A source may be there once. All series are
// claimed together, and OnNew is told of them together.
//
// If the error is not nil, some series may be registered, and the ids mean nothing: it is safe to
// call again.
func (r *Registry) Register(ctx context.Context, all []*Newcomers) error {
	inOrder := make([]registration, len(all))
	for i, n := range all {
		inOrder[i].Newcomers = n
	}
	// Two calls that wait for each other's sources would wait for ever.
	slices.SortFunc(inOrder, func(a, b registration) int { return cmp.Compare(a.Source.number, b.Source.number) })
	taken := 0
	defer func() {
		for i := range taken {
			<-inOrder[i].Source.turn
		}
	}()
	for i := range inOrder {
		select {
		case inOrder[i].Source.turn <- struct{}{}:
			taken++
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	defer func() {
		for i := range inOrder {
			r.census.release(inOrder[i].granted, inOrder[i].won)
		}
	}()
	seen := make(map[digest]*claim)
	n := 0
	for i := range inOrder {
		if err := inOrder[i].prepare(ctx, seen); err != nil {
			return err
		}
		if n += len(inOrder[i].Series); n >= yieldEvery {
			runtime.Gosched()
			n = 0
		}
	}
	if err := r.claim(ctx, inOrder); err != nil {
		return err
	}
	for i := range inOrder {
		g := &inOrder[i]
		for j, c := range g.at {
			if c == nil {
				continue
			}
			if g.IDs[j] = NoID; c.done {
				g.IDs[j] = c.id
			}
		}
	}
	return nil
}

// Register registers series of one source; see Registry.Register. If a limit forbids a series, its id is
// NoID and the error is a *LimitError; all other series are registered then. After any other error the ids
// are nil.
func (s *Source) Register(ctx context.Context, series []metric.Labels) ([]metric.ScheduleID, error) {
	n := Newcomers{Source: s, Series: series}
	if err := s.r.Register(ctx, []*Newcomers{&n}); err != nil {
		return nil, err
	}
	if n.Refused != nil {
		return n.IDs, n.Refused
	}
	return n.IDs, nil
}

// prepare finds the series that have no id, as far as there is room for them, and the ids to claim.
// seen is scratch. The source's turn is held.
func (g *registration) prepare(ctx context.Context, seen map[digest]*claim) error {
	s := g.Source
	clear(seen)
	g.Refused = nil
	g.IDs = slices.Grow(g.IDs[:0], len(g.Series))[:len(g.Series)]
	g.at = make([]*claim, len(g.Series))
	var want []*claim
	var buf []byte
	claims := make([]claim, 0, len(g.Series)) // it does not grow
	for i, ls := range g.Series {
		buf = ls.AppendKey(buf[:0])
		d := s.r.seeds.digest(buf)
		if id, known := s.ids.Load().find(d); known {
			g.IDs[i] = id
			continue
		}
		if g.at[i] = seen[d]; g.at[i] != nil {
			continue
		}
		labels, err := s.full(ls, string(buf))
		if err != nil {
			return err
		}
		claims = append(claims, claim{digest: d, labels: labels, id: NoID})
		c := &claims[len(claims)-1]
		g.at[i], seen[d] = c, c
		if want = append(want, c); len(want)%yieldEvery == 0 {
			runtime.Gosched()
		}
	}
	if limit := s.r.opts.MaxSeriesPerSource; limit > 0 {
		if len(want) > limit-s.Len()+s.leaving.gone() {
			if err := s.leaving.count(ctx, s.all); err != nil {
				return err
			}
		}
		if room := max(0, limit-s.Len()+s.leaving.gone()); len(want) > room {
			g.Refused = &LimitError{Source: s.name, Max: limit, Refused: len(want) - room}
			want = want[:room]
		}
	}
	var err error
	if g.granted, err = s.r.census.reserve(ctx, want); err != nil {
		return err
	}
	if more := g.granted.refused; g.Refused == nil {
		g.Refused = more
	} else if more != nil {
		g.Refused.Refused += more.Refused
	}
	return s.assign(ctx, g.granted.claims)
}

// full returns the labels of a series as the store has them, with the text of the series' key.
func (s *Source) full(series metric.Labels, key string) (metric.Labels, error) {
	labels := series.In(key)
	if s.derived {
		return labels, nil
	}
	labels, err := metric.NewLabels(append(labels, metric.Label{Name: metric.SourceLabel, Value: s.name})...)
	if err != nil {
		return nil, fmt.Errorf("register %s of source %q: %w", series, s.name, err)
	}
	return labels, nil
}

// part is claims of one source that are made together.
type part struct {
	of   *registration
	want []*claim
}

// claim claims what was granted, claimSize series at a time.
func (r *Registry) claim(ctx context.Context, all []registration) error {
	var parts []part
	n := 0
	for i := range all {
		for want := all[i].granted.claims; len(want) > 0; {
			some := want[:min(len(want), claimSize-n)]
			parts = append(parts, part{&all[i], some})
			want, n = want[len(some):], n+len(some)
			if n < claimSize {
				continue
			}
			if err := r.claimParts(ctx, parts, n); err != nil {
				keepForRetry(all)
				return err
			}
			parts, n = parts[:0], 0
		}
	}
	if n == 0 {
		return nil
	}
	err := r.claimParts(ctx, parts, n)
	if err != nil {
		keepForRetry(all)
	}
	return err
}

func keepForRetry(all []registration) {
	for i := range all {
		left := all[i].granted.claims
		for len(left) > 0 && left[0].done { // they are claimed in order
			left = left[1:]
		}
		if len(left) > 0 {
			all[i].Source.keepForRetry(left)
		}
	}
}

// claimParts claims n series under their assigned ids, and keeps the ids that they end up with.
func (r *Registry) claimParts(ctx context.Context, parts []part, n int) error {
	want := make([]storage.Claim, 0, n)
	for _, p := range parts {
		for _, c := range p.want {
			want = append(want, storage.Claim{Source: p.of.Source.partition, Schedule: storage.Schedule{ID: c.id, Labels: c.labels}})
		}
	}
	ids, err := r.claimSchedules(ctx, want)
	if err != nil {
		return fmt.Errorf("register %d series, some of them of source %q: %w", n, parts[0].of.Source.name, err)
	}
	schedules := make([]storage.Schedule, n)
	for i := range want {
		schedules[i] = storage.Schedule{ID: ids[i], Labels: want[i].Labels}
	}
	for _, p := range parts {
		p.of.won += p.of.Source.claimed(p.want, ids[:len(p.want)])
		ids = ids[len(p.want):]
	}
	if r.opts.OnNew != nil {
		r.opts.OnNew(schedules)
	}
	return nil
}

// claimSchedules claims series in the store. It checks the ids that the store returns.
func (r *Registry) claimSchedules(ctx context.Context, want []storage.Claim) ([]metric.ScheduleID, error) {
	ids, err := r.store.ClaimSchedules(ctx, want)
	if err != nil {
		return nil, err
	}
	if len(ids) != len(want) {
		return nil, fmt.Errorf("the store returned %d ids for %d series", len(ids), len(want))
	}
	for _, id := range ids {
		if err := checkID(id); err != nil {
			return nil, err
		}
	}
	return ids, nil
}
