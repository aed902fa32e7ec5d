// Package registry gives each series its schedule id, once and for all, and keeps
// those in use in memory: looking one up is what ingest does for every sample.
//
// Ids come in leases from the store, so that no two processes hold the same one,
// and are claimed there, so that a series met by two processes at once still gets
// one. The ids of one registration are consecutive: a source that registers with
// its first report lies in one or two blocks, and so does every later report.
package registry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/errand"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// NoID stands in a result of Register for a series that was not registered.
const NoID metric.ScheduleID = -1

// Options set up a Registry; the zero value stands for the defaults.
type Options struct {
	// LeaseAge is how long a lease of ids is used, where other processes look for the series in it; see LeaseAge. The default is
	// for ever.
	LeaseAge time.Duration
	// LeaseSize is the number of ids leased from the store at a time. What is left
	// of a lease when the process ends is never used. The default is 4096.
	LeaseSize int
	// MaxSeries limits the series of the whole store; 0 is no limit. A process counts
	// those that are there when it first registers one, and its own from then on, so
	// that several processes may together go over it. The default is 0.
	MaxSeries int
	// MaxSeriesPerSource limits the series of one source; 0 is no limit. The default is 0.
	MaxSeriesPerSource int
	// Gone counts, of the given series or of all if ids is nil, those of which nothing is left. They do not count against
	// limits. It is called where a limit is reached, at most each recount for all series and for each source. With it Clock
	// is required. The default is that of all series there is something.
	Gone func(ctx context.Context, ids []metric.ScheduleID) (int, error)
	// Beside runs what goes on beside requests: counting series may take longer than the request that begins it.
	Beside errand.Beside
	// Clock is the time. It is required with Gone and LeaseAge.
	Clock clock.Clock
	// MaxSources is the number of sources kept in memory. Beyond it, one that was not
	// used for a while is dropped, and loaded again when it reports. The default is 262144. Of those without series only the last
	// 1024 are kept, since anybody may make up names.
	MaxSources int
	// OnNew is told of every series whose id a registration has found out, whether
	// this process claimed it or another had, before Register returns that id. It is
	// called from several goroutines at once, MUST NOT call the registry, and owns
	// what it is given. The default is nil, nobody.
	OnNew func([]storage.Schedule)
}

// LeaseAge is how long a process of several uses a lease of ids: the others need not look for series in it afterwards.
const LeaseAge = 24 * time.Hour

// EnsureDefaults fills in what was left zero.
func (o Options) EnsureDefaults() Options {
	if o.LeaseSize <= 0 {
		o.LeaseSize = 4096
	}
	if o.MaxSources <= 0 {
		o.MaxSources = 1 << 18
	}
	return o
}

// LimitError says that series were refused because there would be too many. All
// others of the same registration were registered.
type LimitError struct {
	// Source is the source that has too many series, "" when the store has.
	Source string
	// Max is the limit, Refused the number of series over it.
	Max     int
	Refused int
}

// Error implements error.
func (e *LimitError) Error() string {
	if e.Source == "" {
		return fmt.Sprintf("%d new series refused: the store may hold no more than %d", e.Refused, e.Max)
	}
	return fmt.Sprintf("%d new series refused: source %q may have no more than %d", e.Refused, e.Source, e.Max)
}

// recount is how long a count of series of which nothing is left serves.
const recount = time.Minute

// Gone is the number of series of which nothing was left when the limit was last reached.
func (r *Registry) Gone() int { return r.census.leaving.gone() }

// Registry finds and registers series. It is safe for concurrent use.
type Registry struct {
	store  storage.Registry
	opts   Options
	ids    allocator
	census *census

	mu      sync.RWMutex
	sources map[sourceKey]*entry
	// ring holds the loaded entries of sources for the clock that evicts: hand passes
	// over it, and takes the first entry not used since it last came by.
	ring []*entry
	hand int
	// empty holds, beside the ring, the entries that had no series when they were loaded, the latest of them; oldest is the one
	// that goes next: into the ring if it has series by then.
	empty  []*entry
	oldest int
}

// sourceKey is what a source is known by.
type sourceKey struct {
	name    string
	derived bool
}

// entry is a source in memory, or on its way there: src and err are set once loaded
// is closed.
type entry struct {
	key    sourceKey
	used   atomic.Bool
	loaded chan struct{}
	src    *Source
	err    error
}

// New makes a registry on a store. It does no I/O.
func New(store storage.Registry, opts Options) *Registry {
	opts = opts.EnsureDefaults()
	return &Registry{
		store:   store,
		opts:    opts,
		ids:     newAllocator(store, opts),
		census:  newCensus(store, opts),
		sources: make(map[sourceKey]*entry),
	}
}

