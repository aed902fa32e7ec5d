package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/agent/adaptor"
	"github.com/quern/quern/internal/agent/spool"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counting is an adaptor that puts n samples every 10 s, whose values count up from 0, so that a test sees from
// the values alone what is missing, doubled, or out of order.
type counting struct{ n, next int }

func (c *counting) String() string { return "counting" }

func (c *counting) Run(ctx context.Context, out *adaptor.Output) {
	for {
		var b ingest.Batch
		for i := range c.n {
			b.Series("m"+strconv.Itoa(i), nil)
			b.Add(clock.NowMs(out.Clock), float64(c.next))
			c.next++
		}
		out.Put("counted", spool.Point{Seq: uint64(c.next)}, &b)
		if out.Clock.Sleep(ctx, 10*time.Second-time.Since(bubbleStart)%(10*time.Second)) != nil {
			return
		}
	}
}

// server is a sender that records attempts, and replies as the test says.
type server struct {
	// answer may be nil: everything is accepted.
	answer func(ctx context.Context, ms []ingest.Measurement) error

	mu       sync.Mutex
	attempts []attempt
	taken    []ingest.Measurement
}

type attempt struct {
	at       time.Duration // since the start of the test
	n, bytes int
}

func (s *server) Send(ctx context.Context, b Batch) error {
	var batch ingest.Batch
	if err := b.Decode(&batch); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	var ms []ingest.Measurement
	for _, r := range batch.Reports() {
		ms = append(ms, r.Measurements...)
	}
	s.mu.Lock()
	s.attempts = append(s.attempts, attempt{time.Since(bubbleStart), len(ms), len(b.Body)})
	s.mu.Unlock()
	if s.answer != nil {
		if err := s.answer(ctx, ms); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = append(s.taken, ms...)
	return nil
}

// awayServer returns a server that is away until back is called.
func awayServer() (s *server, back func()) {
	away := true
	return &server{answer: func(context.Context, []ingest.Measurement) error {
		if away {
			return errors.New("away")
		}
		return nil
	}}, func() { away = false }
}

func (s *server) values() []float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var vs []float64
	for _, m := range s.taken {
		vs = append(vs, m.Value)
	}
	return vs
}

func (s *server) tries() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.attempts)
}

// bubbleStart is the time at which every synctest bubble begins.
var bubbleStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// running is an agent under test.
type running struct {
	*Agent
	log  bytes.Buffer // read it after stop
	end  context.CancelFunc
	done chan struct{}
}

// memory returns a spool that is gone with the process.
func memory(t *testing.T, bytes int64) *spool.Spool {
	t.Helper()
	s, err := spool.Open("/spool", spool.Options{FS: spool.Memory(), Clock: clock.System{}, Logger: slog.New(slog.DiscardHandler), MaxBytes: bytes})
	require.NoError(t, err)
	return s
}

// start runs an agent. A jitter of 1 makes every wait as long as possible.
func start(t *testing.T, o Options, c adaptor.Adaptor, s Sender) *running {
	return startOn(t, memory(t, 0), o, c, s)
}

// startOn is start with a spool.
func startOn(t *testing.T, kept *spool.Spool, o Options, c adaptor.Adaptor, s Sender) *running {
	if o.Jitter == nil {
		o.Jitter = func() float64 { return 1 }
	}
	r := &running{done: make(chan struct{})}
	log := slog.New(slog.NewTextHandler(&r.log, nil))
	r.Agent = New(Parts{
		Adaptors: []adaptor.Configured{{Adaptor: c}}, Output: adaptor.NewOutput(kept, clock.System{}, log, "web-1"), Sender: s, Clock: clock.System{}, Logger: log,
	}, o)
	ctx, end := context.WithCancel(t.Context())
	r.end = end
	go func() {
		defer close(r.done)
		r.Run(ctx)
	}()
	return r
}

func (r *running) stop() {
	r.end()
	<-r.done
}

// after lets simulated time pass until everything is idle.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func upTo(n int) []float64 {
	vs := make([]float64, n)
	for i := range vs {
		vs[i] = float64(i)
	}
	return vs
}

