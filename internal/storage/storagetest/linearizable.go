package storagetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

const (
	// Each round is a history of its own, of some clients at once.
	rounds        = 6
	clients       = 5
	callsOfClient = 24

	shardsPerRound = 3
	seriesPerRound = 4
	// Each call without an answer may double the number of orders to try.
	doubtsPerRound = 5
	// No lease ends by itself.
	leaseTTL = time.Hour
	// nobody is the id of a series that has none.
	nobody = -1
)

// LinearizableSettings has a few shards for each round.
func LinearizableSettings() storage.Settings {
	s := TestSettings()
	s.IndexPartitions = 64
	return s
}

// Linearizable has concurrent clients do what processes decide between them: leases of shards, ids, claims of series, versions
// of a document. It records when each call began and returned, and with what answer. Then it asks whether some order of the
// calls, one after the other, explains what every client saw. A call without an answer may have taken effect at any time after
// it began, or never.
//
// open returns several sessions on one new place with LinearizableSettings, as several processes have them, or one store if one
// process has it alone.
func Linearizable(t *testing.T, open func(t *testing.T) []storage.Store) {
	t.Helper()
	for seed := range uint64(3) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			stores := open(t)
			var newest, next int64 // what is past happened before anything that follows
			for round := range rounds {
				h := &recorder{round: round, calls: map[string][]porcupine.Operation{}}
				var wg sync.WaitGroup
				for i := range clients {
					c := &client{
						recorder: h, store: stores[i%len(stores)], n: i, owner: fmt.Sprintf("round %d client %d", round, i),
						rng: rand.New(rand.NewPCG(seed, uint64(round*clients+i))),
					}
					wg.Go(func() {
						for range callsOfClient {
							if h.failed(c.call(t.Context())) {
								return
							}
						}
					})
				}
				wg.Wait()
				require.NoError(t, h.err)
				for what, model := range map[string]porcupine.Model{
					"leases": leaseModel(newest), "ids": idModel(next), "claims": claimModel(), "documents": documentModel(),
				} {
					require.True(t, porcupine.CheckOperations(model, h.calls[what]), "round %d: %s are not linearizable:\n%s", round, what, describe(h.calls[what]))
				}
				newest, next = h.greatest("leases", newest), h.greatest("ids", next)
			}
		})
	}
}

// call is what a client asks for. n is a fence, a number of ids, an id or a version.
type call struct {
	op  string
	key int // the shard or the series
	who string
	n   int64
}

// answer is what a client knows of a call. n is a fence, the end of a range of ids, an id or the newest version.
type answer struct {
	known, conflict bool
	who             string
	n               int64
}

// recorder records calls and answers. Its clock only counts: if a call returned before another
// began, it has the lower number.
type recorder struct {
	round int
	ticks atomic.Int64

	mu     sync.Mutex
	calls  map[string][]porcupine.Operation
	doubts int
	err    error
}

func (h *recorder) failed(err error) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil {
		h.err = err
	}
	return h.err != nil
}

// doubt says whether one more call may stay without an answer.
func (h *recorder) doubt() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.doubts++
	return h.doubts <= doubtsPerRound
}

