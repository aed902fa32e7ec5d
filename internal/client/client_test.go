package client_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/api/compress"
	"github.com/quern/quern/internal/client"
	"github.com/quern/quern/internal/limits"
)

// TestCompressed: a client has answers compressed that come over a network, reads them as they were, with their trailers,
// and sees where they break off.
func TestCompressed(t *testing.T) {
	long := strings.Repeat("many words\n", 100_000)
	answers := compress.New(limits.NewBudget(4<<20, compress.AnswerBytes), limits.NewClients(nil))
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Accepted", r.Header.Get("Accept-Encoding"))
		answers.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			if r.URL.Path == "/refused" {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusBadRequest)
				_, _ = io.WriteString(w, `{"status":"error","error":"`+strings.Repeat("no, ", 1000)+`"}`)
				return
			}
			_, _ = io.WriteString(w, long)
			if r.URL.Path == "/half" {
				panic(http.ErrAbortHandler)
			}
			w.Header().Set(http.TrailerPrefix+"Quern-Warning", "a part is damaged")
		})).ServeHTTP(w, r)
	}))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.Start()
	defer s.Close()
	to := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, s.Listener.Addr().String())
	}}
	defer to.CloseIdleConnections()
	for host, accept := range map[string]string{
		"quern.example": "gzip", "192.0.2.1": "gzip", "[2001:db8::1]": "gzip",
		"localhost": "identity", "127.0.0.2": "identity", "[::1]": "identity", "[::ffff:127.0.0.1]": "identity",
	} {
		c := client.Client{URL: "http://" + host, HTTP: &http.Client{Transport: to}}
		resp, err := c.Do(t.Context(), http.MethodPost, "/", url.Values{"a": {"b"}})
		require.NoError(t, err)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, long, string(text))
		require.Equal(t, "a part is damaged", resp.Trailer.Get("Quern-Warning"), host)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, accept, resp.Header.Get("Accepted"), host)
		require.Equal(t, accept == "gzip", resp.Uncompressed, host)

		_, err = c.Do(t.Context(), http.MethodGet, "/refused", nil) //nolint:bodyclose // there is none
		require.True(t, client.Refused(err), "%v", err)

		resp, err = c.Do(t.Context(), http.MethodGet, "/half", nil)
		if err != nil {
			continue // nothing of it had been sent
		}
		_, err = io.ReadAll(resp.Body)
		require.Error(t, err)
		require.NoError(t, resp.Body.Close())
	}
}

// TestLines: lines come one by one, and a server cannot have a program hold one of any length.
func TestLines(t *testing.T) {
	read := func(text string) (got []int, err error) {
		return got, client.Lines(strings.NewReader(text), func(n *int) error { got = append(got, *n); return nil })
	}
	got, err := read("1\n2\n")
	require.NoError(t, err)
	require.Equal(t, []int{1, 2}, got)
	_, err = read("1\n{")
	require.ErrorContains(t, err, "not a Quern response")
	_, err = read("1" + strings.Repeat(" ", 32<<20) + "\n")
	require.EqualError(t, err, "a line of the answer is longer than 32 MiB: it is not a Quern response")
}
