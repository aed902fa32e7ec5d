package cassandra

import (
	"context"
	"crypto/sha256"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

const (
	cqlClaimSchedule  = `INSERT INTO schedules (source, series, schedule_id, labels) VALUES (?, ?, ?, ?) IF NOT EXISTS`
	cqlFindSchedules  = `SELECT series, schedule_id, labels, listed FROM schedules WHERE source = ? AND series IN ?`
	cqlReadSource     = `SELECT series, schedule_id, labels, listed FROM schedules WHERE source = ?`
	cqlMarkListed     = `UPDATE schedules SET listed = true WHERE source = ? AND series = ?`
	cqlListSchedule   = `INSERT INTO schedules_by_block (start_schedule_id, schedule_id, labels) VALUES (?, ?, ?)`
	cqlReadSchedules  = `SELECT schedule_id, labels FROM schedules_by_block WHERE start_schedule_id = ? AND schedule_id >= ? AND schedule_id < ?`
	cqlListScheduleBs = `SELECT DISTINCT start_schedule_id FROM schedules_by_block`
	cqlListSeries     = `SELECT schedule_id AS start_schedule_id FROM schedules`
	cqlListCache      = `SELECT start_schedule_id FROM metrics_cache PER PARTITION LIMIT 1`
)

// LeasedIDs implements storage.Registry.
func (s *Store) LeasedIDs(ctx context.Context) (blocks.Range, error) {
	next, _, err := s.nextID(ctx)
	return blocks.Range{End: next}, named("leased ids", err)
}

// nextID returns the first id that was never leased, and its stored text.
func (s *Store) nextID(ctx context.Context) (metric.ScheduleID, string, error) {
	text, err := readSetting(ctx, s.session, settingNextID)
	if err != nil || text == "" {
		return 0, text, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, text, fmt.Errorf("%w: setting %s %q", storage.ErrCorrupt, settingNextID, text)
	}
	return metric.ScheduleID(n), text, nil
}

type scheduleRow struct {
	Series []byte            `db:"series"`
	ID     int64             `db:"schedule_id"`
	Labels map[string]string `db:"labels"`
	Listed bool              `db:"listed"`
}

// claim is a series that is being registered. Its key in the partition of its source is a hash,
// because labels may be longer than Cassandra's keys.
type claim struct {
	source string
	key    [sha256.Size]byte
	wanted metric.ScheduleID
	labels map[string]string

	id     metric.ScheduleID
	listed bool
}

// claimsAtOnce is how many partitions a call of ClaimSchedules writes to at once.
const claimsAtOnce = 32

// ClaimSchedules implements storage.Registry. It writes conditional batches in the partition of
// each source, then the labels by id, then a note in the source's partition that the labels are
// there. SourceSchedules skips a series without the note, so whoever meets the series next
// completes what a crash left undone.
func (s *Store) ClaimSchedules(ctx context.Context, want []storage.Claim) ([]metric.ScheduleID, error) {
	const op = "claim schedules"
	if ctx.Err() != nil {
		return nil, convert(ctx, ctx.Err())
	}
	order := make([]*claim, len(want))
	bySource := make(map[string]map[[sha256.Size]byte]*claim)
	distinct := make(map[string][]*claim)
	for i, w := range want {
		claims := bySource[w.Source]
		if claims == nil {
			claims = make(map[[sha256.Size]byte]*claim)
			bySource[w.Source] = claims
		}
		key := sha256.Sum256(w.Labels.AppendKey(nil))
		c := claims[key]
		if c == nil {
			c = &claim{source: w.Source, key: key, wanted: w.ID, labels: labelMap(w.Labels)}
			claims[key] = c
			distinct[w.Source] = append(distinct[w.Source], c)
		}
		order[i] = c
	}
	err := together(ctx, distinct, func(ctx context.Context, source string, some []*claim) error {
		for len(some) > 0 {
			n := claimsPerBatch(some)
			if err := s.claim(ctx, source, bySource[source], some[:n]); err != nil {
				return named(fmt.Sprintf("claim schedules of source %q", source), err)
			}
			some = some[n:]
		}
		return nil
	})
	if err == nil {
		err = named(op, s.list(ctx, distinct))
	}
	if err != nil {
		return nil, err
	}
	ids := make([]metric.ScheduleID, len(order))
	for i, c := range order {
		ids[i] = c.id
	}
	return ids, nil
}

// together calls do for each partition, for claimsAtOnce of them at a time. The error is the first
// one; it ends the others.
func together[K comparable, V any](ctx context.Context, parts map[K]V, do func(context.Context, K, V) error) error {
	keys := slices.Collect(maps.Keys(parts))
	return each(ctx, len(keys), claimsAtOnce, func(ctx context.Context, i int) error { return do(ctx, keys[i], parts[keys[i]]) })
}

func claimsPerBatch(claims []*claim) int {
	size := 0
	for i, c := range claims {
		st := c.statement()
		if size += sizeOf(&st); size > maxBatchBytes && i > 0 {
			return i
		}
	}
	return len(claims)
}

func (c *claim) statement() statement {
	// If the insert is refused because of its own effect, claim then reads the id that it asked for.
	return stmt(cqlClaimSchedule, c.source, c.key[:], int64(c.wanted), c.labels).again()
}

// claim finds or decides the id of each series in some. A batch inserts all or none. If it is
// refused, the next one leaves out the series that others have claimed.
func (s *Store) claim(ctx context.Context, source string, known map[[sha256.Size]byte]*claim, some []*claim) error {
	missing := some
	for {
		stmts := make([]statement, len(missing))
		for i, c := range missing {
			stmts[i] = c.statement()
		}
		ok, err := s.session.cas(ctx, stmts...)
		if err != nil {
			return err
		}
		if ok {
			for _, c := range missing {
				c.id = c.wanted
			}
			return nil
		}
		keys := make([][]byte, len(missing))
		for i, c := range missing {
			keys[i] = c.key[:]
		}
		present := make(map[*claim]bool)
		for r, err := range rows[scheduleRow](ctx, s.session, manyRows, stmt(cqlFindSchedules, source, keys)) {
			if err != nil {
				return err
			}
			c := known[[sha256.Size]byte(r.Series)]
			c.id, c.listed = metric.ScheduleID(r.ID), r.Listed
			present[c] = true
		}
		var rest []*claim
		for _, c := range missing {
			if !present[c] {
				rest = append(rest, c)
			}
		}
		if missing = rest; len(missing) == 0 {
			return nil
		}
	}
}

// list writes the labels by id, and then the notes that they are there. Sources share the
// partitions of labels.
func (s *Store) list(ctx context.Context, bySource map[string][]*claim) error {
	byBlock := make(map[metric.ScheduleID][]statement)
	notes := make(map[string][]statement)
	for source, claims := range bySource {
		for _, c := range claims {
			if c.listed {
				continue
			}
			start := blocks.BlockAt(c.id, s.groupSize).Start
			byBlock[start] = append(byBlock[start], stmt(cqlListSchedule, int64(start), int64(c.id), c.labels))
			notes[source] = append(notes[source], stmt(cqlMarkListed, source, c.key[:]))
		}
	}
	tsUs, err := s.timestamp(ctx, 0)
	if err != nil {
		return err
	}
	err = together(ctx, byBlock, func(ctx context.Context, _ metric.ScheduleID, stmts []statement) error {
		return s.inBatches(ctx, tsUs, stmts)
	})
	if err != nil {
		return err
	}
	return together(ctx, notes, func(ctx context.Context, _ string, stmts []statement) error { return s.inBatches(ctx, tsUs, stmts) })
}

func labelMap(ls metric.Labels) map[string]string {
	m := make(map[string]string, len(ls))
	for _, l := range ls {
		m[l.Name] = l.Value
	}
	return m
}

func (r *scheduleRow) schedule() (storage.Schedule, error) {
	ls := make([]metric.Label, 0, len(r.Labels))
	for name, value := range r.Labels {
		ls = append(ls, metric.Label{Name: name, Value: value})
	}
	labels, err := metric.NewLabels(ls...)
	if err != nil {
		return storage.Schedule{}, fmt.Errorf("schedule %d: %w: %w", r.ID, storage.ErrCorrupt, err)
	}
	return storage.Schedule{ID: metric.ScheduleID(r.ID), Labels: labels}, nil
}

// SourceSchedules implements storage.Registry.
func (s *Store) SourceSchedules(ctx context.Context, source string) iter.Seq2[storage.Schedule, error] {
	return func(yield func(storage.Schedule, error) bool) {
		for r, err := range rows[scheduleRow](ctx, s.session, manyRows, stmt(cqlReadSource, source)) {
			if err == nil && !r.Listed {
				continue
			}
			var sch storage.Schedule
			if err == nil {
				sch, err = r.schedule()
			}
			if !yield(sch, named("schedules of a source", err)) || err != nil {
				return
			}
		}
	}
}

type listedRow struct {
	ID     int64             `db:"schedule_id"`
	Labels map[string]string `db:"labels"`
}

// Schedules implements storage.Registry.
func (s *Store) Schedules(ctx context.Context, ids blocks.Range) iter.Seq2[storage.Schedule, error] {
	const op = "schedules"
	return func(yield func(storage.Schedule, error) bool) {
		starts, err := s.scheduleBlocks(ctx, ids)
		if err == nil {
			err = convert(ctx, ctx.Err())
		}
		if err != nil {
			yield(storage.Schedule{}, named(op, err))
			return
		}
		for r, err := range spread(ctx, starts, aheadRows, func(ctx context.Context, start int64) iter.Seq2[listedRow, error] {
			return rows[listedRow](ctx, s.session, manyRows, stmt(cqlReadSchedules, start, int64(ids.Start), int64(ids.End)))
		}) {
			var sch storage.Schedule
			if err == nil {
				sch, err = (&scheduleRow{ID: r.ID, Labels: r.Labels}).schedule()
			}
			if !yield(sch, named(op, err)) || err != nil {
				return
			}
		}
	}
}

// scheduleBlocks returns the partitions of schedules_by_block that may hold ids, ascending.
func (s *Store) scheduleBlocks(ctx context.Context, ids blocks.Range) ([]int64, error) {
	parts, err := s.partitions(ctx, listing{cqlList: cqlListScheduleBs, groupSize: s.groupSize, periodMs: 1}, ids, 0, 1)
	if err != nil {
		return nil, err
	}
	out := make([]int64, len(parts))
	for i, p := range parts {
		out[i] = p.Group
	}
	return out, nil
}
