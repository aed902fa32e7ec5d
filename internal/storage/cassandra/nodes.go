package cassandra

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gocql/gocql"

	"github.com/quern/quern/internal/clock"
)

const (
	// speculateAfter is how long a request waits for its node before it is put to another one too: well above what a
	// healthy node takes, well below the time-out.
	speculateAfter = 200 * time.Millisecond
	// mostAsked is how many nodes one request is put to at once.
	mostAsked = 3
	// mostAgain is how many requests may be with a further node at once, so that a cluster that has become slow as a
	// whole is not asked for several times as much.
	mostAgain = 16
	// mostMissed is how many requests in a row a node may leave without an answer before it is asked last.
	mostMissed = 3
	// probeEvery is how often such a node is asked whether it answers again.
	probeEvery = time.Second
)

// connsPerNode is how many connections requests to one node share.
const connsPerNode = 2

const cqlProbe = `SELECT key FROM system.local`

// errBeaten ends an attempt when another node has answered the request.
var errBeaten = errors.New("another node has answered")

// nodes is the driver's choice of nodes. It holds:
//
//  1. A node that has left mostMissed requests in a row without an answer, while others answered or until the time-out,
//     is asked last: by no request that finds another node. It is never taken out, so that a request finds as many
//     nodes as without this.
//  2. Such a node is asked by probes, of which no other request depends on the answer. It takes part again when it
//     answers one as fast as is asked of all.
//  3. No two attempts of one request ask the same node.
type nodes struct {
	gocql.HostSelectionPolicy // those that have a copy come first
	// anyOf takes every node alike. Which have a copy it need not know, and that may take a request to find out.
	anyOf gocql.HostSelectionPolicy
	clk   clock.Clock
	log   *slog.Logger
	// probe asks a node for itself.
	probe func(ctx context.Context)
	// again holds a token for each further attempt that is under way.
	again chan struct{}

	// doubts counts how often a node was gone, or is there again: between two it may have been started anew.
	doubts atomic.Int64

	mu   sync.Mutex
	byID map[string]*node
	// made counts the connections to each address. One of the first is the driver's own, controlled says that it is counted.
	made       map[string]int
	controlled bool
}

type node struct {
	address string
	missed  int // requests in a row
	last    bool
	probed  time.Duration // by the clock's Elapsed
}

// newNodes wraps a policy that takes every node of a data centre alike.
func newNodes(anyOf gocql.HostSelectionPolicy, clk clock.Clock, log *slog.Logger) *nodes {
	return &nodes{
		HostSelectionPolicy: gocql.TokenAwareHostPolicy(anyOf, gocql.ShuffleReplicas()),
		anyOf:               anyOf, clk: clk, log: log, byID: make(map[string]*node), made: make(map[string]int), again: make(chan struct{}, mostAgain),
	}
}

// attempt is one of those that a request is made in, as its context says.
type attempt struct {
	asked *asked
	// again: another attempt came before.
	again bool
	// probes is the node that a probe is for, "" for other requests.
	probes string
}

type attemptKey struct{}

func attemptOf(ctx context.Context) attempt {
	a, _ := ctx.Value(attemptKey{}).(attempt)
	return a
}

// asked are the nodes that the attempts of one request have gone to.
type asked struct {
	mu sync.Mutex
	id map[string]bool
}

// first says whether a node is asked for the first time. Nil asks each.
func (a *asked) first(id string) bool {
	if a == nil {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.id[id] {
		return false
	}
	if a.id == nil {
		a.id = make(map[string]bool)
	}
	a.id[id] = true
	return true
}

// Pick implements gocql.HostSelectionPolicy.
func (n *nodes) Pick(q gocql.ExecutableQuery) gocql.NextHost {
	ctx := q.Context()
	a := attemptOf(ctx)
	policy := n.HostSelectionPolicy
	if a.again || a.probes != "" {
		policy = n.anyOf
	}
	n.probeSome(ctx)
	next := policy.Pick(q)
	var last []gocql.SelectedHost
	ended := false
	return func() gocql.SelectedHost {
		for !ended {
			h := next()
			if ended = h == nil; ended {
				break
			}
			if h.Info() == nil {
				continue
			}
			id := h.Info().HostID()
			switch {
			case a.probes != "":
				if id == a.probes {
					return h
				}
			case n.isLast(id):
				last = append(last, h)
			case a.asked.first(id):
				return h
			}
		}
		for len(last) > 0 {
			h := last[0]
			if last = last[1:]; a.asked.first(h.Info().HostID()) {
				return h
			}
		}
		return nil
	}
}

func (n *nodes) isLast(id string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	x := n.byID[id]
	return x != nil && x.last
}

// probeSome sends the probes that are due.
func (n *nodes) probeSome(ctx context.Context) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.clk.Elapsed()
	for id, x := range n.byID {
		if x.last && now-x.probed >= probeEvery {
			x.probed = now
			go n.probe(context.WithValue(context.WithoutCancel(ctx), attemptKey{}, attempt{probes: id}))
		}
	}
}

