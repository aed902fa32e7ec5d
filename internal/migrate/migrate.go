// Package migrate copies a keyspace of RHQ's into a store of Quern's: raw samples, roll-ups, and
// what was waiting to be aggregated.
//
// What it keeps:
//
//  1. Repeatable: a chunk's id follows from what is in it, and a roll-up that is there is
//     left alone. So there is no record of progress to be lost or to be wrong: whoever
//     begins again finds what is there by reading it, and writes what is missing.
//  2. Held against: whatever is copied is read back from the store, and counted.
//  3. Nothing is made up: a roll-up gets a count only where the legacy raw samples, or finer roll-ups, give that
//     very row. All others count as one.
//  4. Order: samples, then roll-ups, then the marks that have them ground. A run never
//     finds a mark before its samples.
//  5. Bounded: of each group of series that is being copied one day of raw samples is
//     held, and one roll-up for each hour that has raw samples; of all others the id.
package migrate

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/legacy"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/pace"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
)

// Options say what is copied, and how.
type Options struct {
	// Source is the source of the schedules that Names do not name. The default is rhq.
	Source string
	// Names are the series of schedules, by their ids in the legacy keyspace.
	Names map[int32]Series
	// Rate bounds the rows copied in a second; 0 does not.
	Rate int
	// Parallel is the number of groups copied at once. The default is 4.
	Parallel int
	// Shared says that other processes write to the store meanwhile.
	Shared bool
	// Logger takes what an operator should know. The default discards.
	Logger *slog.Logger
	// Progress hears how many of the schedules are done. The default is nobody.
	Progress func(done, total int)
}

