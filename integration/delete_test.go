package integration

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/oracle"
	"github.com/quern/quern/integration/process"
)

// TestDeleteSeries: deleted samples are gone from raw and, run after run, from the levels above,
// and stay gone over a restart.
func TestDeleteSeries(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := serve(t, dir, append(slices.Clone(seconds), "--enable-admin-api")...)

	// Five closed seconds and the open one.
	now := time.Now().UnixMilli()
	from, to := now-4000, now-1500
	var left oracle.Oracle
	for ms := now - 5000; ms <= now; ms += 100 {
		_, err := left.Report(t.Context(), p, []process.Sample{{Source: "a", Metric: "it_kept", Ms: ms, Value: float64(ms - now)}})
		require.NoError(t, err)
		some := []process.Sample{{Source: "a", Metric: "it_some", Ms: ms, Value: float64(ms - now)}}
		if ms < from || to < ms {
			_, err = left.Report(t.Context(), p, some)
		} else {
			_, err = p.Report(t.Context(), some)
		}
		require.NoError(t, err)
		_, err = p.Report(t.Context(), []process.Sample{{Source: "a", Metric: "it_gone", Ms: ms, Value: 1}})
		require.NoError(t, err)
	}
	process.Eventually(t, "rows of what is to be deleted", func() error {
		rows, err := process.Lines[struct{}](p, "/api/v1/rollups", withLevel("it_gone", "4s"))
		if err == nil && len(rows) == 0 {
			err = fmt.Errorf("no row")
		}
		return err
	})

	const path = "/api/v1/admin/tsdb/delete_series"
	del := func(form url.Values) process.Reply {
		t.Helper()
		r, err := p.Post(path, []byte(form.Encode()), "Content-Type", "application/x-www-form-urlencoded")
		require.NoError(t, err)
		return r
	}
	at := func(ms int64) []string { return []string{strconv.FormatFloat(float64(ms)/1000, 'f', 3, 64)} }
	for range 2 { // the second time there is nothing left to delete
		for _, form := range []url.Values{
			{"match[]": {"it_some"}, "start": at(from), "end": at(to)},
			{"match[]": {"it_gone"}},
		} {
			r := del(form)
			require.Equal(t, http.StatusNoContent, r.Code, "%s", r.Body)
			require.Empty(t, r.Body)
		}
	}
	require.NoError(t, left.Raw(p), "it is gone before the reply")
	assert.NotEmpty(t, p.Wrote(`samples deleted.* series=1 samples=51`))

	query := func(q string) string {
		t.Helper()
		r, err := p.Get("/api/v1/query", url.Values{"query": {q}})
		require.NoError(t, err)
		return string(r.Body)
	}
	assert.JSONEq(t, `{"status":"success","data":{"resultType":"vector","result":[]}}`, query("count_over_time(it_gone[1m])"))
	assert.Contains(t, query("count_over_time(it_some[1m])"), `"25"]}`)
	right := func() error {
		rows, err := process.Lines[struct{}](p, "/api/v1/rollups", withLevel("it_gone", "4s"))
		if err == nil && len(rows) > 0 {
			err = fmt.Errorf("%d rows", len(rows))
		}
		if err != nil {
			return err
		}
		return left.Check(p)
	}
	process.Eventually(t, "rows of what is left", right)
	p.Stop()

	p = serve(t, dir, seconds...)
	require.NoError(t, right())
	r := del(url.Values{"match[]": {"it_kept"}})
	assert.Equal(t, http.StatusForbidden, r.Code)
	assert.JSONEq(t, `{"status":"error","errorType":"forbidden","error":"deleting series is turned off: start the server with --enable-admin-api"}`, string(r.Body))
	require.NoError(t, left.Raw(p))
	p.Stop()
}

func withLevel(selector, level string) url.Values {
	v := process.Within(selector, time.Hour)
	v.Set("level", level)
	return v
}
