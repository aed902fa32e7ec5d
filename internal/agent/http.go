package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/wire"
	"github.com/quern/quern/internal/wire/version"
)

const (
	// A reply lists at most every measurement of a report. A longer one is not from Quern.
	maxReplyBytes = 4 << 20
	// This much of an error page is enough to recognise it.
	maxMessageBytes = 300
)

// HTTPSender posts reports to a server.
type HTTPSender struct {
	url    string
	client *http.Client
	clock  clock.Clock
}

// NewHTTPSender returns a sender to the server at baseURL, such as http://127.0.0.1:9095. A path,
// for a proxy, is kept. A user and password in the URL are sent as basic authentication. The sender
// does not follow redirects: they would turn a POST into a GET.
func NewHTTPSender(baseURL string, client *http.Client, c clock.Clock) (*HTTPSender, error) {
	u, err := url.Parse(baseURL)
	if err != nil {
		return nil, fmt.Errorf("server URL: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("server URL %q: must be like http://127.0.0.1:9095", u.Redacted())
	}
	direct := *client
	direct.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &HTTPSender{url: u.JoinPath(wire.ReportsPath).String(), client: &direct, clock: c}, nil
}

// Send implements Sender.
func (s *HTTPSender) Send(ctx context.Context, b Batch) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(b.Body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-ndjson")
	req.Header.Set("Content-Encoding", "zstd")
	req.Header.Set("User-Agent", "quern-agent/"+version.Read().Version)
	resp, err := s.client.Do(req)
	if err != nil {
		return err // down, unreachable or too slow: retry later
	}
	defer resp.Body.Close()
	return s.judge(resp, b.Samples)
}

// judge translates the reply into what the agent does next; see Sender.
func (s *HTTPSender) judge(resp *http.Response, sent int) error {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReplyBytes))
	r := parseReply(body)
	switch code := resp.StatusCode; {
	case code/100 == 2:
		if err != nil {
			return fmt.Errorf("read the reply: %w", err) // it may have been accepted; twice counts once
		}
		// No status alone says that the report is stored: a proxy, or a network with a page to log in, answers 204, too.
		if !r.accountsFor(sent) {
			return stranger(resp, &r, body)
		}
		return r.rejections()
	case code/100 == 3:
		return stranger(resp, &r, body)
	case code == http.StatusRequestEntityTooLarge:
		return fmt.Errorf("%w: %s", ErrTooLarge, message(resp, &r, body))
	case code == http.StatusBadRequest && len(r.Rejected) > 0 && r.accountsFor(sent):
		// It lists every measurement, so the server has processed the report and accepted none.
		return r.rejections()
	case r.about(code):
		return fmt.Errorf("%w: %s", ErrRefused, message(resp, &r, body))
	}
	// Any other answer is not about the report, but about the token, the address or the server, or is a proxy's. It ends when
	// somebody mends that.
	err = fmt.Errorf("the server answered %s", message(resp, &r, body))
	if after, ok := s.retryAfter(resp.Header.Get("Retry-After")); ok {
		return &RetryError{After: after, Err: err}
	}
	return err
}

// stranger is the error for an answer of somebody else, such as a network that wants its users to log in first. The report
// has not reached its server, which may answer later.
func stranger(resp *http.Response, r *reply, body []byte) error {
	return fmt.Errorf("the answer is not a Quern server's: %s", message(resp, r, body))
}

// reply is a server's reply.
type reply struct {
	wire.Report
	// Accepted shadows that of the report. It is nil if the answer is not Quern's.
	Accepted *int `json:"accepted"`
}

// parseReply reads a reply. A reply that is not JSON, such as a proxy's, counts as empty.
func parseReply(body []byte) reply {
	var r reply
	if json.Unmarshal(body, &r) != nil {
		return reply{}
	}
	return r
}

// about reports whether the reply is a Quern server's with a status that is about the content of the report, so that the
// server would answer the same again.
func (r *reply) about(code int) bool {
	switch code {
	case http.StatusBadRequest, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return r.Status == wire.Failure && r.Error != ""
	}
	return false
}

// accountsFor reports whether the reply covers n measurements. The reply to a truncated body does
// not.
func (r *reply) accountsFor(n int) bool {
	return r.Accepted != nil && *r.Accepted+r.rejectedTotal() >= n
}

func (r *reply) rejectedTotal() int { return max(len(r.Rejected), r.RejectedTotal) }

// rejections returns an error that names the rejected measurements, or nil.
func (r *reply) rejections() error {
	if len(r.Rejected) == 0 {
		return nil
	}
	return &RejectedError{Total: r.rejectedTotal(), Rejected: r.Rejected}
}

// retryAfter reads the header's two forms: seconds, or a date.
func (s *HTTPSender) retryAfter(header string) (time.Duration, bool) {
	if seconds, err := strconv.ParseInt(header, 10, 64); err == nil && seconds >= 0 {
		// Bounded first, so that the multiplication does not overflow.
		return time.Duration(min(seconds, int64(maxRetryAfter/time.Second))) * time.Second, true
	}
	if at, err := http.ParseTime(header); err == nil {
		return max(0, at.Sub(s.clock.Now())), true
	}
	return 0, false
}

// message returns the status and the start of the server's explanation.
func message(resp *http.Response, r *reply, body []byte) string {
	text := r.Error
	if text == "" {
		text = string(body)
	}
	text = strings.TrimSpace(strings.ToValidUTF8(text[:min(len(text), maxMessageBytes)], ""))
	if to := resp.Header.Get("Location"); to != "" {
		text = "redirect to " + to
	}
	if text == "" {
		return resp.Status
	}
	return resp.Status + ": " + text
}
