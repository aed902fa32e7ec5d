package api

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
)

// timed is a reply that keeps its last deadline.
type timed struct {
	http.ResponseWriter
	by time.Time
}

func (d *timed) Write(p []byte) (int, error) { return len(p), nil }

// A reply that must end by some time does so whatever the clock is set to meanwhile.
func TestReplyEndsAlthoughTheClockIsSet(t *testing.T) {
	clk := clock.NewSimulated(time.Unix(1_700_000_000, 0))
	d := &timed{}
	w := &progressWriter{ResponseWriter: d, progress: newProgress(clk, 30*time.Second, func(by time.Time) error {
		d.by = by
		return nil
	})}
	left := func() time.Duration {
		_, err := w.Write([]byte{1})
		require.NoError(t, err)
		return d.by.Sub(clk.Now())
	}
	require.NoError(t, w.SetWriteDeadline(clk.Now().Add(-10*time.Second)))
	require.Equal(t, 20*time.Second, left())
	clk.Set(clk.Now().Add(5 * time.Second))
	for _, step := range []time.Duration{-time.Hour, 3 * time.Hour} {
		clk.Jump(step)
		require.Equal(t, 15*time.Second, left())
	}
	require.NoError(t, w.SetWriteDeadline(time.Time{}))
	require.Equal(t, 30*time.Second, left())
}

// The duration of a request is not negative when the clock is set back.
func TestDurationAlthoughTheClockIsSet(t *testing.T) {
	clk, reg := clock.NewSimulated(time.Unix(1_700_000_000, 0)), prometheus.NewRegistry()
	in, err := newInstruments(reg, clk, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	in.wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		clk.Set(clk.Now().Add(2 * time.Second))
		clk.Jump(-time.Hour)
	})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody))
	text, err := testutil.CollectAndFormat(in.seconds, expfmt.TypeTextPlain, "quern_http_request_duration_seconds")
	require.NoError(t, err)
	require.Contains(t, string(text), `quern_http_request_duration_seconds_sum{path="unmatched"} 2`)
}
