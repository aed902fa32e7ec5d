package commands

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/wire"
)

// unground returns the URL of a server with an hour of one sample whose row is missing. It has only what verifying asks
// for, and refuses to have the row ground again.
func unground(t *testing.T, hourMs int64) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", time.UnixMilli(hourMs+7_200_000).UTC().Format(http.TimeFormat))
		switch r.URL.Path {
		case wire.StatusPath:
			_, _ = io.WriteString(w, `{"levels":[{"level":"raw"},{"level":"1h","width_seconds":3600}],"buckets":[{"outstanding":[],"waiting":[]}]}`)
		case wire.ExportPath:
			fmt.Fprintf(w, `{"metric":{"__name__":"x","host":"<a>"},"values":[3],"timestamps":[%d]}`+"\n", hourMs)
		case wire.RollupsPath:
		case wire.ExplainPath:
			_, _ = io.WriteString(w, `{"series":[{"metric":{"__name__":"x","host":"<a>"},"levels":[{"level":"1h","verdict":"differs"}]}]}`)
		default:
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"status":"error","error":"not here"}`)
		}
	}))
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		s.Close()
	})
	return s.URL
}

func TestVerifyAsJSON(t *testing.T) {
	const hourMs = int64(1_763_722_800_000)
	moment := func(ms int64) metric.Moment {
		m, ok := metric.ParseMoment(fmt.Sprint(ms))
		require.True(t, ok)
		return m
	}
	cfg := config.Verify{
		Connection: config.Connection{URL: unground(t, hourMs)}, Match: "x",
		Start: moment(hourMs), End: moment(hourMs + 3_600_000), Limit: 100, JSON: true,
	}
	var out, errs bytes.Buffer
	require.EqualError(t, Verify(t.Context(), cfg, &out, &errs), "1 rows differ from their samples")
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	require.Len(t, lines, 2, out.String())
	require.Contains(t, lines[0], `"host":"<a>"`)
	require.JSONEq(t, `{"difference":{"kind":"missing","metric":{"__name__":"x","host":"<a>"},"level":"1h","start":1763722800000,"end":1763726400000,
		"fields":[{"name":"count","row":"","samples":"1"}]}}`, lines[0])
	require.JSONEq(t, `{"status":"success","verified":{"start":1763722800000,"end":1763726400000,"series":1,"samples":1,
		"levels":[{"level":"1h","compared":1,"different":1,"pending":0,"not_ground":0,"expired":0,"unreadable":0}],"damaged":0,"damaged_rows":0}}`, lines[1])
	require.Empty(t, errs.String())

	// All are counted, also those that are not listed.
	cfg.Limit = 0
	out.Reset()
	require.EqualError(t, Verify(t.Context(), cfg, &out, &errs), "1 rows differ from their samples")
	require.Equal(t, lines[1]+"\n", out.String())

	// A repair that fails does not look like a success.
	cfg.Repair = true
	out.Reset()
	require.ErrorContains(t, Verify(t.Context(), cfg, &out, &errs), "not here")
	require.NotContains(t, out.String(), `"status"`)
	require.Contains(t, out.String(), `"verified"`)

	require.ErrorContains(t, Verify(t.Context(), cfg, full{}, &errs), "the disk is full")

	cfg.Repair, cfg.JSON = false, false
	out.Reset()
	require.Error(t, Verify(t.Context(), cfg, &out, &errs))
	require.Contains(t, out.String(), "1h: 1 rows compared, 1 differ\n")
}

// full is an output that takes nothing.
type full struct{}

// Write implements io.Writer.
func (full) Write([]byte) (int, error) { return 0, errors.New("the disk is full") }
