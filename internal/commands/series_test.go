package commands

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/config"
)

const cardinalityBody = `{"series":20000,"label_names":3,"label_pairs":1240,"metrics":[{"name":"cpu","series":1600},{"name":"","series":2}],
"labels":[{"name":"source","values":200,"series":20000,"bytes":5630000}],"values":[{"label":"mode","value":"\u001b[2Juser","series":4000}],
"sources":[{"name":"web-1","series":100}],"days":[{"start":1763596800000,"last":40,"met":0},{"start":1763683200000,"last":19950,"met":12}],
"met_since":1763700000000,"warnings":["the labels of up to 4 series cannot be read"]}`

func TestTopSeries(t *testing.T) {
	var asked url.Values
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.NoError(t, r.ParseForm())
		asked = r.Form
		_, _ = w.Write([]byte(cardinalityBody))
	}))
	defer s.Close()
	ask := func(cfg config.TopSeries) (out, warned string) {
		cfg.URL = s.URL
		var stdout, stderr bytes.Buffer
		require.NoError(t, TopSeries(t.Context(), cfg, &stdout, &stderr))
		return stdout.String(), stderr.String()
	}
	out, warned := ask(config.TopSeries{Limit: 10, Days: 2, Label: "mode", Match: []string{"cpu", "mem"}})
	assert.Equal(t, `20000 series, 3 labels, 1240 values

METRIC  SERIES  SHARE
cpu     1600    8.0 %
-       2       0.0 %

LABEL   VALUES  SERIES  MEMORY
source  200     20000   5.6 MB

VALUE               SERIES  SHARE
mode="\x1b[2Juser"  4000    20.0 %

SOURCE  SERIES  SHARE
web-1   100     0.5 %

DAY         NEW  LAST SAMPLE
2025-11-20  -    40
2025-11-21  12   19950
New series are counted from 2025-11-21T04:40:00Z on, when the server started.
`, out)
	assert.Equal(t, "warning: the labels of up to 4 series cannot be read\n", warned)
	assert.Equal(t, url.Values{"limit": {"10"}, "days": {"2"}, "label": {"mode"}, "match[]": {"cpu", "mem"}}, asked)

	out, _ = ask(config.TopSeries{Limit: 1, By: "source"})
	assert.NotContains(t, out, "METRIC")
	assert.Contains(t, out, "web-1")
	assert.Equal(t, url.Values{"limit": {"1"}}, asked)

	out, _ = ask(config.TopSeries{Limit: 1, JSON: true})
	assert.JSONEq(t, cardinalityBody, out)
	require.ErrorContains(t, TopSeries(t.Context(), config.TopSeries{Connection: config.Connection{URL: answering(t, 200, `<html>`)}}, &bytes.Buffer{}, nil), "not a Quern response")
}
