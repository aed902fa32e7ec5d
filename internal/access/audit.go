package access

import (
	"cmp"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
)

const (
	// maxAudited bounds each text of a client in the audit log.
	maxAudited = 500
	// refusedEvery is the least time between two lines about what one address, or one credential, was refused.
	refusedEvery = time.Second
	// toldApart is how many addresses, and how many credentials, are told apart for that. All others share a line.
	toldApart = 10
)

// Audit logs who did what: each administrative action with its outcome, logins, and what was refused.
//
//  1. What was done is logged, each time.
//  2. What was refused does not fill the disk, from however many addresses it comes.
//  3. What strangers are refused takes no line from those who have shown who they are.
//  4. No text of a client is logged with a token's secret, or with the value of a parameter that is named like a password.
type Audit struct {
	log *slog.Logger
	// strangers are told apart by address, known by name.
	strangers, known *limits.Topics
	leftOut          prometheus.Counter
}

// NewAudit returns an audit log. The logger's handler must escape texts, as those of slog do. Metrics may be nil.
func NewAudit(log *slog.Logger, clk clock.Clock, metrics prometheus.Registerer) *Audit {
	return &Audit{
		log:       log,
		strangers: limits.NewTopics(clk, refusedEvery, toldApart), known: limits.NewTopics(clk, refusedEvery, toldApart),
		leftOut: promauto.With(metrics).NewCounter(prometheus.CounterOpts{
			Name: "quern_audit_left_out_total",
			Help: "Refused requests and credentials without a line in the audit log, which has one a second for a client.",
		}),
	}
}

// Refused records that a client may not do what it has tried. Beyond one a second for a client, and some for all, it
// only counts them.
func (a *Audit) Refused(r *http.Request, g Grant, action string, code int) {
	topics, who := a.known, g.Name
	if who == "" {
		topics, who = a.strangers, host(r)
	}
	if more, pass := a.pass(topics, who); pass {
		a.Did(r, g, action, code, "more_since_last", more)
	}
}

// pass returns whether to log that something was refused, and how much was left out before.
func (a *Audit) pass(topics *limits.Topics, who string) (more int, pass bool) {
	more, pass = topics.Pass(who)
	if !pass {
		a.leftOut.Inc()
	}
	return more, pass
}

// CutOff stands for the status code of an answer that was cut off, whatever it began with.
const CutOff = 0

// Did records what a client did, and how that ended: by the status code of the answer.
func (a *Audit) Did(r *http.Request, g Grant, action string, code int, details ...any) {
	outcome := "done"
	switch {
	case code == CutOff:
		outcome = "cut off"
	case code == http.StatusUnauthorized, code == http.StatusForbidden, code == http.StatusTooManyRequests:
		outcome = "refused"
	case code >= http.StatusBadRequest:
		outcome = "failed"
	}
	args := append([]any{"who", clip(cmp.Or(g.Name, "anyone")), "from", host(r), "action", action, "outcome", outcome, "code", code}, forwarded(r)...)
	for _, d := range details {
		if text, ok := d.(string); ok {
			d = clip(text)
		}
		args = append(args, d)
	}
	a.log.InfoContext(r.Context(), "audit", args...)
}

// Failed records a credential that was refused. Beyond one a second from an address, and some from all, it only counts
// them.
func (a *Audit) Failed(r *http.Request, name, why string) {
	more, pass := a.pass(a.strangers, host(r))
	if !pass {
		return
	}
	args := append([]any{"name", clip(name), "from", host(r), "path", clip(r.URL.Path), "why", why, "more_since_last", more}, forwarded(r)...)
	a.log.WarnContext(r.Context(), "credential refused", args...)
}

// forwarded returns what a proxy says of the client, which anybody may claim.
func forwarded(r *http.Request) []any {
	if by := r.Header.Get("X-Forwarded-For"); by != "" {
		return []any{"forwarded_for", clip(by)}
	}
	return nil
}

// host returns the address of a client without its port.
func host(r *http.Request) string {
	if name, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		return name
	}
	return r.RemoteAddr
}

// passwords matches the parameters that are named like a password, in a query or a form.
var passwords = regexp.MustCompile(`(?i)((?:^|[?&;\s])(?:p|pass|passwd|password|pwd|secret|token|access_token|api_?key)=)[^&;\s]+`)

// clip returns a text of a client as it may be logged.
func clip(s string) string {
	s = wholeTokens.ReplaceAllString(s, "${1}…")
	s = passwords.ReplaceAllString(s, "${1}…")
	if len(s) > maxAudited {
		s = strings.Clone(s[:maxAudited]) + "…"
	}
	return strings.ToValidUTF8(s, "\ufffd")
}
