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
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/wire/excerpt"
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
	// MaxBytes limits the memory that all series, those without data included, and their sources
	// take in this process, by Memory; 0 is no limit. The default is 0.
	MaxBytes int64
	// Memory says what series take. It is required with MaxBytes.
	Memory Memory
	// Gone counts those of the given series, or of all if ids is nil, that have no data left. They
	// do not count against MaxSeries and MaxSeriesPerSource. Gone is called when one of these is
	// reached, at most once per recount for all series and for each source. It requires Clock. By
	// default every series counts as having data.
	Gone func(ctx context.Context, ids []metric.ScheduleID) (n int, err error)
	// Background runs what goes on beside requests: loading a source or counting series may take longer
	// than the request that begins it.
	Background limits.Background
	// Clock is the time. It is required with Gone and LeaseAge.
	Clock clock.Clock
	// MaxSources is the number of sources kept in memory. Beyond it, one that was not used for a while
	// is dropped, and loaded again when it reports. The default is 262144. Of those without series
	// only the last 1024 are kept, since anybody may make up names.
	MaxSources int
	// OnNew gets every series whose id a registration has found out, whether this process or
	// another claimed the id. It is called before Register returns the id, and from several
	// goroutines at once. It MUST NOT call the registry, and owns its argument. By default nothing
	// is called.
	OnNew func([]storage.Schedule)
}

// Memory knows what series take in memory.
type Memory interface {
	// Bytes is what all series take, those included that OnNew has told of. Sources do not count.
	Bytes() int64
	// Weight is how much more a new series would take.
	Weight(labels metric.Labels) int64
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
	// MaxBytes is the limit if there is too little memory for the series, otherwise 0.
	MaxBytes int64
}

// Error implements error.
func (e *LimitError) Error() string {
	if e.MaxBytes > 0 {
		return fmt.Sprintf("%d new series refused: all series may take no more than %d bytes of memory", e.Refused, e.MaxBytes)
	}
	if e.Source == "" {
		return fmt.Sprintf("%d new series refused: the store may hold no more than %d", e.Refused, e.Max)
	}
	return fmt.Sprintf("%d new series refused: source %s may have no more than %d", e.Refused, excerpt.Quoted(e.Source), e.Max)
}

// recount is how long a count of series without data serves.
const recount = time.Minute

// SetLimits changes MaxSeries and MaxSeriesPerSource for later registrations.
func (r *Registry) SetLimits(series, perSource int) {
	r.census.max.Store(int64(series))
	r.census.perSource.Store(int64(perSource))
}

// MaxSeries is the limit of the series of the whole store; 0 is none.
func (r *Registry) MaxSeries() int { return int(r.census.max.Load()) }

// Gone is the number of series that had no data left when the limit was last reached.
func (r *Registry) Gone() int { return r.census.leaving.gone() }

// Bytes is what all series and the sources in memory take, by an estimate that errs upwards. It
// requires Memory.
func (r *Registry) Bytes() int64 { return r.opts.Memory.Bytes() + r.census.sources.Load() }

// Registry finds and registers series. It is safe for concurrent use.
type Registry struct {
	store  storage.Registry
	opts   Options
	ids    allocator
	census *census
	seeds  seeds

	// loads are the reads of sources under way. They go on when the request that began them ends: a
	// source may take longer to read than any sender waits.
	loads *limits.Errands[sourceKey, *Source]

	numbers atomic.Uint64 // the last Source.number

	mu      sync.RWMutex
	sources map[sourceKey]*Source // those that are loaded
	// ring holds the loaded sources for the clock algorithm that evicts them: hand passes over the
	// ring, and takes the first source not used since the last visit.
	ring []*Source
	hand int
	// empty holds, beside the ring, the sources that had no series when they were loaded, the latest
	// of them; oldest is the one that goes next: into the ring if it has series by then.
	empty  []*Source
	oldest int
	// forgotten counts the sources that were dropped with what was counted of them.
	forgotten int
}

