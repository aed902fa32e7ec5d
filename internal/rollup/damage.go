package rollup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/metric"
)

const (
	// maxNamed is the maximum number of damaged chunks or rows that one message names.
	maxNamed = 5
	// maxReported bounds the messages that are remembered. Beyond it all may be reported again.
	maxReported = 1024
)

// reported remembers the messages about damage that were reported. Each attempt and each run that reads
// a block meets its damaged chunk, but a process reports it once. The zero value is ready.
type reported struct {
	mu  sync.Mutex
	all map[string]struct{}
}

// first reports whether message is new.
func (t *reported) first(message string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.all[message]; ok {
		return false
	}
	if t.all == nil || len(t.all) >= maxReported {
		t.all = make(map[string]struct{})
	}
	t.all[message] = struct{}{}
	return true
}

// damaged counts n damaged items that a read of a block met in a table, and reports them once.
func (r *Runner) damaged(ctx context.Context, w *cache.Work, table string, n int, err error) {
	r.metrics.damaged.WithLabelValues(table).Add(float64(n))
	if r.reported.first(fmt.Sprintf("%d %v", w.Block.Start, err)) {
		r.report(ctx, w.Partition.SliceKey, w.Block.Start, err)
	}
}

// damage collects the items of a block that could not be read: raw chunks, columns of them, rows, or the sketches of
// rows.
type damage struct {
	n     int
	names []string
	// groups may have lost samples of any schedule, schedules are those of damaged columns.
	groups    []metric.ScheduleID
	schedules []metric.ScheduleID
	met       map[damagedItem]struct{}
}

// damagedItem is a damaged chunk, or the column of a schedule in it.
type damagedItem struct {
	group    metric.ScheduleID
	id       blocks.ID
	schedule metric.ScheduleID // -1 is the chunk
}

// add adds a chunk, or its columns, once: it is met for each part of the block that is read.
func (d *damage) add(group metric.ScheduleID, id blocks.ID, err error) {
	var columns *blocks.DamagedColumns
	if !errors.As(err, &columns) {
		if d.first(damagedItem{group, id, -1}) {
			d.groups = append(d.groups, group)
			d.name(fmt.Sprintf("chunk %s of group %d: %v", id, group, err))
		}
		return
	}
	for i, schedule := range columns.Schedules {
		if d.first(damagedItem{group, id, schedule}) {
			d.schedules = append(d.schedules, schedule)
			d.name(fmt.Sprintf("chunk %s of group %d: %v", id, group, columns.Errs[i]))
		}
	}
}

// first reports whether an item is met for the first time.
func (d *damage) first(item damagedItem) bool {
	if _, ok := d.met[item]; ok {
		return false
	}
	if d.met == nil {
		d.met = make(map[damagedItem]struct{})
	}
	d.met[item] = struct{}{}
	return true
}

// concerns reports whether a schedule may have lost samples, in groups of a size.
func (d *damage) concerns(id metric.ScheduleID, size int) bool {
	return slices.Contains(d.schedules, id) || slices.Contains(d.groups, blocks.BlockAt(id, size).Start)
}

func (d *damage) name(name string) {
	if d.n++; d.n <= maxNamed {
		d.names = append(d.names, name)
	}
}

// String lists the first maxNamed names and the number of the others.
func (d *damage) String() string {
	more := ""
	if d.n > maxNamed {
		more = fmt.Sprintf("; and %d more", d.n-maxNamed)
	}
	return strings.Join(d.names, "; ") + more
}
