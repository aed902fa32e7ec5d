package cassandra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gocql/gocql"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
)

// setBack is the machine's clock, set back by an hour each time that it is looked at.
type setBack struct {
	clock.System
	back time.Duration
}

func (s *setBack) Now() time.Time {
	s.back += time.Hour
	return s.System.Now().Add(-s.back)
}

// three are the nodes of a data centre, asked in turn.
func three(t *testing.T) (*nodes, []*gocql.HostInfo, *strings.Builder) {
	t.Helper()
	var log strings.Builder
	n := newNodes(gocql.RoundRobinHostPolicy(), &setBack{}, slog.New(slog.NewTextHandler(&log, nil)))
	n.HostSelectionPolicy = n.anyOf // which node has a copy takes a session to know
	var hosts []*gocql.HostInfo
	for i := range 3 {
		h := new(gocql.HostInfo)
		h.SetHostID(fmt.Sprint(i))
		h.SetConnectAddress(net.IPv4(10, 0, 0, byte(i)))
		hosts = append(hosts, h)
		n.AddHost(h)
	}
	return n, hosts, &log
}

func query(ctx context.Context) *gocql.Query {
	return new(gocql.Query).WithContext(ctx).RoutingKey([]byte{1})
}

// picked returns the nodes that a request would ask, in order.
func picked(ctx context.Context, n *nodes) (ids []string) {
	next := n.Pick(query(ctx))
	for h := next(); h != nil; h = next() {
		ids = append(ids, h.Info().HostID())
	}
	return ids
}

// The first answer counts, from whichever node. An error counts only when no attempt is left that
// may answer.
func TestSpeculate(t *testing.T) {
	type said struct {
		after time.Duration
		err   error
	}
	broken := errors.New("broken")
	never := said{time.Hour, broken}
	for _, c := range []struct {
		name   string
		says   []said // by attempt
		winner int
		took   time.Duration
		err    error
	}{
		{"the first is fast", []said{{time.Millisecond, nil}}, 0, time.Millisecond, nil},
		{"the first is frozen", []said{never, {time.Millisecond, nil}}, 1, speculateAfter + time.Millisecond, nil},
		{"two are frozen", []said{never, never, {time.Millisecond, nil}}, 2, 2*speculateAfter + time.Millisecond, nil},
		{"the first is slow, the second slower", []said{{250 * time.Millisecond, nil}, never}, 0, 250 * time.Millisecond, nil},
		{"the second fails", []said{{300 * time.Millisecond, nil}, {time.Millisecond, broken}}, 0, 300 * time.Millisecond, nil},
		{"the first fails later", []said{{300 * time.Millisecond, broken}, {time.Second, nil}}, 1, speculateAfter + time.Second, nil},
		{"no other node", []said{{time.Second, nil}, {0, gocql.ErrNoConnections}, {0, gocql.ErrNoConnections}}, 0, time.Second, nil},
		{"no other node, and a failure", []said{{time.Second, broken}, {0, gocql.ErrNoConnections}, {0, gocql.ErrNoConnections}}, 0, time.Second, broken},
		{"a failure at once", []said{{time.Millisecond, broken}}, 0, time.Millisecond, broken},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, _, _ := three(t)
				ctx, cancel := context.WithCancel(t.Context())
				begin, attempts := time.Now(), make(chan int, mostAsked)
				for i := range mostAsked {
					attempts <- i
				}
				got, err := speculate(ctx, n, func(ctx context.Context) (int, error) {
					i := <-attempts
					require.Equal(t, i > 0, attemptOf(ctx).again)
					x := never
					if i < len(c.says) {
						x = c.says[i]
					}
					select {
					case <-time.After(x.after):
						return i, x.err
					case <-ctx.Done():
						return i, ctx.Err()
					}
				})
				require.Equal(t, c.took, time.Since(begin))
				require.ErrorIs(t, err, c.err)
				if c.err == nil {
					require.Equal(t, c.winner, got)
				}
				cancel()
				synctest.Wait()
			})
		})
	}
	// If there is no other node, nothing is asked twice.
	n, hosts, _ := three(t)
	n.RemoveHost(hosts[0])
	n.RemoveHost(hosts[1])
	for _, alone := range []*nodes{nil, n} {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			_, err := speculate(t.Context(), alone, func(context.Context) (int, error) {
				asked++
				time.Sleep(time.Minute)
				return 0, nil
			})
			require.NoError(t, err)
			require.Equal(t, 1, asked)
		})
	}
	// A cluster that is slow as a whole does not get much more load.
	synctest.Test(t, func(t *testing.T) {
		n, _, _ := three(t)
		const requests = 100
		var under, most atomic.Int64
		var all sync.WaitGroup
		for range requests {
			all.Go(func() {
				_, err := speculate(t.Context(), n, func(ctx context.Context) (int, error) {
					now := under.Add(1)
					for was := most.Load(); now > was && !most.CompareAndSwap(was, now); was = most.Load() {
					}
					select {
					case <-time.After(time.Minute):
					case <-ctx.Done():
					}
					under.Add(-1)
					return 0, nil
				})
				require.NoError(t, err)
			})
		}
		all.Wait()
		synctest.Wait()
		require.Equal(t, int64(requests+mostAgain), most.Load())
		require.Empty(t, n.again)
	})
	// A caller that gives up does not wait for an answer.
	synctest.Test(t, func(t *testing.T) {
		n, _, _ := three(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		hold := make(chan struct{})
		_, err := speculate(ctx, n, func(context.Context) (int, error) { <-hold; return 0, nil })
		require.ErrorIs(t, err, context.Canceled)
		close(hold)
	})
}

