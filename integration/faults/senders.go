package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quern/quern/integration/oracle"
	"github.com/quern/quern/integration/process"
	"github.com/quern/quern/internal/wire"
)

// Senders report to a process of the test's choice. Each report is sent until it is acknowledged.
// At times a sender does not wait long enough for the answer.
type Senders struct {
	Oracle oracle.Oracle
	// TooOld says that the servers may refuse samples for their age, because the age cap is below
	// what senders send or servers accept.
	TooOld bool
	// Reports is the number of reports begun. Again counts repeated attempts: Impatient of them
	// because no answer came in time, Refused because the answer was to try again.
	Reports, Again, Impatient, Refused atomic.Int64

	// unexpected is the last answer that no sender should get, a string.
	unexpected atomic.Value

	stop chan struct{}
	all  sync.WaitGroup

	mu sync.Mutex
	// at says what each running sender is doing.
	at map[int]string
}

// seriesPerSource is the number of series in each report.
const seriesPerSource = 16

// Start starts n senders. to chooses the process before each attempt. back lists how far back late
// samples lie, in turn.
func (s *Senders) Start(t testing.TB, n int, to func(*rand.Rand) *process.Process, back []time.Duration) {
	s.stop, s.at = make(chan struct{}), map[int]string{}
	t.Cleanup(s.all.Wait) // runs after what they wait for is over
	for i := range n {
		s.setState(i, "has sent nothing")
		s.all.Go(func() {
			defer s.ended(i)
			rng := rand.New(rand.NewPCG(*Seed, uint64(i)+1))
			lastMs := int64(0)
			for round := 0; ; round++ {
				select {
				case <-s.stop:
					return
				default:
				}
				// Each sender's times ascend. Now and then it uses a new source.
				lastMs = max(time.Now().UnixMilli(), lastMs+1)
				batch := Batch(fmt.Sprintf("sender-%d-%02d", i, round/40), lastMs, round, back...)
				heard := func(answer error) { s.setState(i, fmt.Sprintf("%s at %d: %v", batch[0].Source, lastMs, answer)) }
				if !s.deliver(t, rng, batch, to, heard) {
					return
				}
				if wait(t.Context(), 50*time.Millisecond+below(rng, 100*time.Millisecond)) != nil {
					return
				}
			}
		})
	}
}

// Stop stops new reports, and returns when all reports under way are acknowledged. It fails the
// test if that takes too long.
func (s *Senders) Stop(t testing.TB) {
	t.Helper()
	close(s.stop)
	process.Eventually(t, "what was begun to be acknowledged", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.at) > 0 {
			return fmt.Errorf("%q", slices.Sorted(maps.Values(s.at)))
		}
		return nil
	})
}

func (s *Senders) setState(sender int, at string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at[sender] = at
}

func (s *Senders) ended(sender int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.at, sender)
}

// patience is how long a sender waits for an answer: mostly long enough, and at times not.
var patience = []time.Duration{5 * time.Millisecond, 50 * time.Millisecond, 2 * time.Second, 5 * time.Second, 5 * time.Second, 5 * time.Second}

// deliver sends a report until it is acknowledged, and passes each answer to heard. It returns
// whether the sender may continue.
func (s *Senders) deliver(t testing.TB, rng *rand.Rand, samples []process.Sample, to func(*rand.Rand) *process.Process, heard func(error)) bool {
	s.Reports.Add(1)
	for {
		ctx, cancel := context.WithTimeout(t.Context(), patience[rng.IntN(len(patience))])
		r, err := s.Oracle.Report(ctx, to(rng), samples)
		late := ctx.Err() != nil
		cancel()
		heard(err)
		switch {
		case err == nil:
			return true
		case s.TooOld && tooOld(r.Body):
			return true
		case r.Code == 0, r.Code == http.StatusServiceUnavailable, r.Code == http.StatusTooManyRequests:
		default:
			t.Errorf("a report was answered: %s", err)
			s.unexpected.Store(err.Error())
			return false
		}
		s.Again.Add(1)
		if late {
			s.Impatient.Add(1)
		}
		if r.Code != 0 {
			s.Refused.Add(1)
		}
		if wait(t.Context(), 20*time.Millisecond+below(rng, 200*time.Millisecond)) != nil {
			return false
		}
	}
}

// tooOld reports whether a reply rejects samples only for their age.
func tooOld(body []byte) bool {
	var reply wire.Report
	if json.Unmarshal(body, &reply) != nil || len(reply.Rejected) == 0 {
		return false
	}
	for _, r := range reply.Rejected {
		if r.Reason != "too_old" {
			return false
		}
	}
	return true
}

// Batch returns a report of a source: samples of gauges, and of counters that restart, with values
// whose sums are exact. In each fourth round one sample is late. back lists by how much, in turn.
func Batch(source string, ms int64, round int, back ...time.Duration) []process.Sample {
	var out []process.Sample
	for i := range seriesPerSource {
		metric, value := fmt.Sprintf("it_%02d_total", i), float64((ms/16+int64(i)*31)%256)
		if i%2 == 1 {
			metric, value = fmt.Sprintf("it_%02d", i), float64((ms*7+int64(i)*13)%4096-2048)/8
		}
		out = append(out, process.Sample{Source: source, Metric: metric, Ms: ms, Value: value})
	}
	if round%4 == 0 && len(back) > 0 {
		late := ms - back[(round/4)%len(back)].Milliseconds()
		out = append(out, process.Sample{Source: source, Metric: "it_late", Ms: late, Value: float64(round)})
	}
	return out
}
