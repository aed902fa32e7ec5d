package spool

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"
)

// ledger is what the callers of a spool know: what was acknowledged to them, and what they acknowledged.
type ledger struct {
	mu sync.Mutex
	// tried and appended count the records of each stream; of those tried, one may be under way.
	tried, appended map[string]int
	// acked has, for each consumer, how many records of each stream it has acknowledged.
	acked map[string]map[string]int
	// durable has, for each consumer, how many records of each stream it had acknowledged at the last Sync
	// that returned. It is nil for a consumer that may not exist.
	durable map[string]map[string]int
	// dropped counts the records that were reported as dropped.
	dropped map[string]int
}

func (l *ledger) clone() *ledger {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &ledger{
		tried: maps.Clone(l.tried), appended: maps.Clone(l.appended), dropped: maps.Clone(l.dropped),
		acked: deepClone(l.acked), durable: deepClone(l.durable),
	}
}

func deepClone(m map[string]map[string]int) map[string]map[string]int {
	c := map[string]map[string]int{}
	for k, v := range m {
		c[k] = maps.Clone(v)
	}
	return c
}

func newLedger() *ledger {
	return &ledger{
		tried: map[string]int{}, appended: map[string]int{}, dropped: map[string]int{},
		acked: map[string]map[string]int{"a": {}, "b": {}}, durable: map[string]map[string]int{},
	}
}

func (l *ledger) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

// history appends, reads, acknowledges, syncs, drops and closes. It returns the ledger while it goes.
func history(t *testing.T, h *harness, l *ledger) {
	open := func() *Spool {
		opts := h.options()
		report := opts.OnLoss
		opts.OnLoss = func(loss Loss) {
			report(loss)
			l.set(func() { l.dropped[loss.Stream] += int(loss.Records) })
		}
		s, err := Open("/spool", opts)
		require.NoError(t, err)
		s.Register("udp", DropOldest)
		return s
	}
	s := open()
	add := func(stream string) {
		var n int
		l.set(func() { n = l.tried[stream]; l.tried[stream]++ })
		require.NoError(t, s.Append(t.Context(), record(stream, n)))
		l.set(func() { l.appended[stream]++ })
	}
	read := func(c *Consumer, limit int) {
		for range limit {
			if !c.behind() {
				return
			}
			b, err := c.Next(t.Context(), 200)
			require.NoError(t, err)
			l.set(func() {
				for _, r := range b.Records {
					l.acked[c.name][r.Stream] = int(r.SeqID / 100)
				}
			})
			c.Ack(b.End)
		}
	}
	sync := func() {
		acked := l.clone().acked
		require.NoError(t, s.Sync())
		l.set(func() {
			for name := range l.durable {
				l.durable[name] = acked[name]
			}
		})
	}
	a := consumer(t, s, "a")
	l.set(func() { l.durable["a"] = map[string]int{} })
	for range 12 {
		add("file")
		add("udp")
	}
	read(a, 3)
	sync()
	b := consumer(t, s, "b")
	l.set(func() {
		l.durable["b"] = map[string]int{}
		l.acked["b"] = maps.Clone(l.acked["a"]) // segments that a has acknowledged are gone
	})
	for range 10 {
		add("file")
	}
	read(b, 5)
	read(a, 8)
	sync()
	require.NoError(t, s.Close())
	s = open()
	a, b = consumer(t, s, "a"), consumer(t, s, "b")
	for n := range 350 { // more than there is room for
		add("udp")
		if n%25 == 0 {
			add("file") // among what is dropped, so that segments are written anew
		}
	}
	read(a, 20)
	read(b, 100)
	sync()
	read(a, 700)
	read(b, 700)
	sync()
	for range 3 {
		add("file")
	}
	require.NoError(t, s.Close())
}

