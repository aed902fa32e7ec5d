package app

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/accesstest"
)

// BenchmarkQueryByToken asks a locked server by token, and an open one, in turns. It reports what the token costs as
// the ratio of both median times, and the same of a token that is bound to series.
func BenchmarkQueryByToken(b *testing.B) {
	started := func(s *server) {
		ctx, cancel := context.WithCancel(b.Context())
		_, end := serving(ctx, b, s)
		b.Cleanup(func() {
			cancel()
			require.NoError(b, <-end)
		})
		r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "http://127.0.0.1/api/v1/reports", strings.NewReader(`{"source":"a","measurements":[{"metric":"m","value":1}]}`))
		w := httptest.NewRecorder()
		if s.tokens != nil {
			_, text, err := s.tokens.Create(b.Context(), access.NewToken{Name: "b", Roles: access.Write})
			require.NoError(b, err)
			r.Header.Set("Authorization", "Bearer "+text)
		}
		s.http.ServeHTTP(w, r)
		require.Equal(b, http.StatusOK, w.Code, w.Body)
	}
	open := testServer(b)
	started(open)
	locked, _ := lockedServer(b, servesTLS)
	locked.keepDocuments(accesstest.NewMemory())
	started(locked)
	_, token, err := locked.tokens.Create(b.Context(), access.NewToken{Name: "a", Roles: access.Read})
	require.NoError(b, err)
	_, bound, err := locked.tokens.Create(b.Context(), access.NewToken{Name: "bound", Roles: access.Read, Match: []string{`{source=~"a|b"}`}})
	require.NoError(b, err)
	ask := func(s *server, header string) time.Duration {
		r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "http://127.0.0.1/api/v1/query?query=rate(m[5m])", http.NoBody)
		r.Header.Set("Authorization", header)
		w := httptest.NewRecorder()
		began := s.clk.Elapsed()
		s.http.ServeHTTP(w, r)
		took := s.clk.Elapsed() - began
		require.Equal(b, http.StatusOK, w.Code, w.Body)
		return took
	}
	took := inTurns(b,
		func() time.Duration { return ask(open, "") },
		func() time.Duration { return ask(locked, "Bearer "+token) },
		func() time.Duration { return ask(locked, "Bearer "+bound) },
	)
	b.ReportMetric(float64(took[1])/float64(took[0]), "with/without")
	b.ReportMetric(float64(took[2])/float64(took[0]), "bound/without")
}

// inTurns has each of some ways take its turn, over and over, and returns the median time of each. So what else the
// machine does falls on all of them, and long interruptions count for none.
func inTurns(b *testing.B, ways ...func() time.Duration) []time.Duration {
	b.Helper()
	all := make([][]time.Duration, len(ways))
	first := 0
	for b.Loop() {
		for i := range ways {
			way := (first + i) % len(ways) // nobody always comes after the same one
			all[way] = append(all[way], ways[way]())
		}
		first++
	}
	medians := make([]time.Duration, len(ways))
	for i, times := range all {
		slices.Sort(times)
		medians[i] = times[len(times)/2]
	}
	return medians
}
