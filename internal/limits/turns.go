package limits

import (
	"context"
	"errors"
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
	clients        *Clients
	wait           time.Duration
	turns, queue   *Budget
	inUse, inQueue prometheus.Gauge
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
	gauge := func(name, help string) prometheus.Gauge {
		return promauto.With(o.Metrics).NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: prometheus.Labels{"kind": o.Name}})
	}
	t := &Turns{
		clients: o.Clients, wait: o.Wait,
		turns: NewBudget(int64(o.N), 1), queue: NewBudget(int64(o.N)*waitingPerTurn, 1),
		inUse:   gauge("quern_turns", "Requests in progress, by what they read."),
		inQueue: gauge("quern_turns_waiting", "Requests in the queue, by what they read."),
	}
	share := t.turns.share
	t.turns.share = func(c Client) int64 {
		if most := int64(c.turns); most > 0 {
			return min(most, share(c))
		}
		return share(c)
	}
	gauge("quern_turns_limit", "Maximum number of requests in progress, by what they read.").Set(float64(o.N))
	return t
}

// Take waits for a turn of the client that connects from address; see Clients.For. give ends the turn,
// and may be called more than once. The error is ErrQueueFull, ErrWaited, or the cause of ctx's
// end.
func (t *Turns) Take(ctx context.Context, address string) (give func(), err error) {
	if t == nil {
		return func() {}, nil
	}
	c := t.clients.For(ctx, address)
	if !t.turns.try(c, 1) {
		if err := t.line(ctx, c); err != nil {
			return nil, err
		}
	}
	t.inUse.Inc()
	return sync.OnceFunc(func() {
		t.inUse.Dec()
		t.turns.give(c, 1)
	}), nil
}

// line waits in the queue for a turn.
func (t *Turns) line(ctx context.Context, c Client) error {
	if t.wait > 0 {
		limited, cancel := context.WithTimeoutCause(ctx, t.wait, ErrWaited)
		defer cancel()
		ctx = limited
	}
	if !t.queue.try(c, 1) {
		return ErrQueueFull
	}
	defer t.queue.give(c, 1)
	t.inQueue.Inc()
	defer t.inQueue.Dec()
	if t.turns.wait(ctx, c, 1) != nil {
		return context.Cause(ctx)
	}
	return nil
}
