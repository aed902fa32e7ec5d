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

// registration is the work on the newcomers of one source.
type registration struct {
	*Newcomers
	granted grant
	won     int // the claims that the store granted under their own ids
}

// claim is a series without an id, and the id that it is to get.
type claim struct {
	*registration
	at     []int // where the series is among the newcomers
	digest digest
	labels metric.Labels
	id     metric.ScheduleID
	done   bool // the store has decided the id
}

// Register gives an id to each series that has none. A source may be there once. All series are
// claimed together, and OnNew is told of them together.
//
// If the error is not nil, some series may be registered, and the ids mean nothing: it is safe to
// call again.
func (r *Registry) Register(ctx context.Context, all []*Newcomers) error {
	inOrder := make([]*registration, len(all))
	for i, n := range all {
		inOrder[i] = &registration{Newcomers: n}
	}
	// Two calls that wait for each other's sources would wait for ever.
	slices.SortFunc(inOrder, func(a, b *registration) int { return cmp.Compare(a.Source.number, b.Source.number) })
	locked := 0
	defer func() {
		for _, g := range inOrder[:locked] {
			<-g.Source.turn
		}
	}()
	for _, g := range inOrder {
		select {
		case g.Source.turn <- struct{}{}:
			locked++
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	seen := make(map[digest]*claim)
	var claims []*claim
	n := 0
	defer func() {
		for _, g := range inOrder {
			r.census.release(g.granted, g.won)
		}
	}()
	for _, g := range inOrder {
		if err := g.prepare(ctx, seen); err != nil {
			return err
		}
		claims = append(claims, g.granted.claims...)
		if n += len(g.Series); n >= yieldEvery {
			runtime.Gosched()
			n = 0
		}
	}
	for some := range slices.Chunk(claims, claimSize) {
		if err := r.claim(ctx, some); err != nil {
			for _, g := range inOrder {
				g.Source.keepForRetry(g.granted.claims)
			}
			return err
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
	var want []*claim
	var buf []byte
	claims := make([]claim, len(g.Series))
	for i, ls := range g.Series {
		buf = ls.AppendKey(buf[:0])
		d := s.r.seeds.digest(buf)
		id, known := s.ids.Load().find(d)
		if known {
			g.IDs[i] = id
			continue
		}
		g.IDs[i] = NoID
		if c := seen[d]; c != nil {
			c.at = append(c.at, i)
			continue
		}
		labels, err := s.full(ls, string(buf))
		if err != nil {
			return err
		}
		c := &claims[i]
		*c = claim{registration: g, at: []int{i}, digest: d, labels: labels, id: NoID}
		seen[d] = c
		if want = append(want, c); len(want)%yieldEvery == 0 {
			runtime.Gosched()
		}
	}
	if limit := int(s.r.census.perSource.Load()); limit > 0 {
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
	s.ids.Store(s.ids.Load().with(len(g.granted.claims)))
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

// claim claims series under their assigned ids, and keeps the ids that the store gives them.
func (r *Registry) claim(ctx context.Context, claims []*claim) error {
	want := make([]storage.Claim, len(claims))
	for i, c := range claims {
		want[i] = storage.Claim{Source: c.Source.partition, Schedule: storage.Schedule{ID: c.id, Labels: c.labels}}
	}
	ids, err := r.store.ClaimSchedules(ctx, want)
	if err == nil && len(ids) != len(want) {
		err = fmt.Errorf("the store returned %d ids for %d series", len(ids), len(want))
	}
	for _, id := range ids {
		err = cmp.Or(err, checkID(id))
	}
	if err != nil {
		return fmt.Errorf("register %d series, some of them of source %q: %w", len(claims), claims[0].Source.name, err)
	}
	schedules := make([]storage.Schedule, len(claims))
	for i, c := range claims {
		schedules[i] = storage.Schedule{ID: ids[i], Labels: c.labels}
		c.Source.claimed(c, ids[i])
	}
	if r.opts.OnNew != nil {
		r.opts.OnNew(schedules)
	}
	return nil
}
