// Package metadata keeps what senders say of their metrics: type, help and unit of each name. It lies in memory, where
// requests look, and in the store, for the next process and the others.
package metadata

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/throttle"
)

const (
	// nameBytes bounds names, as ingest does by default; what has a longer one is not kept.
	nameBytes = 256
	// helpBytes and unitBytes are what is kept of a text.
	helpBytes = 1024
	unitBytes = 64

	// warnEvery is how often is logged that a name does not fit any more.
	warnEvery = time.Minute
)

// Options set up a Catalog; the zero value stands for the defaults.
type Options struct {
	// MaxNames is how many metrics are known; what is beyond is not kept. The default is 100000.
	MaxNames int
	// Logger takes what an operator should know. The default discards.
	Logger *slog.Logger
}

// Catalog is the metadata that this process knows. It is safe for concurrent use. What must hold:
//
//  1. Note does no I/O and waits for none.
//  2. What was noted and is not in the store yet is dirty; Refresh does not overwrite it.
//  3. A name is dirty until a Flush has stored what was noted last.
type Catalog struct {
	store    storage.Metadata
	opts     Options
	warnings *throttle.Throttle

	flushing sync.Mutex // held by the one Flush or Refresh

	mu    sync.RWMutex
	known map[string]metric.Metadata
	dirty map[string]struct{}
}

// New makes a catalog that knows nothing. It does no I/O.
func New(store storage.Metadata, clk clock.Clock, opts Options) *Catalog {
	if opts.MaxNames == 0 {
		opts.MaxNames = 100_000
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	return &Catalog{
		store: store, opts: opts, warnings: throttle.New(clk, warnEvery),
		known: make(map[string]metric.Metadata), dirty: make(map[string]struct{}),
	}
}

// Note takes what a sender says of a metric; the last one's word counts. It keeps no string of m, and costs a
// look at a map when nothing is new.
func (c *Catalog) Note(m metric.Metadata) {
	c.mu.RLock()
	old, known := c.known[m.Name]
	full := len(c.known) >= c.opts.MaxNames
	c.mu.RUnlock()
	switch {
	case known && old == m:
	case !known && full:
		c.refuse(m.Name)
	default:
		if m, ok := bounded(m); ok && m != old {
			c.change(m)
		}
	}
}

// bounded is m as it is kept, in strings of its own. It is false when it is not.
func bounded(m metric.Metadata) (metric.Metadata, bool) {
	if m.Name == "" || len(m.Name) > nameBytes || !utf8.ValidString(m.Name) {
		return m, false
	}
	return metric.Metadata{
		Name: strings.Clone(m.Name), Type: metric.ParseType(m.Type.String()),
		Help: text(m.Help, helpBytes), Unit: text(m.Unit, unitBytes),
	}, true
}

// text is valid UTF-8 of no more than that many bytes.
func text(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit]
		for cut := 1; cut < utf8.UTFMax && !utf8.ValidString(s); cut++ {
			s = s[:limit-cut]
		}
	}
	return strings.Clone(strings.ToValidUTF8(s, "�"))
}

func (c *Catalog) change(m metric.Metadata) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Others may have been here in the meantime.
	if old, known := c.known[m.Name]; old != m && (known || len(c.known) < c.opts.MaxNames) {
		c.known[m.Name] = m
		c.dirty[m.Name] = struct{}{}
	}
}

func (c *Catalog) refuse(name string) {
	if skipped, ok := c.warnings.Pass(); ok {
		c.opts.Logger.Warn("metadata not kept: there are too many metrics", "metric", name, "max", c.opts.MaxNames, "more_since_last", skipped)
	}
}

// List is the metadata of a metric, or of all by name when metric is empty. A limit above 0 cuts the list.
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
	// No flush in between, or what it has stored might be overwritten by what was read before it.
	c.flushing.Lock()
	defer c.flushing.Unlock()
	for m, err := range c.store.Metadata(ctx) {
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

// Flush stores what has changed. After an error, which is the store's, it is stored by the next.
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
	if err := c.store.PutMetadata(ctx, changed); err != nil {
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