// A node that leaves requests unanswered which others answer is asked last, and tried each second.
// When it answers in time, all requests ask it again.
func TestNodeThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, hosts, log := three(t)
		ctx := t.Context()
		beaten, cancel := context.WithCancelCause(ctx)
		cancel(errBeaten)
		gaveUp, stop := context.WithCancel(ctx)
		stop()

		n.observe(beaten, hosts[1], speculateAfter, context.Canceled)
		n.observe(ctx, hosts[1], time.Second, gocql.ErrTimeoutNoResponse)
		for range 5 {
			n.observe(beaten, hosts[1], speculateAfter-1, context.Canceled) // asked after the node that answered
			n.observe(gaveUp, hosts[1], time.Second, context.Canceled)      // the caller gave up
		}
		n.observe(ctx, hosts[1], time.Millisecond, nil) // an answer: the missed requests must be in a row
		require.Empty(t, log.String())
		for range mostMissed {
			require.Equal(t, map[string]bool{"10.0.0.0:0": false, "10.0.0.1:0": false, "10.0.0.2:0": false}, n.askedLast())
			n.observe(beaten, hosts[1], speculateAfter, context.Canceled)
		}
		require.Contains(t, log.String(), "a Cassandra node is slow or does not answer; it is asked last until it recovers")
		require.Contains(t, log.String(), "10.0.0.1:0")
		require.Equal(t, map[string]bool{"10.0.0.0:0": false, "10.0.0.1:0": true, "10.0.0.2:0": false}, n.askedLast())
		for range 10 {
			require.Equal(t, "1", picked(ctx, n)[2])
		}
		require.Equal(t, 1, testutil.CollectAndCount(collector{limiter: newLimiter(1), nodes: &nodes{byID: map[string]*node{"x": {}}}, clocks: new(clocks)}, "quern_cassandra_node_asked_last"))

		// An answer must be fast to be a sign.
		n.observe(ctx, hosts[1], speculateAfter, nil)
		n.observe(ctx, hosts[1], time.Millisecond, gocql.ErrTimeoutNoResponse)
		require.True(t, n.askedLast()["10.0.0.1:0"])
		tries := func(again bool) (tries int) {
			for range 9 {
				ctx := context.WithValue(ctx, attemptKey{}, attempt{asked: new(asked), again: again})
				if n.Pick(query(ctx))().Info().HostID() == "1" {
					tries++
				}
			}
			return tries
		}
		require.Zero(t, tries(false))
		for range 3 {
			time.Sleep(tryEvery)
			require.Zero(t, tries(true), "no further attempt tries it")
			require.Equal(t, "1", picked(ctx, n)[2], "and no request that goes to one node alone")
			require.Equal(t, 1, tries(false))
		}
		n.observe(ctx, hosts[1], time.Millisecond, nil)
		require.False(t, n.askedLast()["10.0.0.1:0"])
		require.Contains(t, log.String(), "a Cassandra node answers again")

		// If no node answers, all are asked as before.
		for _, h := range hosts {
			for range mostMissed {
				n.observe(ctx, h, time.Second, gocql.ErrTimeoutNoResponse)
			}
		}
		require.ElementsMatch(t, []string{"0", "1", "2"}, picked(ctx, n))
	})
}

// The attempts of a request ask different nodes.
func TestAttemptsAskDifferentNodes(t *testing.T) {
	n, hosts, _ := three(t)
	for range mostMissed {
		n.observe(t.Context(), hosts[2], time.Second, gocql.ErrTimeoutNoResponse)
	}
	shared := new(asked)
	var ids []string
	for i := range 4 {
		ctx := context.WithValue(t.Context(), attemptKey{}, attempt{asked: shared, again: i > 0})
		if h := n.Pick(query(ctx))(); h != nil {
			ids = append(ids, h.Info().HostID())
		}
	}
	require.ElementsMatch(t, []string{"0", "1", "2"}, ids)
	require.Equal(t, "2", ids[2], "the one that does not answer comes last")
}

// A request for one node goes to no other. The nodes whose clocks are read are those that answer, if
// there are any.
func TestOneNodeIsAsked(t *testing.T) {
	n, hosts, _ := three(t)
	only := func(id string) []string {
		return picked(context.WithValue(t.Context(), attemptKey{}, attempt{only: id}), n)
	}
	for _, id := range []string{"0", "1", "2"} {
		require.Equal(t, []string{id}, only(id))
	}
	require.Empty(t, only("gone"))
	all := map[string]string{"0": "10.0.0.0:0", "1": "10.0.0.1:0", "2": "10.0.0.2:0"}
	require.Equal(t, all, n.some(5))
	require.Len(t, n.some(2), 2)
	for i := range 3 {
		for range mostMissed {
			n.observe(t.Context(), hosts[i], time.Second, gocql.ErrTimeoutNoResponse)
		}
		if delete(all, fmt.Sprint(i)); len(all) > 0 {
			require.Equal(t, all, n.some(5))
		}
		require.Equal(t, []string{fmt.Sprint(i)}, only(fmt.Sprint(i)))
	}
	require.Len(t, n.some(5), 3)
}
