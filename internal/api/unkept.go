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

// These reasons are for measurements that are lost although the sender gets a success or ignores
// the reply. Other losses have an ingest.Reason. The words are stable: they appear as a label of
// quern_http_unkept_total and in the status.
const (
	unkeptSameMillisecond = "same_millisecond" // another sample of the series with the same time replaced it
	unkeptSameName        = "same_name"        // fields of two measurements map to one metric
	unkeptSeveralBuckets  = "several_buckets"  // several databases are stored as one
)

const (
	// unkeptLogEvery is the minimum interval between log lines for one sender and reason.
	unkeptLogEvery = 10 * time.Minute
	// maxUnkept bounds the entries kept per sender. Further senders are counted together as
	// otherSenders.
	maxUnkept    = 256
	otherSenders = "others"
)

// Unkept describes what one sender loses without learning of it.
type Unkept struct {
	Path string
	// Sender is the client's address and its User-Agent.
	Sender string
	// Reason is one stable word.
	Reason string
	// Count is the number of measurements lost since the process started; LastMs is the time of the
	// last loss, in Unix ms.
	Count  int64
	LastMs int64
	// Message describes the last loss, for people.
	Message string
}

// unkept counts losses that senders do not learn of. It feeds the metrics and the status, and logs
// now and then.
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

// list returns the losses, the latest first.
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

// sender returns the client's address and User-Agent.
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
