// Package registry gives each series its schedule id, once and for all. It keeps the series in use
// in memory, because ingest looks up an id for every sample.
//
// Ids come in leases from the store, so no two processes hold the same id. They are claimed in the
// store, so a series that two processes meet at once still gets one id. The ids of one registration
// are consecutive: if a source registers with its first report, the report lies in one or two
// blocks, and so does every later one.
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

// NoID is the result of Register for a series that was not registered.
const NoID metric.ScheduleID = -1

// Options set up a Registry. Zero fields mean the defaults.
type Options struct {
	// LeaseAge is how long a lease of ids is used, if other processes look for new series in it;
	// see the constant LeaseAge. The default is for ever.
	LeaseAge time.Duration
	// LeaseSize is the number of ids leased from the store at a time. Ids left over when the
	// process ends are never used. The default is 4096.
	LeaseSize int
	// MaxSeries limits the series of the whole store; 0 is no limit. A process counts all existing
	// series when it first registers one, and only its own from then on. So several processes may
	// together exceed the limit. The default is 0.
	MaxSeries int
	// MaxSeriesPerSource limits the series of one source; 0 is no limit. The default is 0.
	MaxSeriesPerSource int
	// Gone counts those of the given series, or of all if ids is nil, that have no data left. They
	// do not count against limits. Gone is called when a limit is reached, at most once per recount
	// for all series and for each source. It requires Clock. By default every series counts as
	// having data.
	Gone func(ctx context.Context, ids []metric.ScheduleID) (int, error)
	// Beside runs what goes on beside requests: counting series may take longer than the request that begins it.
	Beside errand.Beside
	// Clock is the time. It is required with Gone and LeaseAge.
	Clock clock.Clock
	// MaxSources is the number of sources kept in memory. Beyond it, one that was not
	// used for a while is dropped, and loaded again when it reports. The default is 262144. Of those without series only the last
	// 1024 are kept, since anybody may make up names.
	MaxSources int
	// OnNew gets every series whose id a registration has found out, whether this process or
	// another claimed the id. It is called before Register returns the id, and from several
	// goroutines at once. It MUST NOT call the registry, and owns its argument. By default nothing
	// is called.
	OnNew func([]storage.Schedule)
}

// LeaseAge is how long one of several processes uses a lease of ids. Afterwards the others need not
// look for new series in it.
const LeaseAge = 24 * time.Hour

// EnsureDefaults returns o with defaults for the zero fields.
func (o Options) EnsureDefaults() Options {
	if o.LeaseSize <= 0 {
		o.LeaseSize = 4096
	}
	if o.MaxSources <= 0 {
		o.MaxSources = 1 << 18
	}
	return o
}

// LimitError says that series were refused because there would be too many. All other series of the
// registration were registered.
type LimitError struct {
	// Source is the source that has too many series, "" if the store has.
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

// recount is how long a count of series without data serves.
const recount = time.Minute

// Gone is the number of series that had no data left when the limit was last reached.
func (r *Registry) Gone() int { return r.census.leaving.gone() }

// Registry finds and registers series. It is safe for concurrent use.
type Registry struct {
	store  storage.Registry
	opts   Options
	ids    allocator
	census *census

	mu      sync.RWMutex
	sources map[sourceKey]*entry
	// ring holds the entries of loaded sources for the clock algorithm that evicts them: hand
	// passes over the ring, and takes the first entry not used since the last visit.
	ring []*entry
	hand int
	// empty holds, beside the ring, the entries that had no series when they were loaded, the latest of them; oldest is the one
	// that goes next: into the ring if it has series by then.
	empty  []*entry
	oldest int
}

// sourceKey identifies a source.
type sourceKey struct {
	name    string
	derived bool
}

// entry is a source in memory, or one that is being loaded: src and err are set once loaded is
// closed.
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

// partition is the name under which the store keeps a source's series. Names of declared sources
// have no control characters.
func partition(name string, derived bool) string {
	if derived {
		return storage.DerivedSource + name
	}
	return name
}

// Source returns the source of the given name, with the series that the store has for it. Series of
// a derived source have no source label, and share no ids with a declared source of the same name.
//
// The series are read from the store once; callers that come meanwhile wait for that. A call is
// cheap enough for every report, and keeping the result longer gains nothing. The name is copied if
// it is kept. Errors are the store's.
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
		// The goroutine that was loading may have been cancelled. That is no reason for those that
		// waited for it to fail.
		if errors.Is(e.err, errLoadCalledOff) && ctx.Err() == nil {
			continue
		}
		return nil, e.err
	}
}

// Doubts counts how often the store may have forgotten what it had acknowledged. After a new doubt,
// samples written to ids that were looked up before may not be readable under them; Source finds
// out.
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