func (o *Options) ensureDefaults() {
	if o.Source == "" {
		o.Source = "rhq"
	}
	if o.Parallel == 0 {
		o.Parallel = 4
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Progress == nil {
		o.Progress = func(int, int) {}
	}
}

// tables are what rows are counted by: raw, then the levels.
const tables = 4

// Report is what a migration found and did.
type Report struct {
	Schedules int
	// Read are the rows to be copied, of raw and of each level, Found those of them that were read
	// back, Written those that were not there before. A roll-up is one row.
	Read, Found, Written [tables]int64
	// Exact are the roll-ups whose count was found out.
	Exact int64
	// Marked are the schedules of slices that are to be ground, Expired those that waited for
	// it and whose input does not rest until then.
	Marked, Expired int64
	// NotFinite are the roll-ups that hold NaN or an infinity, and are left out.
	NotFinite int64
	// Bad are the rows that cannot be copied; a schedule with a negative id counts as one.
	Bad int64
	// BadRows names the first of them.
	BadRows []string
}

// maxNamed bounds Report.BadRows.
const maxNamed = 20

// Equal says whether all that was to be copied is there.
func (r *Report) Equal() bool { return r.Read == r.Found }

func (r *Report) bad(format string, args ...any) {
	r.Bad++
	if len(r.BadRows) < maxNamed {
		r.BadRows = append(r.BadRows, fmt.Sprintf(format, args...))
	}
}

func (r *Report) add(o *Report) {
	r.Schedules += o.Schedules
	for i := range tables {
		r.Read[i] += o.Read[i]
		r.Found[i] += o.Found[i]
		r.Written[i] += o.Written[i]
	}
	r.Exact += o.Exact
	r.Marked += o.Marked
	r.Expired += o.Expired
	r.NotFinite += o.NotFinite
	r.Bad += o.Bad
	r.BadRows = append(r.BadRows, o.BadRows[:min(len(o.BadRows), maxNamed-len(r.BadRows))]...)
}

// TableOf names what the report counts at i.
func TableOf(i int) string {
	if i == 0 {
		return legacy.RawTable
	}
	return legacy.Levels[i-1].Table()
}

// Migration copies from one keyspace into one store.
type Migration struct {
	from   legacy.Reader
	store  storage.Store
	cache  *cache.Cache
	reg    *registry.Registry
	clk    clock.Clock
	opts   Options
	pace   *pace.Pace
	ladder metric.Ladder

	// buckets are those of the levels, 0 where the ladder has none.
	buckets [tables]metric.Bucket
	waiting []legacy.Waiting
	// endMs is where times begin that are ahead of the clock by more than a slice.
	endMs int64
}

// New makes a migration. The cache is the process's only one over the store.
func New(from legacy.Reader, to storage.Store, c *cache.Cache, clk clock.Clock, opts Options) *Migration {
	opts.ensureDefaults()
	m := &Migration{
		from: from, store: to, cache: c, clk: clk, opts: opts, ladder: to.Settings().Ladder,
		reg:  registry.New(to, registry.Options{MaxSources: 64}),
		pace: pace.New(clk, opts.Rate),
	}
	for _, l := range legacy.Levels {
		if b, err := m.ladder.Bucket(metric.FormatWidth(l.Width())); err == nil {
			m.buckets[l+1] = b
		}
	}
	return m
}

// series is a schedule and its id in the store.
type series struct {
	legacy int32
	id     metric.ScheduleID
}

// registerAtOnce is how many series are registered together. They get consecutive ids.
const registerAtOnce = 1024

// Run copies all that is not there yet. The report is of what was done, also with an error.
func (m *Migration) Run(ctx context.Context) (*Report, error) {
	total := new(Report)
	ids, err := m.schedules(ctx, total)
	if err != nil {
		return total, err
	}
	if m.waiting, err = m.from.Waiting(ctx); err != nil {
		return total, err
	}
	m.endMs = m.ladder.SliceAt(metric.Raw, clock.NowMs(m.clk)).EndMs

	var mu sync.Mutex
	done, all := 0, len(ids)
	m.opts.Progress(0, all)
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(m.opts.Parallel)
	for len(ids) > 0 && inner.Err() == nil {
		n := 1
		for n < len(ids) && n < registerAtOnce && m.seriesOf(ids[n]).Source == m.seriesOf(ids[0]).Source {
			n++
		}
		var some []series
		if err := m.whileAway(inner, func() (err error) {
			some, err = m.register(inner, ids[:n])
			return err
		}); err != nil {
			g.Go(func() error { return err })
			break
		}
		ids = ids[n:]
		for _, piece := range m.pieces(some) {
			g.Go(func() error {
				var r *Report
				err := m.whileAway(inner, func() (err error) {
					r, err = m.piece(inner, piece)
					return err
				})
				if err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				total.add(r)
				done += len(piece)
				m.opts.Progress(done, all)
				return nil
			})
		}
	}
	err = g.Wait()
	if err == nil {
		err = context.Cause(ctx)
	}
	return total, err
}

// schedules are those that any table has rows of, in the order of their series: neighbours
// get neighbouring ids.
func (m *Migration) schedules(ctx context.Context, r *Report) ([]int32, error) {
	var ids []int32
	for i := range tables {
		rows := false
		for id, err := range m.from.Schedules(ctx, TableOf(i)) {
			if err != nil {
				return nil, err
			}
			rows = true
			ids = append(ids, id)
		}
		if rows && i > 0 && m.buckets[i] == 0 {
			width := metric.FormatWidth(legacy.Levels[i-1].Width())
			return nil, fmt.Errorf("the legacy table %s has rows, and the store has no roll-ups of %s to take them, only %s: "+
				"make a store with --rollups that have %s among them", TableOf(i), width, m.ladder, width)
		}
		slices.Sort(ids)
		ids = slices.Compact(ids)
	}
	ids = slices.DeleteFunc(ids, func(id int32) bool {
		if id < 0 {
			r.bad("schedule %d, with all of its rows: the id is negative", id)
		}
		return id < 0
	})
	slices.SortStableFunc(ids, func(a, b int32) int {
		return strings.Compare(m.seriesOf(a).Source, m.seriesOf(b).Source)
	})
	return ids, nil
}

func (m *Migration) seriesOf(id int32) Series {
	if s, ok := m.opts.Names[id]; ok {
		return s
	}
	return unnamed(m.opts.Source, id)
}

// register finds the ids of schedules of one source, and claims those that have none.
func (m *Migration) register(ctx context.Context, ids []int32) ([]series, error) {
	src, err := m.reg.Source(ctx, m.seriesOf(ids[0]).Source, false)
	if err != nil {
		return nil, err
	}
	labels := make([]metric.Labels, len(ids))
	for i, id := range ids {
		labels[i] = m.seriesOf(id).Labels
	}
	got, err := src.Register(ctx, labels)
	if err != nil {
		return nil, err
	}
	out := make([]series, len(ids))
	for i, id := range ids {
		out[i] = series{id, got[i]}
	}
	return out, nil
}

// pieces cuts series into those of one storage group each, sorted by id.
func (m *Migration) pieces(some []series) [][]series {
	slices.SortFunc(some, func(a, b series) int { return cmp.Compare(a.id, b.id) })
	size := m.store.Settings().GroupSize
	var out [][]series
	for len(some) > 0 {
		group := blocks.Of(some[0].id, size)
		n := slices.IndexFunc(some, func(s series) bool { return !group.Contains(s.id) })
		if n < 0 {
			n = len(some)
		}
		out, some = append(out, some[:n:n]), some[n:]
	}
	return out
}

// The waits between attempts while a cluster is away.
const (
	firstWait = time.Second
	lastWait  = 30 * time.Second
)

// whileAway tries until the clusters answer: what it tries may be repeated.
func (m *Migration) whileAway(ctx context.Context, try func() error) error {
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		err := try()
		if err == nil || !storage.IsAway(err) || ctx.Err() != nil {
			return err
		}
		m.opts.Logger.Warn("a cluster is away; trying again", "in", wait, "err", err)
		if err := m.clk.Sleep(ctx, wait); err != nil {
			return err
		}
	}
}
