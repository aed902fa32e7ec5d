// Package metadata keeps the metadata that senders report for metrics: type, help and unit of each
// name. It keeps it in memory for requests, and in the store for later and other processes.
package metadata

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Kind is the kind of the items that hold metadata.
const Kind = "metric"

const (
	// nameBytes bounds names, like ingest's default; metadata of longer names is dropped.
	nameBytes = 256
	// helpBytes and unitBytes are the lengths to which texts are truncated.
	helpBytes = 1024
	unitBytes = 64

	// warnEvery is the minimum interval between warnings that the catalog is full.
	warnEvery = time.Minute
)

// Options configure a Catalog; the zero value selects the defaults.
type Options struct {
	// MaxNames bounds the number of metrics; metadata of further metrics is dropped. One client brings
	// up to half of them. The default is 100000.
	MaxNames int
	// Shared says that other processes store metadata too.
	Shared bool
	// Logger receives messages for the operator. The default discards them.
	Logger *slog.Logger
}

// Catalog is the metadata that this process knows. It is safe for concurrent use. Invariants:
//
//  1. Note does no I/O and never waits for I/O.
//  2. Metadata that was noted but not stored yet is dirty; Refresh does not overwrite it.
//  3. A name is dirty until a Flush has stored its latest metadata.
//  4. One client, by names that it makes up, leaves half of the room to others: the names that it was
//     the first to report to this process are at most half of all.
type Catalog struct {
	store    storage.Items
	opts     Options
	warnings *limits.Throttle

	flushing sync.Mutex // held by a running Flush or Refresh

	mu    sync.RWMutex
	known map[string]metric.Metadata
	dirty map[string]struct{}
	// first counts the names that each client was the first to report. Those that were read from the
	// store, and those of addresses that stand for many clients, count for nobody.
	first map[limits.Client]int
}

// New makes an empty catalog. It does no I/O.
func New(store storage.Items, clk clock.Clock, opts Options) *Catalog {
	if opts.MaxNames == 0 {
		opts.MaxNames = 100_000
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	return &Catalog{
		store: store, opts: opts, warnings: limits.NewThrottle(clk, warnEvery),
		known: make(map[string]metric.Metadata), dirty: make(map[string]struct{}),
		first: make(map[limits.Client]int),
	}
}

// Note records metadata from a client; the latest wins. It keeps no string of m, and costs one map
// lookup if nothing has changed.
func (c *Catalog) Note(from limits.Client, m metric.Metadata) {
	c.mu.RLock()
	old, known := c.known[m.Name]
	room := known || c.room(from)
	c.mu.RUnlock()
	switch {
	case known && old == m:
	case !room:
		c.refuse(m.Name)
	default:
		if m, ok := bounded(m); ok && m != old {
			c.change(from, m)
		}
	}
}

// Add is Note for a client that may not replace what others have said.
func (c *Catalog) Add(from limits.Client, m metric.Metadata) {
	c.mu.RLock()
	_, known := c.known[m.Name]
	c.mu.RUnlock()
	if !known {
		c.Note(from, m)
	}
}

// room returns whether a client may bring one more name. The caller holds mu.
func (c *Catalog) room(from limits.Client) bool {
	return len(c.known) < c.opts.MaxNames && (from == limits.Client{} || c.first[from] < (c.opts.MaxNames+1)/2)
}

// bounded returns m as it is kept, with copies of the strings; false if m is dropped.
func bounded(m metric.Metadata) (metric.Metadata, bool) {
	if m.Name == "" || len(m.Name) > nameBytes || !utf8.ValidString(m.Name) {
		return m, false
	}
	return metric.Metadata{
		Name: strings.Clone(m.Name), Type: metric.ParseType(m.Type.String()),
		Help: text(m.Help, helpBytes), Unit: text(m.Unit, unitBytes),
	}, true
}

// text returns s as valid UTF-8, truncated to limit bytes.
func text(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit]
		for cut := 1; cut < utf8.UTFMax && !utf8.ValidString(s); cut++ {
			s = s[:limit-cut]
		}
	}
	return strings.Clone(strings.ToValidUTF8(s, "�"))
}

func (c *Catalog) change(from limits.Client, m metric.Metadata) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Another goroutine may have changed it meanwhile.
	old, known := c.known[m.Name]
	switch {
	case known && old == m, !known && !c.room(from):
		return
	case !known && from != limits.Client{}:
		c.first[from]++
	}
	c.known[m.Name] = m
	c.dirty[m.Name] = struct{}{}
}

