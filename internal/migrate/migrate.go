// Package migrate copies a keyspace of RHQ into a store: roll-ups, and the raw samples of the last days.
//
// Its invariants:
//
//  1. Repeatable: what is in the store is left alone. So there is no record of progress that could be
//     lost or wrong: a new run finds what is there by reading it, and writes what is missing.
//  2. Verified: whatever is copied is read back from the store, and counted.
//  3. Nothing is made up: RHQ has no counts, so a roll-up of RHQ counts as one sample. Rows with a count
//     are ground from the raw samples.
//  4. Raw samples are written as ingest writes those of a report. So the runs grind them together with
//     what others write, whenever they do.
//  5. Order: roll-ups, then samples, then the marks of the roll-ups. A run never finds a mark before its
//     rows.
//  6. Bounded: for each group of series under way, memory holds one day of raw samples, and the hours of
//     the roll-ups. For all other series it holds only the id.
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
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/migrate/legacy"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
)

// Options says what is copied, and how.
type Options struct {
	// Source is the source of the schedules that Names does not name. The default is rhq.
	Source string
	// Names are the series of schedules, by their ids in the legacy keyspace.
	Names map[int32]Series
	// Rate is the maximum number of rows copied per second; 0 is no limit.
	Rate int
	// Parallel is the number of groups copied at once. The default is 4.
	Parallel int
	// Shared says that other processes write to the store at the same time.
	Shared bool
	// Logger receives what an operator should know. The default discards it.
	Logger *slog.Logger
	// Progress receives the number of schedules done. The default does nothing.
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

// tables is the number of tables that rows are counted by: raw, then the levels.
const tables = 4

// Report says what a migration found and did.
type Report struct {
	Schedules int
	// Read counts the rows to copy, of raw and of each level. Found counts those of them that were
	// read back, and Written those that were not there before. A roll-up is one row.
	Read, Found, Written [tables]int64
	// Aggregated is the number of raw samples that are left out, because the roll-ups stand for them; see rawDays.
	Aggregated int64
	// Expired is the number of raw samples, and of slices of roll-ups, that expire before a run could grind them.
	Expired int64
	// NotFinite is the number of roll-ups that hold NaN or an infinity. They are left out.
	NotFinite int64
	// Bad is the number of rows that cannot be copied. A schedule with a negative id counts as one.
	Bad int64
	// BadRows describes the first of them.
	BadRows []string
}

// maxNamed bounds Report.BadRows.
const maxNamed = 20

// Equal reports whether everything to be copied is in the store.
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
	r.Aggregated += o.Aggregated
	r.Expired += o.Expired
	r.NotFinite += o.NotFinite
	r.Bad += o.Bad
	r.BadRows = append(r.BadRows, o.BadRows[:min(len(o.BadRows), maxNamed-len(r.BadRows))]...)
}

// TableOf returns the name of the table that the report counts at i.
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
	pace   *limits.Pace
	ladder metric.Ladder

	// buckets are the buckets of the levels, 0 if the ladder has none.
	buckets [tables]metric.Bucket
	// rawMs is the time from which all raw samples are copied. Rows from endMs on, the end of the current raw slice,
	// are ahead of the clock and cannot be copied.
	rawMs, endMs int64

	// writer writes the raw samples, for one group at a time.
	writing sync.Mutex
	writer  *cache.Writer
}

// rawDays are the days whose raw samples are copied. RHQ deletes them after seven days. Of an older day, some may be gone, or go
// while the copy is made, and RHQ's rows say more than those that are left. A copy may take a day.
const rawDays = 6

// Parts are what a Migration works with. All are required.
type Parts struct {
	From legacy.Reader
	To   storage.Store
	// Cache is the only one of the process over To.
	Cache *cache.Cache
	Clock clock.Clock
}