// TestCrashAfterEachOperation runs a history and takes a copy of the file system, as after a power loss, before
// each operation that changes it: with none of what is not synced, and with parts of it. On each copy
// a spool must open, and have what was acknowledged.
func TestCrashAfterEachOperation(t *testing.T) {
	mem := vfs.NewCrashableMem()
	l := newLedger()
	type moment struct {
		name   string
		fs     *vfs.MemFS
		ledger *ledger
	}
	var moments []moment
	rewritten := false
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(1, 2))
	h := newHarness(t, errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if op.Kind == errorfs.OpRename && strings.HasSuffix(op.Path, segmentSuffix+".new") {
			rewritten = true
		}
		// The ledger first: it must not have more than the copy.
		know := l.clone()
		for _, percent := range []int{0, 50} {
			moments = append(moments, moment{
				fmt.Sprintf("%d %v %s %d%%", len(moments), op.Kind, op.Path, percent),
				mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng}), know,
			})
		}
		return nil
	})))
	history(t, h, l)
	require.Positive(t, l.dropped["udp"])
	require.True(t, rewritten)
	require.Greater(t, len(moments), 700)
	for _, m := range moments {
		checkCrash(t, m.name, m.fs, m.ledger)
	}
}

func checkCrash(t *testing.T, name string, fs vfs.FS, l *ledger) {
	t.Helper()
	h := newHarness(t, fs)
	s := h.open()
	for _, consumerName := range []string{"a", "b"} {
		durable := l.durable[consumerName]
		c := consumer(t, s, consumerName)
		got := map[string][]int{}
		for _, r := range rest(t, c) {
			n := int(r.SeqID/100) - 1
			require.Equal(t, record(r.Stream, n), r, name)
			got[r.Stream] = append(got[r.Stream], n)
		}
		for stream, tried := range l.tried {
			last := -1
			seen := map[int]bool{}
			for _, n := range got[stream] {
				require.Greater(t, n, last, "%s: consumer %s: order of %s", name, consumerName, stream)
				require.Less(t, n, tried, "%s: nobody appended that", name)
				require.GreaterOrEqual(t, n, durable[stream], "%s: %s acknowledged record %d of %s, durably", name, consumerName, n, stream)
				last, seen[n] = n, true
			}
			if stream == "udp" || durable == nil {
				continue
			}
			// Between what is durably acknowledged and what may be, the consumer goes on anywhere.
			from := l.acked[consumerName][stream]
			if len(got[stream]) > 0 {
				from = min(from, got[stream][0])
			}
			for n := from; n < l.appended[stream]; n++ {
				require.True(t, seen[n], "%s: consumer %s: record %d of %s is not in %v", name, consumerName, n, stream, got[stream])
			}
		}
		// Of the other stream, what is not there was dropped, and counted.
		if durable != nil {
			there := countFrom(got["udp"], l.acked[consumerName]["udp"], l.appended["udp"])
			require.GreaterOrEqual(t, there+l.dropped["udp"], l.appended["udp"]-l.acked[consumerName]["udp"], "%s: consumer %s", name, consumerName)
		}
	}
	for _, loss := range h.losses {
		require.Equal(t, Torn, loss.Reason, "%s: %v", name, loss)
	}
	// It goes on.
	r := Record{Stream: "next", SeqID: 1, TimeMs: testStart.UnixMilli(), Payload: []byte("x")}
	s.Register("udp", DropOldest)
	c := consumer(t, s, "a")
	require.NoError(t, s.Append(t.Context(), r))
	require.Equal(t, []Record{r}, rest(t, c), name)
	require.NoError(t, s.Close())
}

func countFrom(ns []int, from, to int) (count int) {
	for _, n := range ns {
		if from <= n && n < to {
			count++
		}
	}
	return count
}

// TestConcurrentAppends has many appenders and a consumer that acknowledges, under the race detector.
func TestConcurrentAppends(t *testing.T) {
	h := newHarness(t, vfs.NewCrashableMem())
	h.max = 1 << 20
	s := h.open()
	c := consumer(t, s, "a")
	const appenders, each = 16, 200
	var wg sync.WaitGroup
	for i := range appenders {
		wg.Go(func() {
			for n := range each {
				if err := s.Append(t.Context(), record(fmt.Sprint("s", i), n)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	next := map[string]int{}
	for total := 0; total < appenders*each; {
		b, err := c.Next(t.Context(), 2000)
		require.NoError(t, err)
		for _, r := range b.Records {
			require.Equal(t, record(r.Stream, next[r.Stream]), r)
			next[r.Stream]++
		}
		total += len(b.Records)
		c.Ack(b.End)
		s.Stats()
	}
	wg.Wait()
	require.NoError(t, s.Sync())
	require.NoError(t, c.Close())
	require.NoError(t, s.Close())
	require.Empty(t, h.lost())
}
