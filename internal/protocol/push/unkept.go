package push

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
	"github.com/quern/quern/internal/limits"
)

// Register registers metrics with reg, unless it is nil.
func Register(reg prometheus.Registerer, cs ...prometheus.Collector) error {
	if reg == nil {
		return nil
	}
	for _, c := range cs {
		if err := reg.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// sameMillisecond is the reason for measurements that another one of the series with the same time replaced.
// Other losses have an ingest.Reason. The words are stable: they appear as a label of
// quern_http_unkept_total and in the status.
const sameMillisecond = "same_millisecond"

const (
	// logEvery is the minimum interval between log lines for one sender and reason.
	logEvery = 10 * time.Minute
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

// Ledger counts losses that senders do not learn of. It feeds the metrics and the status, and logs
// now and then.
type Ledger struct {
	clk     clock.Clock
	logger  *slog.Logger
	counter *prometheus.CounterVec

	mu   sync.Mutex
	seen map[ledgerKey]*ledgerEntry
}

type ledgerKey struct{ path, sender, reason string }

type ledgerEntry struct {
	Unkept

	throttle *limits.Throttle
}

func newLedger(clk clock.Clock, logger *slog.Logger, reg prometheus.Registerer) (*Ledger, error) {
	u := &Ledger{
		clk: clk, logger: logger, seen: make(map[ledgerKey]*ledgerEntry),
		counter: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quern_http_unkept_total",
			Help: "Measurements that are not kept although the sender got a success response, by path and reason.",
		}, []string{"path", "reason"}),
	}
	return u, Register(reg, u.counter)
}

// Note counts n measurements that the request loses. The message may hold views into the body.
func (u *Ledger) Note(r *http.Request, reason string, n int, message string) {
	if n <= 0 {
		return
	}
	u.counter.WithLabelValues(r.URL.Path, reason).Add(float64(n))
	k := ledgerKey{r.URL.Path, sender(r), reason}

	u.mu.Lock()
	defer u.mu.Unlock()
	e := u.seen[k]
	if e == nil && len(u.seen) >= maxUnkept {
		k.sender = otherSenders
		e = u.seen[k]
	}
	if e == nil {
		e = &ledgerEntry{Unkept: Unkept{Path: k.path, Sender: k.sender, Reason: reason}, throttle: limits.NewThrottle(u.clk, logEvery)}
		u.seen[k] = e
	}
	e.Count += int64(n)
	e.LastMs = clock.NowMs(u.clk)
	e.Message = string([]byte(message))
	if _, ok := e.throttle.Pass(); ok {
		u.logger.Warn("measurements not kept", "path", k.path, "sender", k.sender, "reason", reason,
			"measurements_since_start", e.Count, "example", e.Message)
	}
}

// List returns the losses, the latest first.
func (u *Ledger) List() []Unkept {
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
