package promquery

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"runtime/metrics"
	"sync"
	"time"
)

// watch ends queries when the process runs out of memory. Neither the engine nor the loader counts all that a query takes:
// labels, room for points, regular expressions, annotations. A nil watch watches nothing.
//
//  1. While queries are evaluated, it looks at the heap. If that passes nine tenths of the limit, garbage is collected. If it
//     does still, the query that runs longest ends, and at the next look the one after it. The last tenth is for stacks,
//     fragments, and what is allocated until the query has ended.
//  2. That is the query that most likely holds most: others ended meanwhile. Whatever begins later, it is reached.
//  3. A query ends where it looks at its context. It takes more until then.
type watch struct {
	limit, most uint64

	mu      sync.Mutex
	running []*watched // those that began first come first
	stop    chan struct{}
}

// watched is a query that is evaluated.
type watched struct {
	cancel context.CancelCauseFunc
	ended  bool
}

// everyLook is the time between two looks, in which some 20 MB may be allocated.
const everyLook = 5 * time.Millisecond

// memoryError says that a query was ended for want of memory.
type memoryError struct{ limit uint64 }

func (e *memoryError) Error() string {
	return fmt.Sprintf("the process has reached the %d MB of memory that it may use (GOMEMLIMIT), and this query ran longest: "+
		"narrow the selectors, aggregate, use a larger step, ask for less at the same time, or give the process more memory", e.limit>>20)
}

// newWatch returns a watch for a limit of the heap in bytes. 0 and the largest number are no limit.
func newWatch(limit int64) *watch {
	if limit <= 0 || limit == math.MaxInt64 {
		return nil
	}
	return &watch{limit: uint64(limit), most: uint64(limit) / 10 * 9}
}

// begin returns the context of a query, which is watched until end is called.
func (w *watch) begin(ctx context.Context) (_ context.Context, end func()) {
	if w == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	q := &watched{cancel: cancel}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running = append(w.running, q)
	if w.stop == nil {
		w.stop = make(chan struct{})
		go w.look(w.stop)
	}
	return ctx, func() {
		cancel(nil)
		w.mu.Lock()
		defer w.mu.Unlock()
		for i := range w.running {
			if w.running[i] == q {
				w.running = append(w.running[:i:i], w.running[i+1:]...)
				break
			}
		}
		if len(w.running) == 0 {
			close(w.stop)
			w.stop = nil
		}
	}
}

// look looks at the heap until stop is closed.
func (w *watch) look(stop chan struct{}) {
	next := time.NewTicker(everyLook) //nolint:forbidigo // the heap grows in the machine's time, also where a clock is simulated
	defer next.Stop()
	for {
		select {
		case <-stop:
			return
		case <-next.C:
		}
		if heap() <= w.most {
			continue
		}
		runtime.GC()
		if heap() > w.most {
			w.endOne()
		}
	}
}

// endOne ends the query that runs longest, of those that have not been told.
func (w *watch) endOne() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range w.running {
		if !q.ended {
			q.ended = true
			q.cancel(&memoryError{w.limit})
			return
		}
	}
}

// heap returns the bytes of all objects, those included that are garbage and have not been collected.
func heap() uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
