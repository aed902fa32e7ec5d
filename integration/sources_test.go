package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/process"
)

// ok sends a request that must succeed and returns the reply's body.
func ok(t *testing.T, r process.Reply, err error) string {
	t.Helper()
	require.NoError(t, err)
	require.Contains(t, []int{200, 204}, r.Code, "%s", r.Body)
	return string(r.Body)
}

// instant returns the value of a query that gives one, and none for a query without a result.
func instant(t *testing.T, p *process.Process, query string, at time.Time) string {
	t.Helper()
	r, err := p.Get("/api/v1/query", url.Values{"query": {query}, "time": {fmt.Sprint(at.Unix())}})
	var reply struct {
		Data struct{ Result []struct{ Value []any } }
	}
	require.NoError(t, json.Unmarshal([]byte(ok(t, r, err)), &reply))
	if len(reply.Data.Result) == 0 {
		return ""
	}
	require.Len(t, reply.Data.Result, 1, "%s", r.Body)
	return fmt.Sprint(reply.Data.Result[0].Value[1])
}

// TestExportIntoTheSameServer: an import of a server's own export changes nothing, whatever protocols its series came
// by. A correction in it shows everywhere, and so does one that comes after it.
func TestExportIntoTheSameServer(t *testing.T) {
	t.Parallel()
	p := serve(t, t.TempDir())
	begin := time.Now().Add(-2 * time.Hour).Truncate(time.Hour).Add(10 * time.Minute)
	write := func(line string) {
		t.Helper()
		r, err := p.Post("/write?precision=s", []byte(line))
		ok(t, r, err)
	}
	for i := range 5 {
		write(fmt.Sprintf("it_disk,hostname=web1 used=%d %d", 10+i, begin.Unix()+int64(i)))
	}
	write(fmt.Sprintf("it_win_cpu,host=PC1,instance=_Total load=1 %d", begin.Unix()))
	r, err := p.Post("/v1/metrics", fmt.Appendf(nil, `{"resourceMetrics":[{"resource":{"attributes":[{"key":"host.name","value":{"stringValue":"pc1"}}]},
		"scopeMetrics":[{"metrics":[{"name":"it.load","gauge":{"dataPoints":[{"timeUnixNano":"%d","asDouble":1}]}}]}]}]}`, begin.UnixNano()),
		"Content-Type", "application/json")
	ok(t, r, err)

	export := func() string {
		r, err := p.Get("/api/v1/export", process.Within(process.OfTests, 24*time.Hour))
		return ok(t, r, err)
	}
	before := export()
	require.Equal(t, 3, bytes.Count([]byte(before), []byte("\n")))
	r, err = p.Post("/api/v1/import", []byte(before))
	require.Contains(t, ok(t, r, err), `{"accepted":7,`)
	require.Equal(t, before, export())

	r, err = p.Post("/api/v1/import", bytes.ReplaceAll([]byte(before), []byte("[10,"), []byte("[1000,")))
	ok(t, r, err)
	read := func(path string, more url.Values) string {
		q := process.Within("it_disk_used", 24*time.Hour)
		for k, v := range more {
			q[k] = v
		}
		r, err := p.Get(path, q)
		return ok(t, r, err)
	}
	check := func(first, sum string) {
		t.Helper()
		assert.Contains(t, read("/api/v1/export", nil), fmt.Sprintf("[%s,11,12,13,14]", first))
		assert.Contains(t, read("/api/v1/summary", nil), fmt.Sprintf(`"count":5,"sum":%s`, sum))
		assert.Contains(t, read("/api/v1/points", url.Values{"buckets": {"1"}}), `"count":[5]`)
		assert.Equal(t, first, instant(t, p, "it_disk_used", begin))
		assert.Equal(t, "5", instant(t, p, "count_over_time(it_disk_used[1h])", begin.Add(10*time.Minute)))
		assert.Equal(t, sum, instant(t, p, "sum_over_time(it_disk_used[1h])", begin.Add(10*time.Minute)))
	}
	check("1000", "1050")
	write(fmt.Sprintf("it_disk,hostname=web1 used=77 %d", begin.Unix()))
	check("77", "127")
	p.Stop()
}

// TestRowsOfTwoProtocols: samples that two protocols bring for one series are in one row.
func TestRowsOfTwoProtocols(t *testing.T) {
	t.Parallel()
	p := serve(t, t.TempDir(), seconds...)
	at := time.Now().Add(-10 * time.Minute).Truncate(time.Minute)
	var lines, values, times bytes.Buffer
	for i := range 30 {
		fmt.Fprintf(&lines, "it_disk,hostname=web1 used=1 %d\n", at.UnixMilli()+int64(i))
	}
	for i := range 20 {
		fmt.Fprintf(&values, ",%d", 2)
		fmt.Fprintf(&times, ",%d", at.UnixMilli()+100+int64(i))
	}
	r, err := p.Post("/write?precision=ms", lines.Bytes())
	ok(t, r, err)
	r, err = p.Post("/api/v1/import", fmt.Appendf(nil, `{"metric":{"__name__":"it_disk_used","hostname":"web1"},"values":[%s],"timestamps":[%s]}`,
		values.Bytes()[1:], times.Bytes()[1:]))
	ok(t, r, err)
	for _, level := range []string{"1s", "2s", "4s"} {
		process.Eventually(t, "the row of "+level, func() error {
			q := process.Within("it_disk_used", time.Hour)
			q.Set("level", level)
			rows, err := process.Lines[struct {
				Count int
				Sum   float64
			}](p, "/api/v1/rollups", q)
			if err == nil && (len(rows) != 1 || rows[0].Count != 50 || rows[0].Sum != 70) {
				err = fmt.Errorf("%v", rows)
			}
			return err
		})
	}
	p.Stop()
}
