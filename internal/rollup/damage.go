package rollup

import (
	"context"
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
	// maxTold bounds the messages that are remembered. Beyond it all may be reported again.
	maxTold = 1024
)

// told remembers the messages about damage that were reported. Each attempt and each run that reads
// a block meets its damaged chunk, but a process reports it once. The zero value is ready.
type told struct {
	mu  sync.Mutex
	all map[string]struct{}
}

// first reports whether message is new.
func (t *told) first(message string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.all[message]; ok {
		return false
	}
	if t.all == nil || len(t.all) >= maxTold {
		t.all = make(map[string]struct{})
	}
	t.all[message] = struct{}{}
	return true
}

// damaged counts n damaged items that a read of a block met in a table, and reports them once.
func (r *Runner) damaged(ctx context.Context, w *cache.Work, table string, n int, err error) {
	r.metrics.damaged.WithLabelValues(table).Add(float64(n))
	if r.told.first(fmt.Sprintf("%d %v", w.Block.Start, err)) {
		r.report(ctx, w.Partition.SliceKey, w.Block.Start, err)
	}
}

// damage collects the items of a block that could not be read: raw chunks, rows, or the sketches of
// rows.
type damage struct {
	n      int
	names  []string
	groups []metric.ScheduleID
	chunks map[damagedChunk]struct{}
}

type damagedChunk struct {
	group metric.ScheduleID
	id    blocks.ID
}

// add adds a chunk, once: it is met for each part of the block that is read.
func (d *damage) add(group metric.ScheduleID, id blocks.ID, err error) {
	c := damagedChunk{group, id}
	if _, ok := d.chunks[c]; ok {
		return
	}
	if d.chunks == nil {
		d.chunks = make(map[damagedChunk]struct{})
	}
	d.chunks[c] = struct{}{}
	if !slices.Contains(d.groups, group) {
		d.groups = append(d.groups, group)
	}
	d.name(fmt.Sprintf("chunk %s of group %d: %v", id, group, err))
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
