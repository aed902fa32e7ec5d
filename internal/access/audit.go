package access

import (
	"cmp"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/throttle"
)

const (
	// maxAudited bounds each text of a client in the audit log.
	maxAudited = 500
	// failuresEvery is the least time between two lines about failures from one address.
	failuresEvery = time.Second
	// failingAddresses bounds the addresses that are told apart for that.
	failingAddresses = 1024
)

// Audit logs who did what: each administrative action with its outcome, logins, and credentials that were refused.
type Audit struct {
	log      *slog.Logger
	failures *throttle.Topics
}

// NewAudit returns an audit log. The logger's handler must escape texts, as those of slog do.
func NewAudit(log *slog.Logger, clk clock.Clock) *Audit {
	return &Audit{log: log, failures: throttle.NewTopics(clk, failuresEvery, failingAddresses)}
}

// Did records what a client did, and how that ended: by the status code of the answer.
func (a *Audit) Did(r *http.Request, g Grant, action string, code int, details ...any) {
	outcome := "done"
	switch {
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

// Failed records a credential that was refused. Beyond one a second from an address, it only counts them.
func (a *Audit) Failed(r *http.Request, name, why string) {
	skipped, pass := a.failures.Pass(host(r))
	if !pass {
		return
	}
	args := append([]any{"name", clip(name), "from", host(r), "path", clip(r.URL.Path), "why", why, "more_since_last", skipped}, forwarded(r)...)
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

func clip(s string) string {
	if len(s) > maxAudited {
		s = strings.Clone(s[:maxAudited]) + "…"
	}
	return strings.ToValidUTF8(s, "\ufffd")
}