func (h *recorder) note(what string, client int, began int64, in call, out answer) {
	ended := int64(math.MaxInt64)
	if out.known {
		ended = h.ticks.Add(1)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls[what] = append(h.calls[what], porcupine.Operation{ClientId: client, Input: in, Call: began, Output: out, Return: ended})
}

// greatest returns the greatest number of the answers, at least n.
func (h *recorder) greatest(what string, n int64) int64 {
	for _, op := range h.calls[what] {
		n = max(n, op.Output.(answer).n)
	}
	return n
}

// client is one of the concurrent callers. It stands for a process with its own name.
type client struct {
	*recorder
	store storage.Store
	n     int
	owner string
	rng   *rand.Rand

	held     []storage.Lease // all leases that it got, including lost ones
	free     int64           // the next of its ids,
	freeEnds int64           // and their end
	seen     int64           // the newest version of the round's document that it knows of
	puts     int
}

// ask makes a call, which may concern several objects, and records it. Some calls that write get no answer: they fail before they
// begin or after they are done, or they are cancelled at some point.
func (c *client) ask(ctx context.Context, what string, ins []call, do func(context.Context, []answer) error) ([]answer, error) {
	lost := 0
	if ins[0].op != "read" && c.rng.IntN(8) == 0 && c.doubt() {
		lost = 1 + c.rng.IntN(3)
	}
	began := c.ticks.Add(1)
	outs, err := make([]answer, len(ins)), storage.ErrUnavailable
	switch lost {
	case 1:
	case 2:
		hurried, cancel := context.WithTimeout(ctx, time.Duration(c.rng.IntN(3000))*time.Microsecond)
		err = do(hurried, outs)
		cancel()
	default:
		err = do(ctx, outs)
	}
	conflict := &storage.ConflictError{}
	answered := answer{known: true}
	switch {
	case errors.As(err, &conflict), errors.Is(err, storage.ErrConflict):
		outs[0] = answer{conflict: true, n: conflict.Newest}
	case ins[0].op != "read" && (storage.IsAway(err) || lost == 2 && err != nil), lost == 3 && err == nil:
		clear(outs)
		answered.known = false
	case err != nil:
		return nil, err
	}
	for i := range outs {
		outs[i].known = answered.known
		c.note(what, c.n, began, ins[i], outs[i])
	}
	return outs, nil
}

func (c *client) call(ctx context.Context) error {
	switch n := c.rng.IntN(26); {
	case n < 6:
		return c.acquire(ctx)
	case n < 8 && len(c.held) > 0:
		l := c.held[c.rng.IntN(len(c.held))]
		_, err := c.ask(ctx, "leases", []call{{"renew", l.Shard, l.Owner, int64(l.Fence)}}, func(ctx context.Context, _ []answer) error {
			return c.store.RenewShard(ctx, l, leaseTTL)
		})
		return err
	case n < 12:
		shard := c.shard()
		_, err := c.ask(ctx, "leases", []call{{op: "release", key: shard, who: c.owner}}, func(ctx context.Context, _ []answer) error {
			return c.store.ReleaseShard(ctx, shard, c.owner)
		})
		return err
	case n < 14:
		return c.leaseIDs(ctx)
	case n < 15:
		_, err := c.ask(ctx, "ids", []call{{op: "read"}}, func(ctx context.Context, outs []answer) error {
			r, err := c.store.LeasedIDs(ctx)
			outs[0].n = int64(r.End)
			return err
		})
		return err
	case n < 18:
		return c.claim(ctx)
	case n < 20:
		return c.readSeries(ctx)
	case n < 23:
		return c.putDocument(ctx)
	}
	return c.readDocument(ctx)
}

func (c *client) shard() int { return c.round*shardsPerRound + c.rng.IntN(shardsPerRound) }

func (c *client) acquire(ctx context.Context) error {
	shard := c.shard()
	var l storage.Lease
	outs, err := c.ask(ctx, "leases", []call{{op: "acquire", key: shard, who: c.owner}}, func(ctx context.Context, outs []answer) (err error) {
		l, err = c.store.AcquireShard(ctx, shard, c.owner, leaseTTL)
		outs[0].n = int64(l.Fence)
		return err
	})
	if err != nil || !outs[0].known || outs[0].conflict {
		return err
	}
	c.held = append(c.held, l)
	if l.Shard != shard || l.Owner != c.owner || l.Fence <= 0 {
		return fmt.Errorf("%s asked for shard %d and got %+v", c.owner, shard, l)
	}
	return nil
}

func (c *client) leaseIDs(ctx context.Context) error {
	n := 1 + c.rng.IntN(5)
	outs, err := c.ask(ctx, "ids", []call{{op: "lease", n: int64(n)}}, func(ctx context.Context, outs []answer) error {
		r, err := c.store.LeaseIDs(ctx, n)
		outs[0].n = int64(r.End)
		if err == nil && r.Len() != n {
			err = fmt.Errorf("leased %d ids and got %v", n, r)
		}
		return err
	})
	if err == nil && outs[0].known {
		c.free, c.freeEnds = outs[0].n-int64(n), outs[0].n
	}
	return err
}

func (c *client) source() string { return fmt.Sprintf("source %d", c.round) }

// claim claims some of the round's series, each under its own id. The series of one call need not
// be claimed at one moment, so each is recorded by itself.
func (c *client) claim(ctx context.Context) error {
	var ins []call
	var want []storage.Schedule
	for n := range seriesPerRound {
		if c.rng.IntN(2) == 0 && c.free < c.freeEnds {
			ins = append(ins, call{op: "claim", key: n, n: c.free})
			want = append(want, storage.Schedule{ID: metric.ScheduleID(c.free), Labels: series(c.source(), fmt.Sprint("series_", n))})
			c.free++
		}
	}
	if len(want) == 0 {
		return nil
	}
	_, err := c.ask(ctx, "claims", ins, func(ctx context.Context, outs []answer) error {
		ids, err := c.store.ClaimSchedules(ctx, ClaimsOf(c.source(), want))
		if err == nil && len(ids) != len(want) {
			return fmt.Errorf("claimed %d series and got %d ids", len(want), len(ids))
		}
		for i, id := range ids {
			outs[i].n = int64(id)
		}
		return err
	})
	return err
}

func (c *client) readSeries(ctx context.Context) error {
	var ins []call
	for n := range seriesPerRound {
		ins = append(ins, call{op: "read", key: n})
	}
	_, err := c.ask(ctx, "claims", ins, func(ctx context.Context, outs []answer) error {
		for n := range outs {
			outs[n].n = nobody
		}
		for s, err := range c.store.SourceSchedules(ctx, c.source()) {
			if err != nil {
				return err
			}
			for n := range outs {
				if s.Labels.String() == series(c.source(), fmt.Sprint("series_", n)).String() {
					outs[n].n = int64(s.ID)
				}
			}
		}
		return nil
	})
	return err
}

func (c *client) document() storage.DocumentKey {
	return storage.DocumentKey{Kind: "linear", ID: fmt.Sprintf("round-%d", c.round)}
}

// putDocument puts the version after the newest one that the client has seen. Each put has a title of its own.
func (c *client) putDocument(ctx context.Context) error {
	c.puts++
	in := call{op: "put", n: c.seen + 1, who: fmt.Sprintf("put %d of client %d", c.puts, c.n)}
	d := storage.Document{DocumentHead: storage.DocumentHead{DocumentKey: c.document(), Version: in.n, Title: in.who}, Body: []byte(in.who)}
	outs, err := c.ask(ctx, "documents", []call{in}, func(ctx context.Context, outs []answer) error {
		outs[0].n = in.n
		return c.store.PutDocument(ctx, d)
	})
	if err == nil && outs[0].known {
		c.seen = outs[0].n
	}
	return err
}

func (c *client) readDocument(ctx context.Context) error {
	outs, err := c.ask(ctx, "documents", []call{{op: "read"}}, func(ctx context.Context, outs []answer) error {
		d, err := c.store.Document(ctx, c.document())
		if errors.Is(err, storage.ErrNoDocument) {
			return nil
		}
		if err == nil && d.Title != string(d.Body) {
			err = fmt.Errorf("version %d has the title %q and the body %q", d.Version, d.Title, d.Body)
		}
		outs[0].n, outs[0].who = d.Version, d.Title
		return err
	})
	if err == nil {
		c.seen = outs[0].n
	}
	return err
}

// modelOf returns a model whose step says whether an answer may follow on a state, and what the next state is.
func modelOf[S any](first S, step func(s S, in call, out answer) (bool, S)) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return first },
		Step: func(state, input, output any) (bool, any) {
			ok, next := step(state.(S), input.(call), output.(answer))
			return ok, next
		},
	}
}

