package grafana_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/documents/dashboard"
	"github.com/quern/quern/internal/documents/dashboard/grafana"
)

// theirs is a dashboard as Grafana exports it, with what has a counterpart and what has none.
const theirs = `{"__inputs":[{"name":"DS","type":"datasource"}],"title":"Shop","tags":["shop"],"schemaVersion":39,"refresh":"1m",
 "time":{"from":"now-3h","to":"now"},
 "templating":{"list":[
  {"name":"ds","type":"datasource","query":"prometheus"},
  {"name":"job","type":"query","label":"Job","query":{"query":"label_values(up{env=\"prod\"}, job)","refId":"A"},"includeAll":true,"multi":true,"current":{"value":["$__all"]}},
  {"name":"node","type":"query","definition":"label_values(node)","regex":"/a/","current":{"value":"n1"}},
  {"name":"q","type":"custom","query":"half : 0.5, 0.9, a\\,b","current":{"value":"0.9"}},
  {"name":"step","type":"interval","query":"1m,5m","auto":true,"current":{"value":"$__auto_interval_step"}},
  {"name":"text","type":"textbox","query":"x","current":{}},
  {"name":"sql","type":"query","query":"select 1","current":{"value":"7"}},
  {"name":"f","type":"adhoc"}]},
 "annotations":{"list":[{"builtIn":1},{"name":"deploys"}]},
 "panels":[
  {"type":"row","title":"Web","gridPos":{"x":0,"y":0,"w":24,"h":1}},
  {"type":"timeseries","title":"Requests","gridPos":{"x":0,"y":1,"w":12,"h":9},"fieldConfig":{"defaults":{"unit":"reqps","min":0,"decimals":1,
    "custom":{"stacking":{"mode":"normal"},"thresholdsStyle":{"mode":"line"}},"thresholds":{"steps":[{"color":"green","value":null},{"color":"orange","value":10},{"color":"red","value":20}]}},"overrides":[{"matcher":{}}]},
   "targets":[{"refId":"A","expr":"rate(http_requests_total{job=~\"$job\",node=\"[[node]]\"}[${__rate_interval}])","legendFormat":"{{job}}"},{"refId":"B","expr":"up","hide":true},{"refId":"C","rawSql":"select"}]},
  {"type":"piechart","title":"Disks","gridPos":{"x":12,"y":1,"w":12,"h":9}},
  {"type":"row","title":"More","collapsed":true,"gridPos":{"x":0,"y":10,"w":24,"h":1},"panels":[
    {"type":"gauge","title":"Free","gridPos":{"x":0,"y":40,"w":6,"h":4},"fieldConfig":{"defaults":{"unit":"percentunit","max":"1","min":0,"thresholds":{"steps":[{"color":"red","value":null},{"color":"green","value":0.2}]}}},"targets":[{"expr":"free{a=\"$nobody\"}","legendFormat":"__auto"}]},
    {"type":"text","title":"Notes","gridPos":{"x":6,"y":40,"w":6,"h":4},"options":{"mode":"markdown","content":"# Hello"}}]},
  {"type":"singlestat","title":"Old","gridPos":{"x":0,"y":11,"w":4,"h":3},"format":"ms","thresholds":"80,90","targets":[{"expr":"latency"}]},
  {"type":"bargauge","title":"Bars","gridPos":{"x":20,"y":11,"w":9,"h":3},"targets":[{"expr":"label_replace(a,\"b\",\"$1\",\"c\",\"(.*)\")"}]}]}`

