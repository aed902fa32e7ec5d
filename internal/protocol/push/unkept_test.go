package push

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
)

// The status names a bounded number of senders, and logging is throttled.
func TestUnkeptIsBounded(t *testing.T) {
	var log bytes.Buffer
	clk := clock.NewSimulated(time.UnixMilli(1_732_161_600_000))
	u, err := newLedger(clk, slog.New(slog.NewTextHandler(&log, nil)), nil)
	require.NoError(t, err)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/write", nil)
	for i := range 3 * maxUnkept {
		r.Header.Set("User-Agent", fmt.Sprintf("sender %d", i))
		u.Note(r, "r", 1, "m")
		u.Note(r, "r", 1, "m")
	}
	list := u.List()
	require.Len(t, list, maxUnkept+1)
	i := slices.IndexFunc(list, func(u Unkept) bool { return u.Sender == otherSenders })
	require.EqualValues(t, 4*maxUnkept, list[i].Count)
	require.Equal(t, maxUnkept+1, bytes.Count(log.Bytes(), []byte("\n")))
	clk.Set(clk.Now().Add(logEvery))
	u.Note(r, "r", 1, "m")
	require.Equal(t, maxUnkept+2, bytes.Count(log.Bytes(), []byte("\n")))
	require.Contains(t, log.String(), "measurements_since_start=1025")
}
