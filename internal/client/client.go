// Package client asks a Quern server over HTTP, for the commands that people operate it with.
package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// Client asks one server.
type Client struct {
	// URL is such as http://127.0.0.1:9095.
	URL string
	// HTTP is whom requests go by. The default is http.DefaultClient.
	HTTP *http.Client
}

// RefusedError is what a server says of a request that cannot be answered as asked.
type RefusedError struct{ Message string }

// Error implements error.
func (e *RefusedError) Error() string { return e.Message }

// Refused says whether err is a mistake in what the server was asked for.
func Refused(err error) bool {
	var refused *RefusedError
	return errors.As(err, &refused)
}

// Do asks with a form, which is in the URL of a GET and in the body of all else. The answer is one that says 200; its
// body is the caller's to close.
func (c *Client) Do(ctx context.Context, method, path string, form url.Values) (*http.Response, error) {
	u, err := url.Parse(c.URL)
	if err != nil {
		return nil, err
	}
	u = u.JoinPath(path)
	var body io.Reader
	if method == http.MethodGet {
		u.RawQuery = form.Encode()
	} else {
		body = strings.NewReader(form.Encode())
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	asked := c.HTTP
	if asked == nil {
		asked = http.DefaultClient
	}
	resp, err := asked.Do(req)
	if err != nil {
		return nil, fmt.Errorf("the server is not there: %w", err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, c.failure(resp)
}

func (c *Client) failure(resp *http.Response) error {
	var reply struct{ Error string }
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&reply); err != nil || reply.Error == "" {
		return fmt.Errorf("%s answers %s, which is not Quern's", c.URL, resp.Status)
	}
	switch after := resp.Header.Get("Retry-After"); {
	case resp.StatusCode == http.StatusBadRequest:
		return &RefusedError{reply.Error}
	case resp.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%s takes no reports and answers no queries, or is older than this program: %s", c.URL, reply.Error)
	case after != "":
		return fmt.Errorf("%s; try again in %s s", reply.Error, after)
	}
	return fmt.Errorf("%s: %s", resp.Status, reply.Error)
}