func TestConvert(t *testing.T) {
	d, notes, err := grafana.Convert([]byte(theirs))
	require.NoError(t, err)
	require.Equal(t, "Shop", d.Title)
	require.Equal(t, []string{"3h", "1m"}, []string{d.Range, d.Refresh})
	require.Equal(t, []dashboard.Variable{
		{Name: "job", Label: "Job", Kind: "label", Of: "job", Selector: `up{env="prod"}`, Multi: true, Values: []string{}, Value: []string{}},
		{Name: "node", Kind: "label", Of: "node", Values: []string{}, Value: []string{"n1"}},
		{Name: "q", Kind: "list", Values: []string{"0.5", "0.9", "a,b"}, Value: []string{"0.9"}},
		{Name: "step", Kind: "list", Values: []string{"1m", "5m"}, Value: []string{}},
		{Name: "text", Kind: "text", Values: []string{}, Value: []string{"x"}},
		{Name: "sql", Kind: "text", Values: []string{}, Value: []string{"7"}},
	}, d.Variables)

	var shown []string
	for _, p := range d.Panels {
		shown = append(shown, p.Kind+" "+p.Title+p.Text)
	}
	require.Equal(t, []string{"text # Web", "timeseries Requests", "text # More", "gauge Free", "text Notes# Hello", "stat Old", "stat Bars"}, shown)
	requests := d.Panels[1]
	require.Equal(t, dashboard.Rectangle{Y: 2, W: 12, H: 9}, requests.At)
	require.Equal(t, []dashboard.Query{{Expr: `rate(http_requests_total{job=~"$job",node="${node}"}[$__rate_interval])`, Legend: "{{job}}"}}, requests.Queries)
	require.Equal(t, "requests/s", requests.Unit)
	require.True(t, requests.Stack)
	require.Equal(t, []dashboard.Threshold{{From: 10, Level: "warn"}, {From: 20, Level: "bad"}}, requests.Thresholds)
	free := d.Panels[3]
	require.Equal(t, dashboard.Rectangle{Y: 13, W: 6, H: 4}, free.At)
	require.Equal(t, "ratio", free.Unit)
	require.InDelta(t, 1, *free.Max, 0)
	require.Equal(t, []dashboard.Threshold{{From: 0, Level: "bad"}, {From: 0.2, Level: "ok"}}, free.Thresholds)
	require.Equal(t, "ms", d.Panels[5].Unit)
	require.Equal(t, dashboard.Rectangle{X: 15, Y: d.Panels[5].At.Y, W: 9, H: 3}, d.Panels[6].At)

	all := strings.Join(notes, "\n")
	for _, want := range []string{
		`variable "ds": there is one data source, Quern itself; left out`, `variable "node": its regular expression is left out`,
		`variable "step": the value auto is left out`, `variable "sql": the query "select 1" is not supported, it became a text`,
		`variable "f": kind adhoc is not supported, left out`, `annotations are left out`, `panel "Disks": kind piechart is not supported, left out`,
		`panel "Requests": overrides for single series are left out`, `panel "Requests", query B: it is hidden, left out`,
		`panel "Requests", query C: it has no PromQL expression, left out`, `panel "Free", query 1: there is no variable $nobody`,
		`panel "Old": its thresholds are left out`, `panel "Bars": kind bargauge became stat`,
	} {
		require.Contains(t, all, want)
	}
	require.NotContains(t, all, "$1")
	require.Len(t, notes, 13)
}

// TestConvertForms: the API's form, Quern's own, and what is neither.
func TestConvertForms(t *testing.T) {
	d, _, err := grafana.Convert([]byte(`{"meta":{"slug":"x"},"dashboard":` + theirs + `}`))
	require.NoError(t, err)
	require.Len(t, d.Panels, 7)
	d, notes, err := grafana.Convert([]byte(`{"format":1,"title":"Hosts"}`))
	require.NoError(t, err)
	require.Empty(t, notes)
	require.Equal(t, "Hosts", d.Title)
	for text, want := range map[string]string{
		`{"apiVersion":"v2","spec":{"elements":{}}}`: "schema v2",
		`{"title":"Old","rows":[]}`:                  "before version 5",
		`{"a":1}`:                                    "this is no dashboard",
		`[]`:                                         "must begin with {",
		`{`:                                          "line 1",
		`{"format":9,"panels":[]}`:                   "made by a newer Quern",
	} {
		_, _, err := grafana.Convert([]byte(text))
		require.ErrorContains(t, err, want)
	}
}

// TestConvertMany: what is beyond the limits is refused, with its place.
func TestConvertMany(t *testing.T) {
	_, _, err := grafana.Convert([]byte(`{"title":"t","panels":[` + strings.Repeat(`{"type":"stat","targets":[{"expr":"a"}]},`, 201) + `{}]}`))
	require.ErrorContains(t, err, "panels: there are more than 200")
	_, _, err = grafana.Convert([]byte(`{"title":"t","panels":[{"type":"stat","title":"` + strings.Repeat("x", 5000) + `","targets":[{"expr":"a"}]}]}`))
	require.ErrorContains(t, err, "panel 1")
}

// TestConvertOurs: the dashboard in docs/grafana, which Grafana takes, is converted whole.
func TestConvertOurs(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/grafana/quern.json")
	require.NoError(t, err)
	var file struct{ Panels []struct{ Type string } }
	require.NoError(t, json.Unmarshal(text, &file))
	d, notes, err := grafana.Convert(text)
	require.NoError(t, err)
	require.Equal(t, []string{`variable "datasource": there is one data source, Quern itself; left out`}, notes)
	require.Len(t, d.Panels, len(file.Panels))
	require.Equal(t, "job", d.Variables[0].Of)
}

// FuzzConvert: whatever comes in, either it is refused or the result keeps all limits.
func FuzzConvert(f *testing.F) {
	f.Add([]byte(theirs))
	f.Add([]byte(`{"panels":[{"type":"graph","gridPos":{"x":-1e300,"y":1e300,"w":0.5,"h":1e9},"yaxes":[{"min":"NaN"}],"decimals":1e300,"targets":[{"expr":"a"}]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, _, err := grafana.Convert(text)
		if err != nil {
			return
		}
		made, err := d.Encode()
		require.NoError(t, err)
		again, err := dashboard.Decode(made)
		require.NoError(t, err)
		require.Equal(t, d, again)
	})
}