// New returns a migration.
func New(p Parts, opts Options) *Migration {
	opts.ensureDefaults()
	m := &Migration{
		from: p.From, store: p.To, cache: p.Cache, clk: p.Clock, opts: opts, ladder: p.To.Settings().Ladder,
		reg:    registry.New(p.To, registry.Options{MaxSources: 64}),
		writer: cache.NewWriter(p.Cache),
		pace:   limits.NewPace(p.Clock, opts.Rate),
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

// registerAtOnce is the number of series registered together. They get consecutive ids.
const registerAtOnce = 1024

// Run copies everything that is not there yet. With an error it also returns the report of what was
// done.
func (m *Migration) Run(ctx context.Context) (*Report, error) {
	total := new(Report)
	if err := m.checkLadder(); err != nil {
		return total, err
	}
	ids, err := m.schedules(ctx, total)
	if err != nil {
		return total, err
	}
	nowMs := clock.NowMs(m.clk)
	m.endMs = m.ladder.SliceAt(metric.Raw, nowMs).EndMs
	m.rawMs = metric.AlignUp(max(nowMs-rawDays*dayMs, m.cache.KeptFrom(metric.Raw, nowMs)), dayMs)

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
		for _, members := range m.groups(some) {
			g.Go(func() error {
				var r *Report
				err := m.whileAway(inner, func() (err error) {
					r, err = m.group(inner, members)
					return err
				})
				if err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				total.add(r)
				done += len(members)
				m.opts.Progress(done, all)
				return nil
			})
		}
	}
	err = g.Wait()
	if err == nil {
		// What a failed flush has left is written before the process ends: a repeat finds these samples, and would not.
		err = m.whileAway(ctx, func() error {
			m.writer.Hurry()
			return m.writer.Settle(ctx)
		})
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	return total, err
}

// checkLadder refuses a ladder with a level below the top legacy one that has no legacy table. Nothing would be copied into
// that level, and no marks lead a run through it, so late data would have coarser copied rows computed again from next to
// nothing. A level above the top legacy one has all of its rows below it.
func (m *Migration) checkLadder() error {
	top := slices.Max(m.buckets[:])
	for b := metric.Bucket(1); b < top; b++ {
		if !slices.Contains(m.buckets[:], b) {
			return fmt.Errorf("the store has roll-ups of %s, which RHQ does not have: rows of %s would be computed again from "+
				"rows of %s that are not there; create a store whose --rollups have, up to %s, no widths but 1h, 6h and 24h",
				m.ladder.Name(b), m.ladder.Name(b+1), m.ladder.Name(b), m.ladder.Name(top))
		}
	}
	return nil
}

// schedules returns the schedules with rows in any table, in the order of their series, so that
// neighbours get neighbouring ids.
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
			return nil, fmt.Errorf("the legacy table %s has rows, but the store has no roll-ups of %s for them, only %s: "+
				"create a store whose --rollups include %s", TableOf(i), width, m.ladder, width)
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

// register returns the ids of schedules of one source, and claims ids for those that have none.
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

// groups cuts series into those of each storage group, sorted by id.
func (m *Migration) groups(some []series) [][]series {
	slices.SortFunc(some, func(a, b series) int { return cmp.Compare(a.id, b.id) })
	size := m.store.Settings().GroupSize
	var out [][]series
	for len(some) > 0 {
		end := blocks.BlockAt(some[0].id, size).End
		n, _ := slices.BinarySearchFunc(some, end, func(s series, id metric.ScheduleID) int { return cmp.Compare(s.id, id) })
		out, some = append(out, some[:n:n]), some[n:]
	}
	return out
}

// whileAway retries until the clusters answer. try must be repeatable.
func (m *Migration) whileAway(ctx context.Context, try func() error) error {
	return storage.WhileAway(ctx, m.clk, func(context.Context) error { return try() }, func(err error, wait time.Duration) {
		m.opts.Logger.Warn("a cluster is unavailable; retrying", "in", wait, "err", err)
	})
}