// TestServerAway: after an hour without the server everything arrives, once, in order, in reports
// of the allowed size.
func TestServerAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: func(context.Context, []ingest.Measurement) error {
			if time.Since(bubbleStart) < time.Hour {
				return errors.New("connection refused")
			}
			return nil
		}}
		a := start(t, Options{RequestBytes: 5000}, &counting{n: 3}, s)
		after(time.Hour - time.Second)
		require.Equal(t, 3*360, a.Stats().Waiting)
		require.Less(t, s.tries(), 140, "it backs off")
		after(31 * time.Second)
		a.stop()

		require.Equal(t, upTo(3*(360+4)), s.values())
		for _, at := range s.attempts {
			require.LessOrEqual(t, at.bytes, 5000)
		}
		require.Greater(t, s.attempts[len(s.attempts)/2].n, 30)
		// Logged once a minute: the failures of the hour, with the number of suppressed messages.
		logged := strings.Count(a.log.String(), "measurements were not delivered")
		require.Greater(t, logged, 30)
		require.LessOrEqual(t, logged, 60)
		require.Contains(t, a.log.String(), "connection refused")
	})
}

// TestLiveBesideBacklog: after an outage, what is new is not behind what waits. Everything arrives once, and is acknowledged.
func TestLiveBesideBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const back = 2 * time.Hour
		late, most, under := map[float64]time.Duration{}, 0, 0
		s := &server{}
		s.answer = func(_ context.Context, ms []ingest.Measurement) error {
			if time.Since(bubbleStart) < back {
				return errors.New("away")
			}
			s.mu.Lock()
			under++
			most = max(most, under)
			s.mu.Unlock()
			time.Sleep(11 * time.Second) // there is always something new
			s.mu.Lock()
			defer s.mu.Unlock()
			under--
			for _, m := range ms {
				late[m.Value] = time.Since(bubbleStart) - time.Duration(m.TimeMs-bubbleStart.UnixMilli())*time.Millisecond
			}
			return nil
		}
		disk := spool.Options{FS: spool.Memory(), Clock: clock.System{}, Logger: slog.New(slog.DiscardHandler)}
		kept, err := spool.Open("/spool", disk)
		require.NoError(t, err)
		a := startOn(t, kept, Options{RequestBytes: 500}, &counting{n: 1}, s)
		after(back + 2*time.Minute)
		a.out.Put("once", spool.Point{Seq: 5}, new(ingest.Batch))
		after(2 * time.Hour)
		require.LessOrEqual(t, a.Stats().Waiting, 2, "all but what is under way")
		a.stop()
		require.NoError(t, kept.Close())
		kept, err = spool.Open("/spool", disk)
		require.NoError(t, err)
		require.EqualValues(t, 5, kept.Stream("once").Seq, "it was acknowledged beside the backlog")
		require.NoError(t, kept.Close())
		values := s.values()
		require.Greater(t, len(s.attempts), 240)
		slices.Sort(values)
		require.Equal(t, upTo(len(values)), values)
		require.Len(t, values, 242*6+1)
		require.Equal(t, 2, most)
		for v, by := range late {
			if at := time.Duration(v) * 10 * time.Second; at > back+maxBackoff+11*time.Second {
				require.LessOrEqual(t, by, 22*time.Second, "measured at %s", at)
			}
		}
	})
}

// TestRead: an adaptor with the same text goes on. One that is no longer wanted ends before another begins.
func TestRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		var log []string
		one := func(text string) adaptor.Configured {
			return adaptor.Configured{Text: text, Adaptor: runFunc(func(ctx context.Context) {
				log = append(log, "begin "+text)
				<-ctx.Done()
				time.Sleep(time.Second)
				log = append(log, "end "+text)
			})}
		}
		a := start(t, Options{}, one("").Adaptor, s)
		after(time.Second)
		a.Read([]adaptor.Configured{one("a")})
		after(2 * time.Second)
		a.Read([]adaptor.Configured{one("a"), one("b")})
		after(time.Second)
		a.Read([]adaptor.Configured{one("b"), one("c")})
		after(2 * time.Second)
		a.Read([]adaptor.Configured{one("c")})
		after(2 * time.Second)
		a.stop()
		require.Equal(t, []string{"begin ", "end ", "begin a", "begin b", "end a", "begin c", "end b", "end c"}, log)
	})
}