// observe takes in what has become of one attempt at one node.
func (n *nodes) observe(ctx context.Context, h *gocql.HostInfo, took time.Duration, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	x := n.byID[h.HostID()]
	if x == nil {
		return
	}
	var frame gocql.RequestError
	answered := err == nil || errors.As(err, &frame)
	switch {
	case attemptOf(ctx).probes != "":
		if x.last && answered && took < speculateAfter {
			x.last, x.missed = false, 0
			n.log.Info("a Cassandra node answers again", "node", x.address)
		}
	case answered:
		x.missed = 0
	case errors.Is(err, gocql.ErrTimeoutNoResponse),
		errors.Is(context.Cause(ctx), errBeaten) && took >= speculateAfter: // it had a head start
		if x.missed++; x.missed >= mostMissed && !x.last {
			x.last, x.probed = true, n.clk.Elapsed()
			n.log.Warn("a Cassandra node does not answer, or much later than others, and is asked last until it does", "node", x.address)
		}
	}
}

// ObserveQuery implements gocql.QueryObserver.
func (n *nodes) ObserveQuery(ctx context.Context, o gocql.ObservedQuery) {
	n.observe(ctx, o.Host, o.End.Sub(o.Start), o.Err)
}

// ObserveBatch implements gocql.BatchObserver.
func (n *nodes) ObserveBatch(ctx context.Context, o gocql.ObservedBatch) {
	n.observe(ctx, o.Host, o.End.Sub(o.Start), o.Err)
}

// AddHost implements gocql.HostStateNotifier.
func (n *nodes) AddHost(h *gocql.HostInfo) {
	n.HostSelectionPolicy.AddHost(h)
	if !n.IsLocal(h) {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.byID[h.HostID()] == nil {
		n.byID[h.HostID()] = &node{address: h.ConnectAddressAndPort()}
	}
}

// RemoveHost implements gocql.HostStateNotifier.
func (n *nodes) RemoveHost(h *gocql.HostInfo) {
	n.HostSelectionPolicy.RemoveHost(h)
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.byID, h.HostID())
}

// HostUp implements gocql.HostStateNotifier.
func (n *nodes) HostUp(h *gocql.HostInfo) { n.AddHost(h) }

// HostDown implements gocql.HostStateNotifier.
func (n *nodes) HostDown(h *gocql.HostInfo) {
	n.doubts.Add(1)
	n.HostSelectionPolicy.HostDown(h)
}

// ObserveConnect implements gocql.ConnectObserver. No request reaches a node that was started anew but by a connection that
// comes after the first ones: those of its pool, and one that hears of the cluster's changes.
func (n *nodes) ObserveConnect(o gocql.ObservedConnect) {
	if o.Err != nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	address := o.Host.ConnectAddressAndPort()
	n.made[address]++
	switch {
	case n.made[address] <= connsPerNode:
	case !n.controlled:
		n.controlled = true
	default:
		n.doubts.Add(1)
	}
}

// askedLast says of each node whether it is asked last.
func (n *nodes) askedLast() map[string]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make(map[string]bool, len(n.byID))
	for x := range maps.Values(n.byID) {
		out[x.address] = x.last
	}
	return out
}

// several says whether there is another node to ask.
func (n *nodes) several() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.byID) > 1
}

// speculate makes a request of one node, and where that takes long of others too. The first answer counts, and an
// error only when nobody is left who may answer. So ask must be such that it may be done more than once, and what it
// reads must stay as it is after it has returned: an attempt that was beaten may still be about to end.
//
// gocql's own speculation returns what comes first even if that is an error, and looks for the copies of a row before
// the first attempt in a way that can wait for one node.
func speculate[T any](ctx context.Context, n *nodes, ask func(context.Context) (T, error)) (T, error) {
	if n == nil || !n.several() {
		return ask(ctx)
	}
	type answer struct {
		value T
		err   error
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(errBeaten)
	answers := make(chan answer, mostAsked)
	var (
		asked  asked
		errs   []error
		begun  int
		zero   T
		attend = func(again bool) {
			in := context.WithValue(ctx, attemptKey{}, attempt{asked: &asked, again: again})
			begun++
			go func() {
				value, err := ask(in)
				if again {
					<-n.again
				}
				answers <- answer{value, err}
			}()
		}
	)
	attend(false)
	for {
		var late <-chan time.Time
		if begun < mostAsked {
			late = n.clk.After(speculateAfter)
		}
		select {
		case a := <-answers:
			if a.err == nil {
				return a.value, nil
			}
			errs = append(errs, a.err)
			if len(errs) == begun {
				return zero, telling(errs)
			}
		case <-late:
			select {
			case n.again <- struct{}{}:
				attend(true)
			default:
			}
		case <-ctx.Done():
			return zero, ctx.Err()
		}
	}
}

// telling is the error that says most: that an attempt found no other node to ask says least.
func telling(errs []error) error {
	i := slices.IndexFunc(errs, func(err error) bool { return !errors.Is(err, gocql.ErrNoConnections) })
	return errs[max(i, 0)]
}
