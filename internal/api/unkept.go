package api

import (
	"cmp"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quern/quern/internal/clock"
)

// What is not kept although its sender is answered with success, or never looks at the answer, beside what is rejected
// with an ingest.Reason. The words are stable: they are a label of quern_http_unkept_total and stand in the status.
const (
	unkeptSameMillisecond = "same_millisecond" // another sample of the series replaced it at once
	unkeptSameName        = "same_name"        // two fields of different measurements make one metric
	unkeptSeveralBuckets  = "several_buckets"  // several databases are written to as if they were one
)

const (
	// unkeptLogEvery is how often one sender's losses of one kind are logged.
	unkeptLogEvery = 10 * time.Minute
	// maxUnkept bounds the senders that are told apart. All others count as one, otherSenders.
	maxUnkept    = 256
	otherSenders = "others"
)

// Unkept is what one sender loses without a sign to it.
type Unkept struct {
	Path string
	// Sender is the address that the requests come from, with what the program calls itself.
	Sender string
	// Reason is one stable word.
	Reason string
	// Count is how many measurements this has cost since the process started, LastMs when it last did, in Unix ms.
	Count  int64
	LastMs int64
	// Message is about the last one, for people.
	Message string
}

// unkept counts what senders lose and are not told, for the metrics and the status, and logs it once in a while.
type unkept struct {
	clk     clock.Clock
	logger  *slog.Logger
	counter *prometheus.CounterVec

	mu   sync.Mutex
	seen map[unkeptKey]*unkeptEntry
}

type unkeptKey struct{ path, sender, reason string }

type unkeptEntry struct {
	Unkept

	logged time.Time
}

func newUnkept(clk clock.Clock, logger *slog.Logger, reg prometheus.Registerer) (*unkept, error) {
	u := &unkept{
		clk: clk, logger: logger, seen: make(map[unkeptKey]*unkeptEntry),
		counter: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quern_http_unkept_total",
			Help: "Measurements that are not kept although the sender was answered with success, by path and reason.",
		}, []string{"path", "reason"}),
	}
	return u, register(reg, u.counter)
}

// note counts n measurements that the request loses. The message may hold views into the body.
func (u *unkept) note(r *http.Request, reason string, n int, message string) {
	if n <= 0 {
		return
	}
	u.counter.WithLabelValues(r.URL.Path, reason).Add(float64(n))
	now := u.clk.Now()
	k := unkeptKey{r.URL.Path, sender(r), reason}

	u.mu.Lock()
	defer u.mu.Unlock()
	e := u.seen[k]
	if e == nil && len(u.seen) >= maxUnkept {
		k.sender = otherSenders
		e = u.seen[k]
	}
	if e == nil {
		e = &unkeptEntry{Unkept: Unkept{Path: k.path, Sender: k.sender, Reason: reason}}
		u.seen[k] = e
	}
	e.Count += int64(n)
	e.LastMs = now.UnixMilli()
	e.Message = string([]byte(message))
	if since := now.Sub(e.logged); since < 0 || since >= unkeptLogEvery {
		e.logged = now
		u.logger.Warn("measurements are not kept", "path", k.path, "sender", k.sender, "reason", reason,
			"measurements_since_start", e.Count, "example", e.Message)
	}
}

// list is what is lost, the latest first.
func (u *unkept) list() []Unkept {
	u.mu.Lock()
	defer u.mu.Unlock()
	out := make([]Unkept, 0, len(u.seen))
	for _, e := range u.seen {
		out = append(out, e.Unkept)
	}
	slices.SortFunc(out, func(a, b Unkept) int {
		return cmp.Or(cmp.Compare(b.LastMs, a.LastMs), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Sender, b.Sender), cmp.Compare(a.Reason, b.Reason))
	})
	return out
}

// sender names who sent a request: its address, and what the program calls itself.
func sender(r *http.Request) string {
	const most = 128
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	if agent := r.UserAgent(); agent != "" {
		host += " (" + agent[:min(len(agent), most)] + ")"
	}
	return host
}
