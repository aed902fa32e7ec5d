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

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Linearizability has concurrent clients do what processes decide between them: leases of shards,
// ids, claims of series, versions of a document. It records when each call began and returned, and with what result. Then
// it asks whether some order of the calls, one after the other, explains what every client saw. A
// call without an answer may have taken effect at any time after it began, or never.
type Linearizability struct {
	Seed uint64
	// Rounds is the number of separate histories, each of Clients at once with Calls each. The
	// defaults are 6, 5 and 24.
	Rounds, Clients, Calls int
}

// Linearizable checks a few seeds. open returns several sessions on one new place with
// LinearizableSettings, as several processes have them, or the same store twice if one process has
// it alone.
func Linearizable(t *testing.T, open func(t *testing.T) []storage.Store) {
	t.Helper()
	for seed := range uint64(3) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			require.NoError(t, Linearizability{Seed: seed}.Check(t.Context(), open(t)))
		})
	}
}

// LinearizableSettings has a few shards for each round.
func LinearizableSettings() storage.Settings {
	s := TestSettings()
	s.IndexPartitions = 64
	return s
}

const (
	shardsPerRound = 3
	seriesPerRound = 4
	// Each call without an answer may double the number of orders to try.
	doubtsPerRound = 5
	// No lease ends by itself.
	leaseTTL = time.Hour
)

