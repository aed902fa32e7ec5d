package collectd_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/stretchr/testify/assert"

	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/protocol/collectd"
	"github.com/quern/quern/internal/protocol/push"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func postCollectd(tb testing.TB, h http.Handler, body string) *httptest.ResponseRecorder {
	tb.Helper()
	r := httptest.NewRequestWithContext(tb.Context(), http.MethodPost, collectd.Path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestCollectd(t *testing.T) {
	const load = `{"values":[0.5,null,0.25],"dstypes":["gauge","gauge","gauge"],"dsnames":["shortterm","midterm","longterm"],` +
		`"time":1280959128.123,"interval":10.000,"host":"web1","plugin":"load","plugin_instance":"","type":"load","type_instance":"","meta":{"x":[1]}}`
	for _, c := range []struct {
		name, body string
		code       int
		kept       string
		reply      string
	}{
		{
			"as collectd's manual has it", "[" + load + "]", 200,
			": \"collectd_load_shortterm\" \"instance\"=\"web1\" @1280959128123 0.5\n: \"collectd_load_longterm\" \"instance\"=\"web1\" @1280959128123 0.25\n",
			`{"accepted":2,"rejected":[]}`,
		},
		{
			"instances and counters",
			`[{"values":[1,2],"dstypes":["derive","counter"],"dsnames":["rx","tx"],"time":1.0005,"host":"h","plugin":"interface","plugin_instance":"eth0","type":"if_octets","type_instance":"a"},` +
				`{"values":[7],"dstypes":["gauge"],"dsnames":["value"],"time":1,"host":"h","plugin":"memory","plugin_instance":"","type":"memory","type_instance":"used"}]`, 200,
			`: "collectd_interface_if_octets_rx_total" "instance"="h" "interface"="eth0" "type"="a" @1000 1` + "\n" +
				`: "collectd_interface_if_octets_tx_total" "instance"="h" "interface"="eth0" "type"="a" @1000 2` + "\n" +
				`: "collectd_memory" "instance"="h" "memory"="used" @1000 7` + "\n",
			`{"accepted":3,"rejected":[]}`,
		},
		{"nothing", "[]", 200, "", `{"accepted":0,"rejected":[]}`},
		{"no value", strings.NewReplacer("0.5", "null", "0.25", "null").Replace("[" + load + "]"), 200, "", `{"accepted":0,"rejected":[]}`},
		{
			"one of two", `[7,{"values":[7],"dstypes":["gauge"],"dsnames":["value"],"host":"h","plugin":"p","type":"t"}]`, 200,
			": \"collectd_p_t\" \"instance\"=\"h\" now 7\n",
			`{"accepted":1,"rejected":[{"index":0,"reason":"invalid_value","message":"want a value list, which is an object"}]}`,
		},
		{"lengths", `[{"values":[7],"dstypes":[],"dsnames":["value"],"plugin":"p","type":"t"}]`, 400, "", "1 values have 0 dstypes and 1 dsnames"},
		{"types", `[{"values":[7],"dstypes":["gauge"],"dsnames":[3],"plugin":"p","type":"t"}]`, 400, "", "dsnames must not be a number"},
		{"a notification", `[{"labels":{},"annotations":{}}]`, 400, "", "a value list must have plugin, type and values"},
		{"no array", load, 400, "", "at byte 0: unexpected '{', want an array of value lists"},
		{"broken off", "[" + load + `,{"values":[`, 400, "collectd_load_longterm", `"accepted":2`},
		{"more behind", "[" + load + "]x", 400, "collectd_load_longterm", "want the end of the body"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := new(apitest.Appender)
			w := postCollectd(t, apitest.ReportServer(t, a, push.Limits{}), c.body)
			assert.Equal(t, c.code, w.Code, "%s", w.Body)
			assert.Contains(t, w.Body.String(), c.reply)
			if strings.Contains(c.kept, "\n") || c.kept == "" {
				assert.Equal(t, c.kept, a.String())
			} else {
				assert.Contains(t, a.String(), c.kept)
			}
		})
	}
	a := &apitest.Appender{Err: ingest.ErrBusy}
	w := postCollectd(t, apitest.ReportServer(t, a, push.Limits{}), "["+load+"]")
	assert.Equal(t, http.StatusTooManyRequests, w.Code)
	assert.Equal(t, "1", w.Header().Get("Retry-After"))
	w = postCollectd(t, apitest.ReportServer(t, new(apitest.Appender), push.Limits{Measurements: 1}), "["+load+"]")
	assert.Equal(t, http.StatusRequestEntityTooLarge, w.Code)
}
