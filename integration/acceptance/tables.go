package acceptance

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"github.com/quern/quern/internal/storage"
)

var errInjected = errors.New("injected")

// tables is the store behind the faults that a process meets. It keeps the records of runs, and can
// lose its cache.
type tables struct {
	storage.Store

	mu   sync.Mutex
	runs []storage.Run
	// noCache drops what is written to the cache, which is only a fast path.
	noCache bool
	// astray says that the clock is wrong. It stands in for a cluster's servers, whose clocks no
	// test can set. The tests of each store test that it compares the clocks.
	astray func() bool
}

// CheckFit implements storage.Store.
func (s *tables) CheckFit(ctx context.Context) error {
	if s.astray() {
		return storage.ErrSettings
	}
	return s.Store.CheckFit(ctx)
}

// takeRuns returns the runs recorded since the last call.
func (s *tables) takeRuns() []storage.Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	runs := s.runs
	s.runs = nil
	return runs
}

// Write implements storage.Store.
func (s *tables) Write(ctx context.Context, b *storage.Batch) error {
	s.mu.Lock()
	noCache := s.noCache
	s.mu.Unlock()
	if noCache {
		cut := *b
		cut.Cache = nil
		b = &cut
	}
	return s.Store.Write(ctx, b)
}

// PutItems implements storage.Items.
func (s *tables) PutItems(ctx context.Context, es []storage.Item) error {
	for _, e := range es {
		if e.Kind != storage.KindRun {
			continue
		}
		var r storage.Run
		if err := json.Unmarshal(e.Value, &r); err != nil {
			return err
		}
		s.mu.Lock()
		s.runs = append(s.runs, r)
		s.mu.Unlock()
	}
	return s.Store.PutItems(ctx, es)
}