// Check returns an error that says what is not linearizable, nil if everything is.
func (l Linearizability) Check(ctx context.Context, stores []storage.Store) error {
	for _, d := range []struct {
		n   *int
		def int
	}{{&l.Rounds, 6}, {&l.Clients, 5}, {&l.Calls, 24}} {
		if *d.n == 0 {
			*d.n = d.def
		}
	}
	var newest storage.Fence
	var next metric.ScheduleID
	for round := range l.Rounds {
		h := &recorder{round: round, calls: map[string][]porcupine.Operation{}}
		var wg sync.WaitGroup
		for i := range l.Clients {
			c := &client{
				recorder: h, store: stores[i%len(stores)], n: i, owner: fmt.Sprintf("round %d client %d", round, i),
				rng: rand.New(rand.NewPCG(l.Seed, uint64(round*l.Clients+i))),
			}
			wg.Go(func() {
				for range l.Calls {
					if h.failed(c.call(ctx)) {
						return
					}
				}
			})
		}
		wg.Wait()
		if h.err != nil {
			return h.err
		}
		for _, m := range []struct {
			what  string
			model porcupine.Model
		}{{"leases", leaseModel(round, newest)}, {"ids", idModel(next)}, {"claims", claimModel()}, {"documents", documentModel()}} {
			if !porcupine.CheckOperations(m.model, h.calls[m.what]) {
				return fmt.Errorf("seed %d, round %d: %s are not linearizable:\n%s", l.Seed, round, m.what, describe(m.model, h.calls[m.what]))
			}
		}
		// What is past happened before anything that follows.
		for _, op := range h.calls["leases"] {
			if out := op.Output.(leaseAnswer); out.known {
				newest = max(newest, out.fence)
			}
		}
		for _, op := range h.calls["ids"] {
			if out := op.Output.(idAnswer); out.known {
				next = max(next, out.ids.End)
			}
		}
	}
	return nil
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

// outcome is what a client knows of a call.
type outcome int

const (
	succeeded outcome = iota
	conflicted
	unknown
)

func (h *recorder) note(what string, client int, began int64, in, out any, known bool) {
	ended := int64(math.MaxInt64)
	if known {
		ended = h.ticks.Add(1)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls[what] = append(h.calls[what], porcupine.Operation{ClientId: client, Input: in, Call: began, Output: out, Return: ended})
}

// client is one of the concurrent callers. It stands for a process with its own name.
type client struct {
	*recorder
	store storage.Store
	n     int
	owner string
	rng   *rand.Rand

	held   []storage.Lease // all leases that it got, including lost ones
	leased blocks.Range
	seen   int64 // the newest version of the round's document that it knows of
	puts   int
}

// ask makes a call. Some calls get no answer: they fail before they begin or after they are done,
// or they are cancelled at some point.
func (c *client) ask(ctx context.Context, call func(context.Context) error) (outcome, error) {
	lost := 0
	if c.rng.IntN(8) == 0 && c.doubt() {
		lost = 1 + c.rng.IntN(3)
	}
	var err error
	switch lost {
	case 1:
		return unknown, nil
	case 2:
		hurried, cancel := context.WithTimeout(ctx, time.Duration(c.rng.IntN(3000))*time.Microsecond)
		err = call(hurried)
		cancel()
	default:
		err = call(ctx)
	}
	switch {
	case errors.Is(err, storage.ErrConflict):
		return conflicted, nil
	case storage.IsAway(err), lost == 2 && err != nil:
		return unknown, nil //nolint:nilerr // that there was no answer is the answer
	case err != nil:
		return unknown, err
	case lost == 3:
		return unknown, nil
	}
	return succeeded, nil
}

func (c *client) call(ctx context.Context) error {
	switch n := c.rng.IntN(26); {
	case n >= 23:
		return c.readDocument(ctx)
	case n >= 20:
		return c.putDocument(ctx)
	case n < 6:
		return c.acquire(ctx)
	case n < 8 && len(c.held) > 0:
		return c.renew(ctx)
	case n < 12:
		return c.release(ctx)
	case n < 14:
		return c.leaseIDs(ctx)
	case n < 15:
		return c.leasedIDs(ctx)
	case n < 18:
		return c.claim(ctx)
	}
	return c.series(ctx)
}

func (c *client) shard() int { return c.round*shardsPerRound + c.rng.IntN(shardsPerRound) }

func (c *client) acquire(ctx context.Context) error {
	in := leaseCall{op: "acquire", shard: c.shard(), owner: c.owner}
	var l storage.Lease
	began := c.ticks.Add(1)
	out, err := c.ask(ctx, func(ctx context.Context) (err error) {
		l, err = c.store.AcquireShard(ctx, in.shard, in.owner, leaseTTL)
		return err
	})
	if err != nil {
		return err
	}
	if out == succeeded {
		c.held = append(c.held, l)
		if l.Shard != in.shard || l.Owner != in.owner || l.Fence <= 0 {
			return fmt.Errorf("%s asked for shard %d and got %+v", in.owner, in.shard, l)
		}
	}
	c.note("leases", c.n, began, in, leaseAnswer{known: out != unknown, conflict: out == conflicted, fence: l.Fence}, out != unknown)
	return nil
}

func (c *client) renew(ctx context.Context) error {
	l := c.held[c.rng.IntN(len(c.held))]
	began := c.ticks.Add(1)
	out, err := c.ask(ctx, func(ctx context.Context) error { return c.store.RenewShard(ctx, l, leaseTTL) })
	if err != nil || out == unknown {
		return err // whether it took effect changes nothing
	}
	in := leaseCall{op: "renew", shard: l.Shard, owner: l.Owner, fence: l.Fence}
	c.note("leases", c.n, began, in, leaseAnswer{known: true, conflict: out == conflicted}, true)
	return nil
}

func (c *client) release(ctx context.Context) error {
	in := leaseCall{op: "release", shard: c.shard(), owner: c.owner}
	began := c.ticks.Add(1)
	out, err := c.ask(ctx, func(ctx context.Context) error { return c.store.ReleaseShard(ctx, in.shard, in.owner) })
	if err != nil {
		return err
	}
	c.note("leases", c.n, began, in, leaseAnswer{known: out != unknown, conflict: out == conflicted}, out != unknown)
	return nil
}

func (c *client) leaseIDs(ctx context.Context) error {
	in := idCall{n: 1 + c.rng.IntN(5)}
	var r blocks.Range
	began := c.ticks.Add(1)
	out, err := c.ask(ctx, func(ctx context.Context) (err error) {
		r, err = c.store.LeaseIDs(ctx, in.n)
		return err
	})
	if err != nil {
		return err
	}
	if out == succeeded {
		c.leased = r
	}
	c.note("ids", c.n, began, in, idAnswer{known: out != unknown, ids: r}, out != unknown)
	return nil
}

func (c *client) leasedIDs(ctx context.Context) error {
	began := c.ticks.Add(1)
	r, err := c.store.LeasedIDs(ctx)
	if err != nil {
		return err
	}
	c.note("ids", c.n, began, idCall{}, idAnswer{known: true, ids: r}, true)
	return nil
}

func (c *client) source() string { return fmt.Sprintf("source %d", c.round) }

func seriesOf(n int) metric.Labels {
	ls, err := metric.NewLabels(metric.Label{Name: metric.NameLabel, Value: fmt.Sprintf("series_%d", n)})
	if err != nil {
		panic(err)
	}
	return ls
}

// claim claims some of the round's series, each under its own id. The series of one call need not
// be claimed at one moment, so each is recorded by itself.
func (c *client) claim(ctx context.Context) error {
	var which []int
	var want []storage.Schedule
	for n := range seriesPerRound {
		if c.rng.IntN(2) != 0 {
			continue
		}
		if c.leased.Len() == 0 {
			break
		}
		which = append(which, n)
		want = append(want, storage.Schedule{ID: c.leased.Start, Labels: seriesOf(n)})
		c.leased.Start++
	}
	if len(want) == 0 {
		return nil
	}
	var ids []metric.ScheduleID
	began := c.ticks.Add(1)
	out, err := c.ask(ctx, func(ctx context.Context) (err error) {
		ids, err = c.store.ClaimSchedules(ctx, ClaimsOf(c.source(), want))
		return err
	})
	if err != nil {
		return err
	}
	if out == succeeded && len(ids) != len(want) {
		return fmt.Errorf("claimed %d series and got %d ids", len(want), len(ids))
	}
	for i, w := range want {
		answer := claimAnswer{known: out != unknown}
		if answer.known {
			answer.id = ids[i]
		}
		c.note("claims", c.n, began, claimCall{claim: true, series: which[i], want: w.ID}, answer, answer.known)
	}
	return nil
}

func (c *client) series(ctx context.Context) error {
	began := c.ticks.Add(1)
	found := map[string]metric.ScheduleID{}
	for sch, err := range c.store.SourceSchedules(ctx, c.source()) {
		if err != nil {
			return err
		}
		found[string(sch.Labels.AppendKey(nil))] = sch.ID
	}
	for n := range seriesPerRound {
		id, ok := found[string(seriesOf(n).AppendKey(nil))]
		if !ok {
			id = nobody
		}
		c.note("claims", c.n, began, claimCall{series: n}, claimAnswer{known: true, id: id}, true)
	}
	return nil
}

func (c *client) document() storage.DocumentKey {
	return storage.DocumentKey{Kind: "linear", ID: fmt.Sprintf("round-%d", c.round)}
}

// putDocument puts the version after the newest one that the client has seen. Each put has a title of its own.
func (c *client) putDocument(ctx context.Context) error {
	c.puts++
	in := documentCall{version: c.seen + 1, title: fmt.Sprintf("put %d of client %d", c.puts, c.n)}
	d := storage.Document{DocumentHead: storage.DocumentHead{DocumentKey: c.document(), Version: in.version, Title: in.title}, Body: []byte(in.title)}
	var newest int64
	began := c.ticks.Add(1)
	out, err := c.ask(ctx, func(ctx context.Context) error {
		err := c.store.PutDocument(ctx, d, storage.MaxDocumentVersions)
		if conflict := (*storage.ConflictError)(nil); errors.As(err, &conflict) {
			newest = conflict.Newest
		}
		return err
	})
	if err != nil {
		return err
	}
	switch out {
	case succeeded:
		c.seen = in.version
	case conflicted:
		c.seen = newest
	}
	c.note("documents", c.n, began, in, documentAnswer{known: out != unknown, conflict: out == conflicted, version: newest}, out != unknown)
	return nil
}

func (c *client) readDocument(ctx context.Context) error {
	began := c.ticks.Add(1)
	d, err := c.store.Document(ctx, c.document(), 0)
	if err != nil && !errors.Is(err, storage.ErrNoDocument) {
		return err
	}
	if d.Title != string(d.Body) {
		return fmt.Errorf("version %d has the title %q and the body %q", d.Version, d.Title, d.Body)
	}
	c.seen = d.Version
	c.note("documents", c.n, began, documentCall{}, documentAnswer{known: true, version: d.Version, title: d.Title}, true)
	return nil
}

type leaseCall struct {
	op    string
	shard int
	owner string
	fence storage.Fence
}

type leaseAnswer struct {
	known, conflict bool
	fence           storage.Fence
}

// leaseState is all leases of a round: who holds each shard, and with which fence.
type leaseState struct {
	newest storage.Fence
	shards [shardsPerRound]struct {
		owner string
		fence storage.Fence // 0 if its holder got no answer
	}
}

// leaseModel is a lock for each shard. Fences ascend over all shards.
func leaseModel(round int, newest storage.Fence) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return leaseState{newest: newest} },
		Step: func(state, input, output any) (bool, any) {
			s, in, out := state.(leaseState), input.(leaseCall), output.(leaseAnswer)
			shard := &s.shards[in.shard-round*shardsPerRound]
			free := shard.owner == "" || shard.owner == in.owner
			switch in.op {
			case "acquire":
				switch {
				case !free:
					return !out.known || out.conflict, s
				case out.conflict || out.known && out.fence <= s.newest:
					return false, s
				}
				// A fence without an answer is at least one higher.
				s.newest = max(s.newest+1, out.fence)
				shard.owner, shard.fence = in.owner, out.fence
			case "renew":
				return out.conflict != (shard.owner == in.owner && shard.fence == in.fence), s
			case "release":
				if out.conflict {
					return false, s
				}
				if shard.owner == in.owner {
					shard.owner, shard.fence = "", 0
				}
			}
			return true, s
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
	}
}

