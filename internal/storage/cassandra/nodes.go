package cassandra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/gocql/gocql"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
)

const (
	// speculateAfter is how long a request waits for its node before it is also sent to another
	// one. It is well above what a healthy node takes, and well below the time-out.
	speculateAfter = 200 * time.Millisecond
	// mostAsked is how many nodes one request is sent to at once.
	mostAsked = 3
	// mostAgain is how many further attempts may be under way at once, of all requests, so that a
	// cluster that is slow as a whole does not get several times the load.
	mostAgain = 16
	// mostMissed is how many requests in a row a node may leave unanswered before it is asked last.
	mostMissed = 3
	// tryEvery is how often a request tries a node that is asked last.
	tryEvery = time.Second
)

// connsPerNode is how many connections requests to one node share.
const connsPerNode = 2

// errBeaten ends an attempt when another node has answered the request.
var errBeaten = errors.New("another node has answered")

// nodes chooses the nodes for the driver's requests. It holds:
//
//  1. A node that leaves mostMissed requests in a row unanswered is asked last: only a request that
//     finds no other node goes to it. A request is unanswered if another node answered it, or if it
//     timed out. The node is never removed, so a request finds as many nodes as it would without
//     this rule.
//  2. One request every tryEvery tries such a node in its turn, if it will also be sent to another one.
//     The node takes part again when it answers any request within speculateAfter.
//  3. No two attempts of one request ask the same node.
type nodes struct {
	gocql.HostSelectionPolicy // nodes with a copy come first
	// anyOf treats all nodes alike. It need not know which have a copy; to find that out may take a
	// request.
	anyOf gocql.HostSelectionPolicy
	clk   clock.Clock
	log   *slog.Logger
	// again holds a token for each further attempt under way.
	again chan struct{}

	mu   sync.Mutex
	byID map[string]*node
}

type node struct {
	address string
	missed  int // requests in a row
	last    bool
	tried   time.Duration // by the clock's Elapsed
}

// newNodes wraps a policy that takes every node of a data centre alike.
func newNodes(anyOf gocql.HostSelectionPolicy, clk clock.Clock, log *slog.Logger) *nodes {
	return &nodes{
		HostSelectionPolicy: gocql.TokenAwareHostPolicy(anyOf, gocql.ShuffleReplicas()),
		anyOf:               anyOf, clk: clk, log: log, byID: make(map[string]*node), again: make(chan struct{}, mostAgain),
	}
}

// attempt describes one attempt at a request. It travels in the request's context.
type attempt struct {
	asked *asked
	// again says that another attempt came before.
	again bool
	// only is the id of the one node that the request is for, "" for any.
	only string
}

type attemptKey struct{}

func attemptOf(ctx context.Context) attempt {
	a, _ := ctx.Value(attemptKey{}).(attempt)
	return a
}

// asked is the set of nodes that the attempts of one request went to.
type asked struct {
	mu sync.Mutex
	id map[string]bool
}

// first adds a node and says whether it was missing. A nil set says true of every node.
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
	if a.again || a.only != "" {
		policy = n.anyOf
	}
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
			case a.only != "":
				if id == a.only {
					return h
				}
			case n.isLast(id, a):
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

// isLast says whether an attempt asks a node last.
func (n *nodes) isLast(id string, a attempt) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	x := n.byID[id]
	if x == nil || !x.last {
		return false
	}
	if now := n.clk.Elapsed(); a.asked != nil && !a.again && now-x.tried >= tryEvery {
		x.tried = now
		return false
	}
	return true
}

// observe records the outcome of one attempt at one node.
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
	case answered && x.last && took >= speculateAfter:
	case answered:
		x.missed = 0
		if x.last {
			x.last = false
			n.log.Info("a Cassandra node answers again", "node", x.address)
		}
	case errors.Is(err, gocql.ErrTimeoutNoResponse),
		errors.Is(context.Cause(ctx), errBeaten) && took >= speculateAfter: // it had a head start
		if x.missed++; x.missed >= mostMissed && !x.last {
			x.last, x.tried = true, n.clk.Elapsed()
			n.log.Warn("a Cassandra node is slow or does not answer; it is asked last until it recovers", "node", x.address)
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

// askedLast says for each node, by address, whether it is asked last.
func (n *nodes) askedLast() map[string]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make(map[string]bool, len(n.byID))
	for x := range maps.Values(n.byID) {
		out[x.address] = x.last
	}
	return out
}

// some returns up to most nodes that are not asked last, any if there are more, as addresses by id.
// If all are asked last, it returns some of them.
func (n *nodes) some(most int) map[string]string {
	n.mu.Lock()
	defer n.mu.Unlock()
	ids := slices.Collect(maps.Keys(n.byID))
	rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	if answer := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return n.byID[id].last }); len(answer) > 0 {
		ids = answer
	}
	out := make(map[string]string)
	for _, id := range ids[:min(most, len(ids))] {
		out[id] = n.byID[id].address
	}
	return out
}

// several says whether there is another node to ask.
func (n *nodes) several() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.byID) > 1
}

// speculate sends a request to one node, and to further nodes while no answer comes. The first
// answer counts. An error counts only when no attempt is left that may answer. So it must be safe
// to call ask more than once, and what ask reads must not change after speculate has returned: a
// beaten attempt may still be ending.
//
// gocql's own speculation returns the first result even if that is an error. It also looks up the
// copies of a row before the first attempt, in a way that can wait for one node.
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

// answer is what one node says of itself.
type answer[T any] struct {
	node            string // its address
	asked, answered time.Time
	value           T
	err             error
}

// askEach asks up to most nodes at once, each for a value of its own. It returns the number of
// nodes, of which each sends one answer.
func askEach[T any](ctx context.Context, d *driver, most int, cql string) (answers <-chan answer[T], asked int, err error) {
	nodes := d.nodes.some(most)
	if len(nodes) == 0 {
		return nil, 0, fmt.Errorf("%w: no Cassandra node is known", storage.ErrUnavailable)
	}
	out := make(chan answer[T], len(nodes))
	for id, address := range nodes {
		go func() {
			a := answer[T]{node: address, asked: d.nodes.clk.Now()}
			q := d.ContextQuery(context.WithValue(ctx, attemptKey{}, attempt{only: id}), cql, nil)
			a.err = q.Query.Idempotent(true).Scan(&a.value)
			a.answered = d.nodes.clk.Now()
			out <- a
		}()
	}
	return out, len(nodes), nil
}

// telling returns the error that says most. An error that found no other node to ask says least.
func telling(errs []error) error {
	i := slices.IndexFunc(errs, func(err error) bool { return !errors.Is(err, gocql.ErrNoConnections) })
	return errs[max(i, 0)]
}
