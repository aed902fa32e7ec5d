// Package client sends requests to a Quern server over HTTP, for the commands of operators.
package client

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/quern/quern/internal/wire"
)

// Client sends requests to one server.
type Client struct {
	// URL is the server's base URL, such as http://127.0.0.1:9095.
	URL string
	// HTTP sends the requests. The default is http.DefaultClient.
	HTTP *http.Client
}

// Name returns the URL without its password, for display and storage.
func (c *Client) Name() string {
	u, err := url.Parse(c.URL)
	if err != nil || u.User == nil {
		return c.URL
	}
	return u.Redacted()
}

// RefusedError is the server's message for an invalid request.
type RefusedError struct{ Message string }

// Error implements error.
func (e *RefusedError) Error() string { return e.Message }

// ConflictError is the server's message for a change of a version that is not the newest any more.
type ConflictError struct{ Message string }

// Error implements error.
func (e *ConflictError) Error() string { return e.Message }

// Refused returns whether err means that the request was invalid.
func Refused(err error) bool {
	var refused *RefusedError
	return errors.As(err, &refused)
}

// AwayError means that the server does not answer now, because it is unreachable or busy.
type AwayError struct{ error }

// Unwrap returns the cause.
func (e *AwayError) Unwrap() error { return e.error }

// Do sends a form: in the URL for GET and DELETE, in the body otherwise. It returns a response only for status
// 200; the caller closes its body.
func (c *Client) Do(ctx context.Context, method, path string, form url.Values) (*http.Response, error) {
	if method == http.MethodGet || method == http.MethodDelete {
		return c.ask(ctx, method, path, form, "", nil)
	}
	return c.ask(ctx, method, path, nil, "application/x-www-form-urlencoded", strings.NewReader(form.Encode()))
}

// Send sends JSON, with parameters in the URL. The response is as that of Do.
func (c *Client) Send(ctx context.Context, method, path string, query url.Values, body []byte) (*http.Response, error) {
	return c.ask(ctx, method, path, query, "application/json", bytes.NewReader(body))
}

func (c *Client) ask(ctx context.Context, method, path string, query url.Values, kind string, body io.Reader) (*http.Response, error) {
	header := http.Header{}
	if body != nil {
		header.Set("Content-Type", kind)
	}
	if c.local() { // to compress costs more than to copy
		header.Set("Accept-Encoding", "identity")
	}
	resp, err := c.send(ctx, method, path, query, header, body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, c.failure(resp)
}

// local returns whether the server is on this machine.
func (c *Client) local() bool {
	u, err := url.Parse(c.URL)
	if err != nil {
		return false // send says why
	}
	addr, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() == "localhost" || err == nil && addr.Unmap().IsLoopback()
}

func (c *Client) send(ctx context.Context, method, path string, query url.Values, header http.Header, body io.Reader) (*http.Response, error) {
	u, err := url.Parse(c.URL)
	if err != nil {
		return nil, err
	}
	u = u.JoinPath(path)
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, err
	}
	req.Header = header
	resp, err := cmp.Or(c.HTTP, http.DefaultClient).Do(req)
	if err != nil {
		return nil, &AwayError{fmt.Errorf("the server is unavailable: %w", err)}
	}
	return resp, nil
}

// Ready returns nil if the server can serve, else why it cannot, in one line.
func (c *Client) Ready(ctx context.Context) error {
	resp, err := c.send(ctx, http.MethodGet, "/-/ready", nil, http.Header{}, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	switch line := strings.Join(strings.Fields(string(text)), " "); {
	case !strings.HasPrefix(line, "Quern is "):
		return fmt.Errorf("%s answered %s, which is not a Quern response: check the URL", c.Name(), resp.Status)
	case resp.StatusCode != http.StatusOK:
		return errors.New(strings.TrimSuffix(line, "."))
	}
	return nil
}

// Post sends a body and decodes the JSON of the answer into reply, whatever the status. An
// AwayError means that a retry may succeed; reply then holds what the server reported so far.
func (c *Client) Post(ctx context.Context, path string, header http.Header, body []byte, reply any) (status int, err error) {
	resp, err := c.send(ctx, http.MethodPost, path, nil, header, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err != nil {
		return 0, &AwayError{fmt.Errorf("the answer ended early: %w", err)}
	}
	if resp.StatusCode == http.StatusOK {
		if err := json.Unmarshal(text, reply); err != nil {
			return resp.StatusCode, fmt.Errorf("the answer of %s is not a Quern response: %w", c.Name(), err)
		}
		return resp.StatusCode, nil
	}
	_ = json.Unmarshal(text, reply) // failure reports answers that are not Quern's
	resp.Body = io.NopCloser(bytes.NewReader(text))
	err = c.failure(resp)
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		err = &AwayError{err}
	}
	return resp.StatusCode, err
}

// maxAnswer bounds an answer that is read at once, and a line of one that is not. The longest are those of explain about a hundred
// series, each with the longest labels.
const maxAnswer = 32 << 20

// ReadAll reads an answer at once.
func ReadAll(body io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("the answer ended early: %w", err)
	case len(text) > maxAnswer:
		return nil, fmt.Errorf("the answer is longer than %d MiB: it is not a Quern response", maxAnswer>>20)
	}
	return text, nil
}

// Lines reads an answer of lines of JSON, and calls each with every line in turn.
func Lines[T any](body io.Reader, each func(*T) error) error {
	in := bufio.NewScanner(body)
	in.Buffer(nil, maxAnswer)
	for in.Scan() {
		line := new(T)
		if err := json.Unmarshal(in.Bytes(), line); err != nil {
			return cmp.Or(in.Err(), fmt.Errorf("the server's answer is not a Quern response: %w", err)) // a line that breaks off is no JSON
		}
		if err := each(line); err != nil {
			return err
		}
	}
	if errors.Is(in.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("a line of the answer is longer than %d MiB: it is not a Quern response", maxAnswer>>20)
	}
	return in.Err()
}

func (c *Client) failure(resp *http.Response) error {
	var reply wire.Error
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&reply); err != nil || reply.Error == "" {
		return fmt.Errorf("%s answered %s, which is not a Quern response: check the URL", c.Name(), resp.Status)
	}
	switch after := resp.Header.Get("Retry-After"); {
	case resp.StatusCode == http.StatusBadRequest:
		return &RefusedError{reply.Error}
	case resp.StatusCode == http.StatusConflict:
		return &ConflictError{reply.Error}
	case reply.ErrorType == wire.NotFound, reply.ErrorType == wire.Forbidden:
		return errors.New(reply.Error)
	case resp.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("%s; give --token-file, or QUERN_TOKEN", reply.Error)
	case resp.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%s does not serve this request: it is an aggregator, or older than this program: %s", c.Name(), reply.Error)
	case after != "":
		return fmt.Errorf("%s; try again in %s s", reply.Error, after)
	}
	return fmt.Errorf("%s: %s", resp.Status, reply.Error)
}
