package cassandra

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gocql/gocql"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// pages is a session that returns the numbers from 0 up, in pages of the given sizes.
type pages struct {
	session
	sizes []int
	asked []string
}

func (p *pages) page(_ context.Context, _ statement, _ int, from []byte, dest any) ([]byte, error) {
	p.asked = append(p.asked, string(from))
	n, first := 0, 0
	if from != nil {
		n, _ = strconv.Atoi(string(from))
	}
	for _, size := range p.sizes[:n] {
		first += size
	}
	for i := range p.sizes[n] {
		*dest.(*[]int) = append(*dest.(*[]int), first+i)
	}
	if n++; n == len(p.sizes) {
		return nil, nil
	}
	return []byte(strconv.Itoa(n)), nil
}

// Servers may send fewer rows than were asked for, even none, and still have more: rows that they
// skip because they are deleted or filtered out count towards the page.
func TestRowsOfShortPages(t *testing.T) {
	for _, sizes := range [][]int{{0}, {3}, {3, 3}, {3, 0}, {0, 3}, {0, 0, 1, 0, 3, 2, 0, 0, 1}} {
		p := &pages{sizes: sizes}
		want := 0
		for got, err := range rows[int](t.Context(), p, 3, stmt("SELECT")) {
			require.NoError(t, err)
			require.Equal(t, want, got)
			want++
		}
		total := 0
		for _, size := range sizes {
			total += size
		}
		require.Equal(t, want, total, "%v", sizes)
		require.Len(t, p.asked, len(sizes), "each page once")
		require.Empty(t, p.asked[0])
	}
}

// watched is a session that records how many requests the limiter counts while one is under way.
type watched struct {
	limiter *limiter
	running []int
}

var errRequest = errors.New("this request fails")

func (w *watched) look() error {
	_, running, _ := w.limiter.state()
	w.running = append(w.running, running)
	return errRequest
}

func (w *watched) exec(context.Context, int64, ...statement) error { return w.look() }
func (w *watched) cas(context.Context, ...statement) (bool, error) { return true, w.look() }
func (w *watched) page(context.Context, statement, int, []byte, any) ([]byte, error) {
	return nil, w.look()
}
func (w *watched) clocks(context.Context) ([]reading, error) { return nil, w.look() }
func (w *watched) close()                                    {}

// Every request goes through the limiter.
func TestEveryRequestIsLimited(t *testing.T) {
	w := &watched{limiter: newLimiter(2)}
	l := limited(w, w.limiter)
	require.ErrorIs(t, l.exec(t.Context(), 1), errRequest)
	_, err := l.cas(t.Context())
	require.ErrorIs(t, err, errRequest)
	_, err = l.page(t.Context(), stmt("SELECT"), 1, nil, nil)
	require.ErrorIs(t, err, errRequest)
	_, err = l.clocks(t.Context())
	require.ErrorIs(t, err, errRequest)
	require.Equal(t, []int{1, 1, 1, 1}, w.running)
	_, running, _ := w.limiter.state()
	require.Zero(t, running)
}

// The promises about conditional statements rest on this: they are decided among the nodes of the
// one data centre that all processes are in, and the driver repeats only what is marked as
// repeatable.
func TestClusterConfig(t *testing.T) {
	o := Options{Hosts: []string{"a", "b:9043"}}
	o.ensureDefaults()
	c, err := clusterConfig(&o)
	require.NoError(t, err)
	require.Equal(t, gocql.LocalSerial, c.SerialConsistency)
	require.Equal(t, gocql.LocalQuorum, c.Consistency)
	require.Nil(t, c.RetryPolicy)
	require.False(t, c.DefaultIdempotence)
}

// impatient is a clock on which a wait fails.
type impatient struct{ clock.System }

var errWaits = errors.New("it waits")

func (impatient) Sleep(context.Context, time.Duration) error { return errWaits }

// An applier goes on with the lock of its own earlier attempt whose answer was lost, while others
// wait. If the earlier attempt is still at work somewhere, it stops.
func TestLockOfAnEarlierAttempt(t *testing.T) {
	o := place(t)
	o.Keyspace += "_anew"
	o.Clock = impatient{}
	s, _, err := connect(t.Context(), &o, "")
	require.NoError(t, err)
	defer s.close()
	drop := func(ctx context.Context) { require.NoError(t, ddl(ctx, s, "DROP KEYSPACE IF EXISTS "+o.Keyspace)) }
	drop(t.Context())
	defer drop(t.Context())

	apply := func(name string, progress func(done, total int)) error {
		o := o
		o.Applier = name
		return ApplySchema(t.Context(), o, "", func(done, total int, _ string) { progress(done, total) })
	}
	steps, again := 0, 0
	err = apply("one", func(done, total int) {
		if total == 1 {
			return // the keyspace
		}
		if steps++; done != 2 {
			return
		}
		require.ErrorIs(t, apply("another", func(int, int) {}), errWaits)
		require.ErrorIs(t, apply("", func(int, int) {}), errWaits, "without a name an attempt is like no other")
		require.NoError(t, apply("one", func(_, total int) { again = total }))
	})
	require.ErrorIs(t, err, storage.ErrConflict)
	require.ErrorContains(t, err, "the lock of the schema was lost; apply the schema again")
	require.Equal(t, 3, steps, "nothing after that")
	require.Greater(t, again, 3)
	require.NoError(t, apply("another", func(int, int) {}), "it was given back")
	start(t, o)
}

