package promapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/operate/deletion"
)

// deleter records requests.
type deleter struct {
	asked    []string
	warnings []string
	err      error
}

func (d *deleter) Delete(ctx context.Context, startMs, endMs int64, sets ...[]*labels.Matcher) (deletion.Result, error) {
	d.asked = append(d.asked, fmt.Sprint(startMs, " ", endMs, " ", sets))
	if d.err != nil {
		return deletion.Result{}, d.err
	}
	return deletion.Result{Series: 1, Samples: 3600, Rows: 3, Warnings: d.warnings}, ctx.Err()
}

const deleteSeries = "/api/v1/admin/tsdb/delete_series"

// The parameters are Prometheus', and time ranges include both ends.
func TestDeleteSeries(t *testing.T) {
	first, last := minTime.UnixMilli(), maxTime.UnixMilli()
	for _, method := range []string{http.MethodPost, http.MethodPut} {
		for form, want := range map[string]string{
			"match[]=up": fmt.Sprintf(`%d %d [[__name__="up"]]`, first, last+1),
			"match[]=up&match[]=" + url.QueryEscape(`{job=~"a|b",x=""}`) + "&start=10&end=10.5": `10000 10501 [[__name__="up"] [job=~"a|b" x=""]]`,
			"match[]=up&start=1970-01-01T00:00:01Z":                                             fmt.Sprintf(`1000 %d [[__name__="up"]]`, last+1),
		} {
			d := &deleter{}
			h := newAPI(t, func(o *Options) { o.Deleter = d })
			code, body := ask(t, h, http.MethodPost, deleteSeries+"?"+form)
			require.Equal(t, http.StatusNoContent, code, body)
			require.Empty(t, body)
			require.Equal(t, []string{want}, d.asked)

			d.asked = nil
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, deleteSeries+"?"+form, http.NoBody))
			require.Equal(t, http.StatusNoContent, w.Code)
			require.Equal(t, "series=1, samples=3600, rows=3", w.Header().Get("Quern-Deleted"))
			require.Equal(t, []string{want}, d.asked)
		}
	}
}

// Warnings go into a header, since there is no body.
func TestDeleteSeriesWarns(t *testing.T) {
	h := newAPI(t, func(o *Options) { o.Deleter = &deleter{warnings: []string{"one", "two"}} })
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, deleteSeries+"?match[]=up", http.NoBody))
	require.Equal(t, http.StatusNoContent, w.Code)
	require.ElementsMatch(t, []string{"one", "two"}, w.Header().Values("Quern-Warning"))
}

// Errors are Prometheus', and then nothing is deleted.
func TestDeleteSeriesRefuses(t *testing.T) {
	for form, want := range map[string]string{
		"":                       `{"status":"error","errorType":"bad_data","error":"no match[] parameter provided"}`,
		"match[]=up{":            `{"status":"error","errorType":"bad_data","error":"invalid parameter \"match[]\": 1:4: parse error: unexpected end of input inside braces"}`,
		"match[]=up&match[]=up{": `{"status":"error","errorType":"bad_data","error":"invalid parameter \"match[]\": 1:4: parse error: unexpected end of input inside braces"}`,
		"match[]=" + url.QueryEscape(`{job=~".*"}`): `{"status":"error","errorType":"bad_data","error":"invalid parameter \"match[]\": match[] must contain at least one non-empty matcher"}`,
		"match[]=up&start=dawn":                     `{"status":"error","errorType":"bad_data","error":"invalid parameter \"start\": invalid time value for 'start': cannot parse \"dawn\" to a valid timestamp"}`,
		"match[]=up&end=dusk":                       `{"status":"error","errorType":"bad_data","error":"invalid parameter \"end\": invalid time value for 'end': cannot parse \"dusk\" to a valid timestamp"}`,
		"match[]=up&from=5":                         `{"status":"error","errorType":"bad_data","error":"unknown parameter \"from\": /api/v1/admin/tsdb/delete_series accepts match[], start, end"}`,
		"match[]=up&start=2&end=1":                  `{"status":"error","errorType":"bad_data","error":"invalid parameter \"end\": end timestamp must not be before start time"}`,
	} {
		d := &deleter{}
		code, body := ask(t, newAPI(t, func(o *Options) { o.Deleter = d }), http.MethodPost, deleteSeries+"?"+form)
		require.Equal(t, http.StatusBadRequest, code, form)
		require.Equal(t, want, body)
		require.Empty(t, d.asked)
	}

	off := httptest.NewRecorder()
	newAPI(t, nil).ServeHTTP(off, httptest.NewRequestWithContext(t.Context(), http.MethodPost, deleteSeries+"?match[]=up", http.NoBody))
	require.Equal(t, http.StatusForbidden, off.Code)
	require.JSONEq(t, `{"status":"error","errorType":"forbidden","error":"deleting series is turned off: start the server with --enable-admin-api"}`,
		off.Body.String())
	require.Empty(t, off.Header().Get("Retry-After"), "it does not come by waiting")

	code, body := ask(t, newAPI(t, func(o *Options) { o.Deleter = &deleter{err: errors.New("broken")} }), http.MethodPost, deleteSeries+"?match[]=up")
	require.Equal(t, http.StatusInternalServerError, code)
	require.JSONEq(t, `{"status":"error","errorType":"internal","error":"broken"}`, body)

	d := &deleter{}
	h := newAPI(t, func(o *Options) { o.Deleter = d })
	code, _ = ask(t, h, http.MethodGet, deleteSeries+"?match[]=up")
	require.Equal(t, http.StatusMethodNotAllowed, code)
	require.Empty(t, d.asked)
	for _, other := range []string{"snapshot", "clean_tombstones"} {
		code, _ = ask(t, h, http.MethodPost, "/api/v1/admin/tsdb/"+other)
		require.Equal(t, http.StatusNotFound, code)
	}

	// A client that disconnects does not count as a failure of the store.
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(gone, http.MethodPost, deleteSeries+"?match[]=up", http.NoBody))
	require.Equal(t, statusClientGone, w.Code)
}