// partition is the name under which the store keeps a source's series. No declared source's has a control character.
func partition(name string, derived bool) string {
	if derived {
		return storage.DerivedSource + name
	}
	return name
}

// Source is the source of the given name, with the series that the store knows of
// it. The series of a derived one have no label for it, and share no ids with a declared one of
// the same name. They are read once; callers that come while they are being read wait for them.
// It costs nothing to call for every report, and nothing is gained by keeping what
// it returns longer than that. The name is copied if it is kept. Errors are those of
// the store.
func (r *Registry) Source(ctx context.Context, name string, derived bool) (*Source, error) {
	key := sourceKey{name, derived}
	for {
		r.mu.RLock()
		e := r.sources[key]
		r.mu.RUnlock()
		if e == nil {
			var mine bool
			if e, mine = r.addEntry(key); mine {
				return r.load(ctx, e)
			}
		}
		select {
		case <-e.loaded:
		default:
			select {
			case <-e.loaded:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		if e.err == nil {
			if !e.used.Load() {
				e.used.Store(true)
			}
			if err := e.src.check(ctx); err != nil {
				return nil, err
			}
			return e.src, nil
		}
		// The one who was loading may have been called off; that is no reason for
		// those who waited with it to fail.
		if errors.Is(e.err, errLoadCalledOff) && ctx.Err() == nil {
			continue
		}
		return nil, e.err
	}
}

// Doubts counts how often the store may have forgotten what it had acknowledged. What was written to ids that were looked up
// before is not sure to be read under them; Source finds out.
func (r *Registry) Doubts() int64 { return r.store.Doubts() }

var errLoadCalledOff = errors.New("loading the source was called off")

func (r *Registry) addEntry(key sourceKey) (e *entry, mine bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e = r.sources[key]; e != nil {
		return e, false
	}
	key.name = strings.Clone(key.name)
	e = &entry{key: key, loaded: make(chan struct{})}
	r.sources[key] = e
	return e, true
}

func (r *Registry) load(ctx context.Context, e *entry) (*Source, error) {
	defer close(e.loaded)
	src := &Source{
		r:         r,
		name:      e.key.name,
		derived:   e.key.derived,
		partition: partition(e.key.name, e.key.derived),
		turn:      make(chan struct{}, 1),
		leaving:   newLeaving(r.opts),
		ids:       make(map[string]metric.ScheduleID),
		last:      NoID,
	}
	src.checked.Store(r.store.Doubts())
	var key []byte
	for sch, err := range r.store.SourceSchedules(ctx, src.partition) {
		if err != nil {
			err = fmt.Errorf("load the series of source %q: %w", e.key.name, err)
			e.err = err
			if ctx.Err() != nil {
				e.err = fmt.Errorf("%w: %w", errLoadCalledOff, err)
			}
			r.mu.Lock()
			delete(r.sources, e.key)
			r.mu.Unlock()
			return nil, err
		}
		key = src.appendKey(key[:0], sch.Labels)
		src.ids[string(key)] = sch.ID
		src.last = max(src.last, sch.ID)
	}
	e.src = src
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(src.ids) > 0 {
		r.keep(e)
	} else {
		r.keepEmpty(e)
	}
	return src, nil
}

// maxEmpty is how many sources without series are kept. Those that are about to have some are among them.
const maxEmpty = 1024

// keepEmpty keeps a loaded entry that has no series yet, for a while.
func (r *Registry) keepEmpty(e *entry) {
	if len(r.empty) < min(maxEmpty, r.opts.MaxSources) {
		r.empty = append(r.empty, e)
		return
	}
	if old := r.empty[r.oldest]; old.src.Len() > 0 {
		r.keep(old)
	} else {
		delete(r.sources, old.key)
	}
	r.empty[r.oldest] = e
	r.oldest = (r.oldest + 1) % len(r.empty)
}

// keep puts a loaded entry into the ring, in the place of another when it is full.
// Whoever still holds the other's Source may go on using it: what it knows stays
// true, and what it does not know the store does.
func (r *Registry) keep(e *entry) {
	if len(r.ring) < r.opts.MaxSources {
		r.ring = append(r.ring, e)
		return
	}
	for r.ring[r.hand].used.Swap(false) {
		r.hand = (r.hand + 1) % len(r.ring)
	}
	delete(r.sources, r.ring[r.hand].key)
	r.ring[r.hand] = e
	r.hand = (r.hand + 1) % len(r.ring)
}

// appendKey appends the key of a series within its source.
func (s *Source) appendKey(dst []byte, labels metric.Labels) []byte {
	for _, l := range labels {
		if s.derived || l.Name != metric.SourceLabel {
			dst = l.AppendKey(dst)
		}
	}
	return dst
}
