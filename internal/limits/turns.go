package limits

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

var (
	// ErrQueueFull means that the queue for turns is full: one more request would wait in vain.
	ErrQueueFull = errors.New("too many requests are queued, try again")
	// ErrWaited means that no turn came in time.
	ErrWaited = errors.New("too many requests are in progress, and none ended in time: try again")
)

// waitingPerTurn is the number of requests that may wait, for each turn.
const waitingPerTurn = 50

// Turns bounds how many requests do something heavy at once. Others wait, first come, first served.
// A client that holds its share of the turns waits until one of them ends; the requests behind it
// go ahead. Turns is safe for concurrent use. A nil Turns bounds nothing.
type Turns struct {
	clients *Clients
	wait    time.Duration

	mu      sync.Mutex
	taken   holdings
	queued  holdings
	waiting []*waiter

	inUse, inQueue prometheus.Gauge
}

// waiter is a waiting request. ready is closed when its turn comes.
type waiter struct {
	client Client
	ready  chan struct{}
}

// TurnOptions configure Turns.
type TurnOptions struct {
	// N is the number of turns. Required.
	N int
	// Name says at what work, as a label of the metrics.
	Name string
	// Wait is the longest time that a request waits. The default, 0, is as long as the request lives.
	Wait time.Duration
	// Clients tells clients apart. Required.
	Clients *Clients
	// Metrics registers the metrics; nil for none.
	Metrics prometheus.Registerer
}

// NewTurns returns turns, and exports their use as metrics.
func NewTurns(o TurnOptions) *Turns {
	most, queue := int64(o.N), int64(o.N)*waitingPerTurn
	f, labels := promauto.With(o.Metrics), prometheus.Labels{"kind": o.Name}
	t := &Turns{
		clients: o.Clients, wait: o.Wait,
		taken: newHoldings(most, half(most)), queued: newHoldings(queue, half(queue)),
		inUse: f.NewGauge(prometheus.GaugeOpts{
			Name: "quern_turns", ConstLabels: labels,
			Help: "Requests in progress, by what they read.",
		}),
		inQueue: f.NewGauge(prometheus.GaugeOpts{
			Name: "quern_turns_waiting", ConstLabels: labels,
			Help: "Requests in the queue, by what they read.",
		}),
	}
	t.taken.own = func(l Limits) int64 { return int64(l.Turns) }
	f.NewGauge(prometheus.GaugeOpts{
		Name: "quern_turns_limit", ConstLabels: labels,
		Help: "Maximum number of requests in progress, by what they read.",
	}).Set(float64(o.N))
	return t
}

// Take waits for a turn of the client that connects from address; see Clients.For. give ends the turn,
// and may be called more than once. The error is ErrQueueFull, ErrWaited, or the cause of ctx's
// end.
func (t *Turns) Take(ctx context.Context, address string) (give func(), err error) {
	if t == nil {
		return func() {}, nil
	}
	if t.wait > 0 {
		limited, cancel := context.WithTimeoutCause(ctx, t.wait, ErrWaited)
		defer cancel()
		ctx = limited
	}
	c := t.clients.For(ctx, address)
	t.mu.Lock()
	if t.taken.take(c, 1) {
		t.show()
		t.mu.Unlock()
		return t.give(c), nil
	}
	if !t.queued.take(c, 1) {
		t.mu.Unlock()
		return nil, ErrQueueFull
	}
	w := &waiter{client: c, ready: make(chan struct{})}
	t.waiting = append(t.waiting, w)
	t.show()
	t.mu.Unlock()

	select {
	case <-w.ready:
		return t.give(c), nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	i := slices.Index(t.waiting, w)
	if i >= 0 {
		t.leave(i)
		t.show()
	}
	t.mu.Unlock()
	if i < 0 { // its turn came at the same moment
		t.give(c)()
	}
	return nil, context.Cause(ctx)
}

func (t *Turns) give(c Client) func() {
	return sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.taken.give(c, 1)
		for i := 0; i < len(t.waiting); {
			if w := t.waiting[i]; t.taken.take(w.client, 1) {
				t.leave(i)
				close(w.ready)
			} else {
				i++
			}
		}
		t.show()
	})
}

// leave removes waiter i from the queue.
func (t *Turns) leave(i int) {
	t.queued.give(t.waiting[i].client, 1)
	t.waiting = slices.Delete(t.waiting, i, i+1)
}

func (t *Turns) show() {
	t.inUse.Set(float64(t.taken.all))
	t.inQueue.Set(float64(len(t.waiting)))
}