func (c *Catalog) refuse(name string) {
	if skipped, ok := c.warnings.Pass(); ok {
		c.opts.Logger.Warn("metadata not kept: too many metrics, of all senders or of one", "metric", name, "max", c.opts.MaxNames, "more_since_last", skipped)
	}
}

// List returns the metadata of a metric, or of all metrics sorted by name if name is empty. A limit
// above 0 truncates the list.
func (c *Catalog) List(name string, limit int) []metric.Metadata {
	out := c.listed(name)
	// Not under the lock: who waits to note something keeps all others from looking.
	slices.SortFunc(out, func(a, b metric.Metadata) int { return strings.Compare(a.Name, b.Name) })
	if limit > 0 && len(out) > limit {
		out = out[:limit]
	}
	return out
}

func (c *Catalog) listed(name string) []metric.Metadata {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if name == "" {
		return slices.AppendSeq(make([]metric.Metadata, 0, len(c.known)), maps.Values(c.known))
	}
	if m, ok := c.known[name]; ok {
		return []metric.Metadata{m}
	}
	return nil
}

// Refresh reads what the store has: what other processes, or earlier ones, were told. Errors are the store's; what was
// read before is taken in.
func (c *Catalog) Refresh(ctx context.Context) error {
	// Exclude Flush, or an item read before the flush could overwrite what the flush has stored.
	c.flushing.Lock()
	defer c.flushing.Unlock()
	for e, err := range c.store.Items(ctx, Kind, "", "") {
		var m metric.Metadata
		if err == nil {
			m, err = parse(e)
		}
		if err != nil {
			return fmt.Errorf("read metadata: %w", err)
		}
		c.mu.Lock()
		_, ours := c.dirty[m.Name]
		_, known := c.known[m.Name]
		if !ours && (known || len(c.known) < c.opts.MaxNames) {
			c.known[m.Name] = m
		}
		c.mu.Unlock()
	}
	return nil
}

// stored is the value of an item, as JSON. Its id is the metric's name.
type stored struct {
	Type string `json:"type"`
	Help string `json:"help,omitempty"`
	Unit string `json:"unit,omitempty"`
}

// item returns how the metadata of a metric is stored.
func item(m metric.Metadata) (storage.Item, error) {
	value, err := json.Marshal(stored{m.Type.String(), m.Help, m.Unit})
	return storage.Item{ItemKey: storage.ItemKey{Kind: Kind, ID: m.Name}, Value: value}, err
}

func parse(e storage.Item) (metric.Metadata, error) {
	var s stored
	if err := json.Unmarshal(e.Value, &s); err != nil {
		return metric.Metadata{}, fmt.Errorf("metric %q: %w: %w", e.ID, storage.ErrCorrupt, err)
	}
	return metric.Metadata{Name: e.ID, Type: metric.ParseType(s.Type), Help: s.Help, Unit: s.Unit}, nil
}

// SyncEvery is how often to call Sync.
const SyncEvery = time.Minute

// Sync stores the changed metadata, and reads that of other processes.
func (c *Catalog) Sync(ctx context.Context) error {
	err := c.Flush(ctx)
	if c.opts.Shared {
		err = errors.Join(err, c.Refresh(ctx))
	}
	return err
}

// Flush stores the changed metadata. Errors are the store's; the next Flush then retries.
func (c *Catalog) Flush(ctx context.Context) error {
	c.flushing.Lock()
	defer c.flushing.Unlock()
	c.mu.Lock()
	changed := make([]metric.Metadata, 0, len(c.dirty))
	for name := range c.dirty {
		changed = append(changed, c.known[name])
	}
	c.mu.Unlock()
	if len(changed) == 0 {
		return nil
	}
	es := make([]storage.Item, len(changed))
	for i := range changed {
		var err error
		if es[i], err = item(changed[i]); err != nil {
			return err
		}
	}
	if err := c.store.PutItems(ctx, es); err != nil {
		return fmt.Errorf("store metadata of %d metrics: %w", len(changed), err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range changed {
		if c.known[m.Name] == m { // not changed again meanwhile
			delete(c.dirty, m.Name)
		}
	}
	return nil
}
