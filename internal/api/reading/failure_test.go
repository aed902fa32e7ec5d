package reading_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/api/reading"
	"github.com/quern/quern/internal/limits"
)

// lateReader is a client that reads a reply late.
type lateReader struct {
	*httptest.ResponseRecorder
	reading func()
}

func (l *lateReader) Write(p []byte) (int, error) {
	l.reading()
	return l.ResponseRecorder.Write(p)
}

// TestWhatAFailureHolds: while a failure is sent, the request has no turn, and nothing is charged for
// it. Its message is short.
func TestWhatAFailureHolds(t *testing.T) {
	const room = 1 << 30
	failed := errors.New("it failed: " + strings.Repeat("\u00e4", 500_000))
	for name, sent := range map[string]string{"at once": "", "in the middle": strings.Repeat("x", 100_000)} {
		t.Run(name, func(t *testing.T) {
			metrics := prometheus.NewRegistry()
			turns := reading.Turns{Queries: limits.NewTurns(limits.TurnOptions{N: 1, Name: "queries", Clients: limits.NewClients(nil), Metrics: metrics})}
			forms := limits.NewBudget(room, 0)
			claim, other := forms.Claim(limits.Client{}), forms.Claim(limits.Client{})
			require.True(t, claim.Grow(1))
			failing := false
			h := turns.Query(func(writeLine func(string) error) error {
				if sent != "" {
					require.NoError(t, writeLine(sent))
				}
				failing = true
				return failed
			})
			read := false
			w := &lateReader{ResponseRecorder: httptest.NewRecorder(), reading: func() {
				if !failing {
					return
				}
				read = true
				require.NoError(t, testutil.GatherAndCompare(metrics, strings.NewReader(
					"# HELP quern_turns Requests in progress, by what they read.\n# TYPE quern_turns gauge\nquern_turns{kind=\"queries\"} 0\n"), "quern_turns"))
				require.True(t, other.Grow(room))
			}}
			r := httptest.NewRequestWithContext(limits.WithClaim(t.Context(), &claim), http.MethodGet, "/query", nil)
			if sent == "" {
				h.ServeHTTP(w, r)
				require.Equal(t, http.StatusInternalServerError, w.Code)
			} else {
				require.PanicsWithValue(t, http.ErrAbortHandler, func() { h.ServeHTTP(w, r) })
			}
			require.True(t, read)
			message := strings.TrimPrefix(w.Body.String(), sent+"\n")
			require.Less(t, len(message), 6<<10)
			require.Contains(t, message, "bytes more)")
			require.NotContains(t, message, "\ufffd")
		})
	}

	hs, _ := operateServer(t)
	form := url.Values{"match[]": {`cpu{a=~"(` + strings.Repeat("\u00e4", 20_000) + `"}`}}
	code, text, _ := request(t, http.MethodPost, hs+"/api/v1/explain", form.Encode())
	require.Equal(t, http.StatusBadRequest, code)
	require.Less(t, len(text), 6<<10)
	require.Contains(t, text, "bytes more)")
}
