package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/protocol/remotewrite"
	"github.com/quern/quern/internal/wire/version"
)

// This much of a reply says what is wrong, or whose page it is.
const maxMessageBytes = 300

// HTTPSender posts batches to a server.
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
	return &HTTPSender{url: u.JoinPath(remotewrite.Path).String(), client: &direct, clock: c}, nil
}

// Send implements Sender.
func (s *HTTPSender) Send(ctx context.Context, b Batch) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(b.Body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("Content-Encoding", "zstd")
	req.Header.Set("X-Prometheus-Remote-Write-Version", "0.1.0")
	req.Header.Set("User-Agent", "quern-agent/"+version.Read().Version)
	resp, err := s.client.Do(req)
	if err != nil {
		return err // down, unreachable or too slow: retry later
	}
	defer resp.Body.Close()
	return s.judge(resp, b.Samples)
}

// judge translates the reply into what the agent does next; see Sender. A Quern server says in the headers of each reply how many samples
// it has written.
func (s *HTTPSender) judge(resp *http.Response, sent int) error {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxMessageBytes))
	written, foreign := strconv.Atoi(resp.Header.Get(remotewrite.WrittenHeader))
	rejected, _ := strconv.Atoi(resp.Header.Get(remotewrite.RejectedHeader)) // 0 if there is none
	whole := foreign == nil && written+rejected >= sent
	switch code := resp.StatusCode; {
	case code/100 == 2 && err != nil:
		return fmt.Errorf("read the reply: %w", err) // it may have been accepted; twice counts once
	case code/100 == 2 && !whole, code/100 == 3:
		// No status alone says that the report is stored: a proxy, or a network with a page to log in, answers 204, too. The report
		// has not reached its server, which may answer later.
		return fmt.Errorf("the answer is not a Quern server's: %s", message(resp, body))
	case whole && rejected > 0:
		return &RejectedError{Total: rejected, Message: message(resp, body)}
	case code/100 == 2:
		return nil
	case code == http.StatusRequestEntityTooLarge:
		return fmt.Errorf("%w: %s", ErrTooLarge, message(resp, body))
	case foreign == nil && (code == http.StatusBadRequest || code == http.StatusUnsupportedMediaType || code == http.StatusUnprocessableEntity):
		// It is about the content, so the server would answer the same again.
		return fmt.Errorf("%w: %s", ErrRefused, message(resp, body))
	}
	// Any other answer is not about the report, but about the token, the address or the server, or is a proxy's. It ends when
	// somebody mends that.
	err = fmt.Errorf("the server answered %s", message(resp, body))
	if after, ok := s.retryAfter(resp.Header.Get("Retry-After")); ok {
		return &RetryError{After: after, Err: err}
	}
	return err
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
func message(resp *http.Response, body []byte) string {
	text := strings.TrimSpace(strings.ToValidUTF8(string(body), ""))
	if to := resp.Header.Get("Location"); to != "" {
		text = "redirect to " + to
	}
	if text == "" {
		return resp.Status
	}
	return resp.Status + ": " + text
}