// idCall is LeaseIDs, or LeasedIDs if n is 0.
type idCall struct{ n int }

type idAnswer struct {
	known bool
	ids   blocks.Range
}

// idModel is a counter. It may skip ids whose lease was in doubt.
func idModel(next metric.ScheduleID) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return next },
		Step: func(state, input, output any) (bool, any) {
			next, in, out := state.(metric.ScheduleID), input.(idCall), output.(idAnswer)
			switch {
			case !out.known:
				return true, next
			case in.n == 0:
				return out.ids.Start == 0 && out.ids.End >= next, max(next, out.ids.End)
			}
			return out.ids.Start >= next && out.ids.Len() == in.n, out.ids.End
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
	}
}

// nobody is the id of a series that has none.
const nobody = metric.ScheduleID(-1)

type claimCall struct {
	claim  bool
	series int
	want   metric.ScheduleID
}

type claimAnswer struct {
	known bool
	id    metric.ScheduleID
}

// claimModel is a register for each series, which is set once.
func claimModel() porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			out := make([][]porcupine.Operation, seriesPerRound)
			for _, op := range history {
				n := op.Input.(claimCall).series
				out[n] = append(out[n], op)
			}
			return slices.DeleteFunc(out, func(ops []porcupine.Operation) bool { return len(ops) == 0 })
		},
		Init: func() any { return nobody },
		Step: func(state, input, output any) (bool, any) {
			id, in, out := state.(metric.ScheduleID), input.(claimCall), output.(claimAnswer)
			if in.claim && id == nobody {
				id = in.want
			}
			return !out.known || out.id == id, id
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
	}
}

// documentCall is PutDocument, or Document if version is 0.
type documentCall struct {
	version int64
	title   string
}

type documentAnswer struct {
	known, conflict bool
	version         int64 // the newest one
	title           string
}

type documentState struct {
	version int64
	title   string
}

// documentModel is a register that is written only by who knows the number of its last write.
func documentModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return documentState{} },
		Step: func(state, input, output any) (bool, any) {
			s, in, out := state.(documentState), input.(documentCall), output.(documentAnswer)
			switch {
			case in.version == 0:
				return out.version == s.version && out.title == s.title, s
			case in.version != s.version+1:
				return !out.known || out.conflict && out.version == s.version, s
			}
			return !out.conflict, documentState(in)
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
	}
}

func describe(m porcupine.Model, history []porcupine.Operation) string {
	slices.SortFunc(history, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	var sb strings.Builder
	for _, op := range history {
		ended := "?"
		if op.Return != math.MaxInt64 {
			ended = fmt.Sprint(op.Return)
		}
		fmt.Fprintf(&sb, "%4d-%-4s client %d: %s\n", op.Call, ended, op.ClientId, m.DescribeOperation(op.Input, op.Output))
	}
	return sb.String()
}