// runFunc makes a function an adaptor.
type runFunc func(ctx context.Context)

func (f runFunc) Run(ctx context.Context, _ *adaptor.Output) { f(ctx) }
func (f runFunc) String() string                             { return "func" }

// TestNothingToSend: a chunk without samples is acknowledged without a request.
func TestNothingToSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		a := start(t, Options{}, runFunc(func(ctx context.Context) { <-ctx.Done() }), s)
		a.out.Put("s", spool.Point{Seq: 5}, new(ingest.Batch))
		synctest.Wait()
		require.Zero(t, s.tries())
		a.stop()
	})
}

// TestFullSpool: what does not fit into the spool is lost, the oldest first, and counted.
func TestFullSpool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, back := awayServer()
		a := startOn(t, memory(t, 1500), Options{}, &counting{n: 4}, s)
		after(10 * time.Minute)
		waiting, dropped := a.Stats().Waiting, int(a.Stats().Dropped)
		require.Equal(t, 61*4, waiting+dropped)
		require.Positive(t, waiting)
		back()
		a.stop()
		require.Equal(t, upTo(61 * 4)[dropped:], s.values())
	})
}

// TestKilled: what was read before the process was killed is sent by the next one, once.
func TestKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, back := awayServer()
		disk := vfs.NewCrashableMem()
		o := spool.Options{FS: disk, Clock: clock.System{}, Logger: slog.New(slog.DiscardHandler)}
		kept, err := spool.Open("/spool", o)
		require.NoError(t, err)
		counted := &counting{n: 2}
		a := startOn(t, kept, Options{}, counted, s)
		after(25 * time.Second)
		o.FS = disk.CrashClone(vfs.CrashCloneCfg{})
		a.stop()
		require.Equal(t, 6, a.Stats().Waiting)
		require.NoError(t, kept.Close())
		require.Empty(t, s.values())

		back()
		kept, err = spool.Open("/spool", o)
		require.NoError(t, err)
		a = startOn(t, kept, Options{}, counted, s)
		after(time.Second)
		a.stop()
		require.NoError(t, kept.Close())
		require.Equal(t, upTo(8), s.values())
		require.Zero(t, a.Stats().Waiting)
	})
}

func TestRetryAfter(t *testing.T) {
	for _, c := range []struct {
		name        string
		asked, want time.Duration
	}{
		{"longer than the backoff", 40 * time.Second, 40 * time.Second},
		{"shorter than the backoff", 10 * time.Millisecond, 500 * time.Millisecond},
		{"out of all measure", 1000 * time.Hour, 5 * time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first := true
				s := &server{}
				s.answer = func(context.Context, []ingest.Measurement) error {
					if first {
						first = false
						return fmt.Errorf("wrapped: %w", &RetryError{After: c.asked, Err: errors.New("busy")})
					}
					return nil
				}
				a := start(t, Options{}, &counting{n: 1}, s)
				after(6 * time.Minute)
				a.stop()
				require.Equal(t, time.Duration(0), s.attempts[0].at)
				require.Equal(t, c.want, s.attempts[1].at)
				require.Equal(t, upTo(37), s.values())
			})
		})
	}
}

func TestBackoffDoublesAndIsSpread(t *testing.T) {
	for _, jitter := range []float64{0, 0.5, math.Nextafter(1, 0)} {
		a := New(Parts{Clock: clock.System{}}, Options{Jitter: func() float64 { return jitter }})
		for failures, step := range []time.Duration{
			500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second,
			8 * time.Second, 16 * time.Second, 30 * time.Second, 30 * time.Second,
		} {
			wait := a.backoff(failures, errors.New("away"))
			require.InDelta(t, float64(step)*(0.5+jitter/2), float64(wait), float64(time.Microsecond))
		}
		require.LessOrEqual(t, a.backoff(1_000_000, errors.New("away")), 30*time.Second)
	}
}

func TestRefusedIsDroppedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: func(_ context.Context, ms []ingest.Measurement) error {
			if ms[0].Value == 2 {
				return fmt.Errorf("%w: no such thing", ErrRefused)
			}
			return nil
		}}
		a := start(t, Options{}, &counting{n: 2}, s)
		after(25 * time.Second)
		a.stop()
		require.Equal(t, []float64{0, 1, 4, 5}, s.values())
		require.Len(t, s.attempts, 3)
		require.Equal(t, Stats{Delivered: 4, Refused: 2}, a.Stats())
		require.Contains(t, a.log.String(), "no such thing")
	})
}

// TestOneOfManyCannotBeSent: one reading is too large in any request, or refused. All others arrive, without each being sent alone.
func TestOneOfManyCannotBeSent(t *testing.T) {
	for _, why := range []error{ErrTooLarge, ErrRefused} {
		synctest.Test(t, func(t *testing.T) {
			const back = 3 * time.Hour
			s := &server{answer: func(_ context.Context, ms []ingest.Measurement) error {
				if time.Since(bubbleStart) < back {
					return errors.New("away")
				}
				for _, m := range ms {
					if m.Value == 613 {
						return why
					}
				}
				return nil
			}}
			a := start(t, Options{}, &counting{n: 1}, s)
			after(back - time.Second)
			before := s.tries()
			after(time.Minute + time.Second)
			a.stop()
			require.Equal(t, append(upTo(613), upTo(1087)[614:]...), s.values())
			require.Equal(t, Stats{Delivered: 1086, Refused: 1}, a.Stats())
			require.Less(t, s.tries()-before, 40)
		})
	}
}

func TestRejectedAreCountedAndLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: func(context.Context, []ingest.Measurement) error {
			return &RejectedError{Total: 3, Message: "a day late"}
		}}
		a := start(t, Options{}, &counting{n: 5}, s)
		after(65 * time.Second)
		a.stop()
		require.Equal(t, Stats{Delivered: 2 * 7, Rejected: 3 * 7}, a.Stats())
		log := a.log.String()
		// At 0 s and, a minute later, with the number of messages in between.
		require.Equal(t, 2, strings.Count(log, "3 measurements were rejected: a day late"))
		require.Equal(t, 1, strings.Count(log, "suppressed=5"))
	})
}

func TestStopSendsWhatIsQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, back := awayServer()
		a := start(t, Options{}, &counting{n: 1}, s)
		after(time.Hour) // the backoff is at its maximum
		back()
		before := time.Now()
		a.stop()
		require.Less(t, time.Since(before), time.Millisecond, "the stop ends the wait")
		require.Equal(t, upTo(361), s.values())
	})
}

func TestStopGivesUpAfterTheGrace(t *testing.T) {
	for name, answer := range map[string]func(context.Context, []ingest.Measurement) error{
		"away": func(context.Context, []ingest.Measurement) error { return errors.New("away") },
		"asks for time": func(context.Context, []ingest.Measurement) error {
			return &RetryError{After: time.Hour, Err: errors.New("busy")}
		},
		"no answer": func(ctx context.Context, _ []ingest.Measurement) error {
			<-ctx.Done()
			return ctx.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{answer: answer}
				a := start(t, Options{}, &counting{n: 3}, s)
				after(time.Second)
				before := time.Now()
				a.stop()
				require.Equal(t, 5*time.Second, time.Since(before))
				require.Equal(t, Stats{Waiting: 3}, a.Stats())
			})
		})
	}
}

func TestSilentServerIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := true
		s := &server{answer: func(ctx context.Context, _ []ingest.Measurement) error {
			if first {
				first = false
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}}
		a := start(t, Options{}, &counting{n: 1}, s)
		after(35 * time.Second)
		a.stop()
		require.Equal(t, upTo(4), s.values())
		require.Equal(t, 30*time.Second+500*time.Millisecond, s.attempts[1].at)
		require.Contains(t, a.log.String(), "no answer within 30s")
	})
}