// recorder is a session that accepts all writes.
type recorder struct {
	session

	mu      sync.Mutex
	written []write
}

type write struct {
	tsUs int64
	statement
}

func (r *recorder) exec(_ context.Context, tsUs int64, stmts ...statement) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, st := range stmts {
		r.written = append(r.written, write{tsUs, st})
	}
	return nil
}

// All rows of a batch carry one timestamp, which is the run's fence or this process's own, and each
// its own TTL. No query would show the TTL of a slice that is only opened.
func TestTimestampsAndTimesToLiveOfABatch(t *testing.T) {
	const (
		slice  = time.Hour
		rawTTL = 7 * day
		rowTTL = 90 * day
		second = int(time.Second)
	)
	clk := clock.NewSimulated(time.UnixMilli(1_700_000_000_000))
	ttls := map[string]int{
		cqlOpenSlice:  int(rowTTL+keepBeyond+4*slice) / second,
		cqlWriteMark:  int(rowTTL+2*keepBeyond+4*slice) / second,
		cqlWriteRaw:   int(rawTTL) / second,
		cqlWriteCache: int(keepCache+4*slice) / second,
	}
	for fence, want := range map[storage.Fence]int64{0: clk.Now().UnixMicro(), 17: 17} {
		r := &recorder{}
		s := &Store{
			session: r, clk: clk, ladder: metric.DefaultLadder(), epochsRead: clock.Read(clk),
			policies: storage.Policies(nil).Set(storage.Policy{Retention: storage.Retention{rawTTL, rowTTL, rowTTL, rowTTL}}, 0),
		}
		require.NoError(t, s.Write(t.Context(), newRound(1).batch(fence)))
		seen := map[string]bool{}
		for _, w := range r.written {
			require.Equal(t, want, w.tsUs, w.cql)
			require.Equal(t, ttls[w.cql], w.args[len(w.args)-1], w.cql)
			require.Len(t, w.args, strings.Count(w.cql, "?"), w.cql)
			require.NotContains(t, w.args, nil, "a null is a tombstone")
			seen[w.cql] = true
		}
		require.Len(t, seen, len(ttls))
	}
}

// values answers each statement with one row that holds one text.
type values struct {
	session
	value string
}

func (v values) page(_ context.Context, _ statement, _ int, _ []byte, dest any) ([]byte, error) {
	return nil, json.Unmarshal([]byte(`[{"Value": "`+v.value+`"}]`), dest)
}

// Servers that keep to the formats of Cassandra 4 cannot store a time after January 2038.
func TestCheckRetention(t *testing.T) {
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		mode string
		last time.Duration
		want string
	}{
		{"CASSANDRA_4", 0, ""},
		{"CASSANDRA_4", lastExpiry.Sub(now), ""},
		{"CASSANDRA_4", lastExpiry.Sub(now) + time.Second, "--retention reaches 4077 days ahead: shorten it"},
		{"NONE", 20 * 365 * day, ""},
	} {
		err := checkRetention(t.Context(), values{value: c.mode}, storage.Retention{7 * day, c.last}, now)
		if c.want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, storage.ErrSettings)
		require.ErrorContains(t, err, c.want)
	}
}

// If the context ends before all calls have begun, each returns an error.
func TestEachOfACancelledContext(t *testing.T) {
	for _, n := range []int{1, 2, 1000} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, each(ctx, n, maxSpread, func(ctx context.Context, _ int) error { return ctx.Err() }), context.Canceled)
	}
	// The context ends in the middle, and no call under way notices.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var done atomic.Int64
	err := each(ctx, 10_000, maxSpread, func(context.Context, int) error {
		if done.Add(1) == 100 {
			cancel()
		}
		return nil
	})
	require.Less(t, done.Load(), int64(10_000))
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, each(t.Context(), 1000, maxSpread, func(context.Context, int) error { return nil }))
}

// LOCAL_QUORUM and LOCAL_SERIAL mean the data centre of the node that is asked, so no node of
// another may be asked.
func TestRequestsStayInTheDataCentre(t *testing.T) {
	o := place(t)
	config, err := clusterConfig(&o)
	require.NoError(t, err)
	config.Keyspace = o.Keyspace
	d, err := createWatched(t.Context(), &o, config, newNodes(inDC("elsewhere"), o.Clock, o.Logger))
	require.NoError(t, err)
	defer d.close()
	_, err = swapSetting(t.Context(), d, settingNextID, "", "1")
	require.ErrorIs(t, err, storage.ErrUnavailable)
	_, err = readSetting(t.Context(), d, settingHome)
	require.ErrorIs(t, err, storage.ErrUnavailable)
}

// TestCloseOfTheDriverMayNotReturn: a process that only looked around goes on.
func TestCloseOfTheDriverMayNotReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		began := time.Now()
		closeWithin(func() { <-ended }, closeLimit)
		require.Equal(t, closeLimit, time.Since(began), "by the clock of the bubble")
		close(ended)
		closeWithin(func() {}, closeLimit)
		require.Equal(t, closeLimit, time.Since(began), "it waits for no longer than it has to")
	})
}