// leaseState is all leases of a round: who holds each shard, and with which fence.
type leaseState struct {
	newest int64
	shards [shardsPerRound]struct {
		owner string
		fence int64 // 0 if its holder got no answer
	}
}

// leaseModel is a lock for each shard. Fences ascend over all shards.
func leaseModel(newest int64) porcupine.Model {
	return modelOf(leaseState{newest: newest}, func(s leaseState, in call, out answer) (bool, leaseState) {
		shard := &s.shards[in.key%shardsPerRound]
		switch in.op {
		case "acquire":
			switch {
			case shard.owner != "" && shard.owner != in.who:
				return !out.known || out.conflict, s
			case out.conflict || out.known && out.n <= s.newest:
				return false, s
			}
			// A fence without an answer is at least one higher.
			s.newest = max(s.newest+1, out.n)
			shard.owner, shard.fence = in.who, out.n
		case "renew":
			return !out.known || out.conflict != (shard.owner == in.who && shard.fence == in.n), s
		case "release":
			if out.conflict {
				return false, s
			}
			if shard.owner == in.who {
				shard.owner, shard.fence = "", 0
			}
		}
		return true, s
	})
}

// idModel is a counter. It may skip ids whose lease was in doubt.
func idModel(next int64) porcupine.Model {
	return modelOf(next, func(next int64, in call, out answer) (bool, int64) {
		return !out.known || out.n-in.n >= next, max(next, out.n)
	})
}

// claimModel is a register for each series, which is set once.
func claimModel() porcupine.Model {
	m := modelOf(nobody, func(id int64, in call, out answer) (bool, int64) {
		if in.op == "claim" && id == nobody {
			id = in.n
		}
		return !out.known || out.n == id, id
	})
	m.Partition = func(history []porcupine.Operation) [][]porcupine.Operation {
		parts := make([][]porcupine.Operation, seriesPerRound)
		for _, op := range history {
			n := op.Input.(call).key
			parts[n] = append(parts[n], op)
		}
		return slices.DeleteFunc(parts, func(ops []porcupine.Operation) bool { return len(ops) == 0 })
	}
	return m
}

// documentModel is a register that is written only by who knows the number of its last write. Its state is the newest version.
func documentModel() porcupine.Model {
	return modelOf(answer{}, func(s answer, in call, out answer) (bool, answer) {
		switch {
		case in.op == "read":
			return out.n == s.n && out.who == s.who, s
		case in.n != s.n+1:
			return !out.known || out.conflict && out.n == s.n, s
		}
		return !out.conflict, answer{n: in.n, who: in.who}
	})
}

func describe(history []porcupine.Operation) string {
	slices.SortFunc(history, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	var sb strings.Builder
	for _, op := range history {
		ended := "?"
		if op.Return != math.MaxInt64 {
			ended = fmt.Sprint(op.Return)
		}
		fmt.Fprintf(&sb, "%4d-%-4s client %d: %+v -> %+v\n", op.Call, ended, op.ClientId, op.Input, op.Output)
	}
	return sb.String()
}