// sourceKey identifies a source.
type sourceKey struct {
	name    string
	derived bool
}

// sourceBytes is what a source in memory takes, beside its name and its series: measured and rounded
// up; see TestBytesOfSources.
const sourceBytes = 640

// bytes is what the source takes, beside its series.
func (k sourceKey) bytes() int64 { return int64(sourceBytes + len(k.name)) }

// maxReads is how many sources are loaded at a time. More of them wait.
const maxReads = 1024

// New makes a registry on a store. It does no I/O.
func New(store storage.Registry, opts Options) *Registry {
	opts = opts.EnsureDefaults()
	return &Registry{
		store:   store,
		opts:    opts,
		ids:     newAllocator(store, opts),
		census:  newCensus(store, opts),
		seeds:   newSeeds(),
		loads:   limits.NewErrands[sourceKey, *Source](opts.Background, maxReads),
		sources: make(map[sourceKey]*Source),
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
// The series are read from the store once; callers that come meanwhile wait for that. Reading goes
// on when ctx is done. A call is cheap enough for every report, and keeping the result longer gains
// nothing. The name is copied if it is kept. Errors are the store's.
func (r *Registry) Source(ctx context.Context, name string, derived bool) (*Source, error) {
	s := r.loaded(sourceKey{name, derived})
	if s == nil {
		key := sourceKey{strings.Clone(name), derived}
		var err error
		s, err = r.loads.Do(ctx, key, func(ctx context.Context) (*Source, error) { return r.load(ctx, key) })
		if err != nil {
			return nil, err
		}
	}
	if !s.used.Load() {
		s.used.Store(true)
	}
	return s, nil
}

// loaded returns a source that is loaded, otherwise nil.
func (r *Registry) loaded(key sourceKey) *Source {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.sources[key]
}

// load loads a source, unless it is loaded by now.
func (r *Registry) load(ctx context.Context, key sourceKey) (*Source, error) {
	if s := r.loaded(key); s != nil {
		return s, nil
	}
	s := &Source{
		r:         r,
		number:    r.numbers.Add(1),
		derived:   key.derived,
		partition: partition(key.name, key.derived),
		turn:      make(chan struct{}, 1),
		leaving:   newLeaving(r.opts),
	}
	s.name = s.partition[len(s.partition)-len(key.name):]
	ids, last, err := s.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("load the series of source %q: %w", key.name, err)
	}
	s.last = last
	s.ids.Store(ids)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sources[s.key()] = s
	r.census.sources.Add(key.bytes())
	if ids.len() > 0 {
		r.keep(s)
	} else {
		r.keepEmpty(s)
	}
	return s, nil
}

// maxEmpty is how many sources without series are kept. Those that are about to have some are among them.
const maxEmpty = 1024

// keepEmpty keeps a loaded source that has no series yet, for a while.
func (r *Registry) keepEmpty(s *Source) {
	if len(r.empty) < min(maxEmpty, r.opts.MaxSources) {
		r.empty = append(r.empty, s)
		return
	}
	if old := r.empty[r.oldest]; old.Len() > 0 {
		r.keep(old)
	} else {
		r.drop(old)
	}
	r.empty[r.oldest] = s
	r.oldest = (r.oldest + 1) % len(r.empty)
}

func (r *Registry) drop(s *Source) {
	delete(r.sources, s.key())
	if s.samples.Load() > 0 {
		r.forgotten++
	}
	r.census.sources.Add(-s.key().bytes())
}

// keep puts a loaded source into the ring, in the place of another when it is full.
// Whoever still holds the other may go on using it: what it knows stays true, and what
// it does not know the store does.
func (r *Registry) keep(s *Source) {
	if len(r.ring) < r.opts.MaxSources {
		r.ring = append(r.ring, s)
		return
	}
	for r.ring[r.hand].used.Swap(false) {
		r.hand = (r.hand + 1) % len(r.ring)
	}
	r.drop(r.ring[r.hand])
	r.ring[r.hand] = s
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
