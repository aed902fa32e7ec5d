package dashboard_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/documents/dashboard"
	"github.com/quern/quern/internal/treecheck/linear"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// contract is a dashboard with each field.
const contract = `{
  "format": 1, "title": "Hosts", "description": "", "tags": ["host"], "range": "6h", "refresh": "30s",
  "variables": [
    {"name": "host", "label": "Host", "kind": "label", "of": "host", "selector": "cpu_usage_ratio", "multi": true, "value": ["web-1"]},
    {"name": "q", "kind": "list", "values": ["0.5", "0.99"], "value": ["0.99"]},
    {"name": "filter", "kind": "text", "value": [".*"]}
  ],
  "panels": [
    {"id": 1, "title": "CPU", "description": "", "kind": "timeseries", "at": {"x": 0, "y": 0, "w": 12, "h": 8},
     "queries": [{"expr": "cpu_usage_ratio{host=~\"$host\"}", "legend": "{{host}}"}],
     "unit": "ratio", "decimals": 2, "min": 0, "max": 1, "stack": false,
     "thresholds": [{"from": 0.8, "level": "warn"}, {"from": 0.95, "level": "bad"}], "text": ""}
  ]
}`

// TestRoundTrip: a dashboard comes back as it was, in one form, with all of its fields.
func TestRoundTrip(t *testing.T) {
	d, err := dashboard.Decode([]byte(contract))
	require.NoError(t, err)
	require.Equal(t, "Hosts", d.Title)
	require.Equal(t, []string{"0.5", "0.99"}, d.Variables[1].Values)
	require.Equal(t, dashboard.Rectangle{W: 12, H: 8}, d.Panels[0].At)
	require.Equal(t, []dashboard.Threshold{{From: 0.8, Level: "warn"}, {From: 0.95, Level: "bad"}}, d.Panels[0].Thresholds)
	require.InDelta(t, 1, *d.Panels[0].Max, 0)
	once, err := d.Encode()
	require.NoError(t, err)
	again, err := dashboard.Decode(once)
	require.NoError(t, err)
	twice, err := again.Encode()
	require.NoError(t, err)
	require.Equal(t, string(once), string(twice))

	least, err := dashboard.Decode([]byte(`{"format":1,"title":"t","panels":[{"id":7,"kind":"text","at":{"w":1,"h":1}}],"variables":null}`))
	require.NoError(t, err)
	text, err := least.Encode()
	require.NoError(t, err)
	require.JSONEq(t, `{"format":1,"title":"t","description":"","tags":[],"range":"","refresh":"","variables":[],"panels":[
		{"id":7,"title":"","description":"","kind":"text","at":{"x":0,"y":0,"w":1,"h":1},"queries":[],"unit":"","stack":false,"thresholds":[],"text":""}]}`, string(text))
}

// TestTextStaysText: what looks like markup is neither refused nor changed.
func TestTextStaysText(t *testing.T) {
	const script = `</script><script>alert("1")</script> & <img src=x onerror=alert(1)>`
	quoted, err := json.Marshal(script)
	require.NoError(t, err)
	d, err := dashboard.Decode(fmt.Appendf(nil, `{"format":1,"title":%s,"panels":[{"id":1,"title":%[1]s,"kind":"text","at":{"w":1,"h":1},"text":%[1]s}]}`, quoted))
	require.NoError(t, err)
	require.Equal(t, []string{script, script, script}, []string{d.Title, d.Panels[0].Title, d.Panels[0].Text})
	text, err := d.Encode()
	require.NoError(t, err)
	require.Contains(t, string(text), `</script><script>`)
}

// with is the contract's dashboard with one part replaced.
func with(t *testing.T, old, other string) string {
	t.Helper()
	require.Equal(t, 1, strings.Count(contract, old), old)
	return strings.Replace(contract, old, other, 1)
}

func repeated(n int, each string) string {
	return strings.TrimSuffix(strings.Repeat(each+",", n), ",")
}

// TestRefused: what is wrong is refused with a message that names the place.
func TestRefused(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"nothing", ``, `line 1, column 1: unexpected end of JSON input`},
		{"a list", `[]`, `it must begin with {`},
		{"a number", `1`, `it must begin with {`},
		{"null", `null`, `it must begin with {`},
		{"no format", `{"title":"x"}`, `there is no field "format"`},
		{"format 2, which has fields of its own", with(t, `"format": 1`, `"format": 2, "sound": true`), `format 2: made by a newer Quern; this one reads format 1`},
		{"a format that is no number", `{"format":"one"}`, `made by a newer Quern`},
		{"not UTF-8", with(t, `"Hosts"`, "\"\xff\""), `not valid UTF-8`},
		{"broken", with(t, `"tags": ["host"]`, `"tags": ["host"`), `line 2, column 77: invalid character`},
		{"NaN", with(t, `"min": 0`, `"min": NaN`), `invalid character 'N'`},
		{"too large a number", with(t, `"min": 0`, `"min": 1e999`), `panel 1 "CPU": the field "min" takes no number 1e999`},
		{"an unknown field", with(t, `"refresh"`, `"refreshes"`), `unknown field "refreshes"`},
		{"an unknown field of a panel", with(t, `"unit"`, `"units"`), `panel 1 "CPU": unknown field "units"`},
		{"an unknown field of a query", with(t, `"legend"`, `"legends"`), `panel 1 "CPU": unknown field "legends"`},
		{"a wrong type", with(t, `"w": 12`, `"w": "12"`), `panel 1 "CPU": the field "at.w" takes no string`},
		{"half a column", with(t, `"w": 12`, `"w": 1.5`), `takes no number 1.5`},
		{"panels that are no list", `{"format":1,"title":"t","panels":{}}`, `the field "panels" takes no object`},
		{"no title", with(t, `"Hosts"`, `" "`), `the title is empty`},
		{"a title of two lines", with(t, `"Hosts"`, `"a\nb"`), `the title must be one line of text`},
		{"a long title", with(t, `"Hosts"`, `"`+strings.Repeat("x", 1025)+`"`), `the title has 1025 bytes, at most 1024 are allowed`},
		{"no span", with(t, `"6h"`, `"soon"`), `range must be a span of 1s or more, such as 30s or 6h, and not "soon"`},
		{"a negative span", with(t, `"30s"`, `"-30s"`), `refresh must be a span`},
		{"a name that cannot be one", with(t, `"name": "q"`, `"name": "q-1"`), `variable 2 "q-1": a name has`},
		{"a name of Quern's", with(t, `"name": "q"`, `"name": "__range"`), `variable 2 "__range": a name has`},
		{"two of a name", with(t, `"name": "q"`, `"name": "host"`), `variable 2 "host": there is another variable of this name`},
		{"a kind of variable", with(t, `"kind": "list"`, `"kind": "guess"`), `variable 2 "q": its kind is "guess", and must be label, list or text`},
		{"no label", with(t, `"of": "host"`, `"of": ""`), `variable 1 "host": the field "of" must name the label`},
		{"no values", with(t, `["0.5", "0.99"]`, `[]`), `variable 2 "q": there are no values to choose from`},
		{"two values", with(t, `[".*"]`, `["a","b"]`), `variable 3 "filter": it has 2 chosen values`},
		{"a kind", with(t, `"timeseries"`, `"piechart"`), `panel 1 "CPU": its kind is "piechart", and must be timeseries, stat, gauge, heatmap, table or text`},
		{"id 0", with(t, `"id": 1`, `"id": 0`), `panel 1 "CPU": its id is 0`},
		{"over the right edge", with(t, `"x": 0`, `"x": 13`), `panel 1 "CPU": with x 13 and w 12 it does not lie within the 24 columns`},
		{"before the left edge", with(t, `"x": 0`, `"x": -1`), `with x -1`},
		{"no height", with(t, `"h": 8`, `"h": 0`), `12 columns wide and 0 rows high`},
		{"too high", with(t, `"h": 8`, `"h": 61`), `61 rows high`},
		{"far down", with(t, `"y": 0`, `"y": 100001`), `y is 100001`},
		{"decimals", with(t, `"decimals": 2`, `"decimals": 11`), `decimals is 11`},
		{"min above max", with(t, `"min": 0`, `"min": 2`), `min is 2, and must be below max, which is 1`},
		{"a level", with(t, `"level": "bad"`, `"level": "worse"`), `threshold 2 has the level "worse"`},
		{"thresholds that go down", with(t, `0.95`, `0.5`), `threshold 2 is from 0.5, and must be above the one before it`},
		{"a long expression", with(t, `{{host}}`, `x", "expr": "`+strings.Repeat("x", 16<<10+1)), `the expression of query 1 has 16385 bytes, at most 16384 are allowed`},
		{"a long unit", with(t, `"unit": "ratio"`, `"unit": "`+strings.Repeat("x", 33)+`"`), `the unit has 33 bytes`},
		{"many tags", with(t, `["host"]`, `[`+repeated(51, `""`)+`]`), `tags: there are more than 50, the limit`},
		{"many values", with(t, `["0.5", "0.99"]`, `[`+repeated(501, `""`)+`]`), `variable 2 "q": values: there are more than 500, the limit`},
		{"many queries", with(t, `{"expr": "cpu_usage_ratio{host=~\"$host\"}", "legend": "{{host}}"}`, repeated(21, `{}`)), `panel 1 "CPU": queries: there are more than 20, the limit`},
		{"10,000 panels", `{"format":1,"title":"t","panels":[` + repeated(10_000, `{"id":1}`) + `]}`, `panels: there are more than 200, the limit`},
		{"more than a megabyte", `{"format":1,"title":"t","description":"` + strings.Repeat("x", 1<<20) + `"}`, `at most 1048576 are allowed`},
		{"50 MB", strings.Repeat("[", 50_000_000), `the dashboard has 50000000 bytes`},
		{"deep nesting", `{"format":1,"title":"t","panels":` + strings.Repeat("[", 500_000) + strings.Repeat("]", 500_000) + `}`, `exceeded max depth`},
		{"a secret that is no field", `{"format":1,"` + strings.Repeat("y", 9000) + `":1}`, `unknown field "yyy`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := dashboard.Decode([]byte(c.text))
			var invalid *dashboard.InvalidError
			require.ErrorAs(t, err, &invalid)
			require.Contains(t, err.Error(), c.want)
			require.Less(t, len(err.Error()), 6000)
		})
	}
}

// TestAllProblems: the message names several problems, and of two panels of one id both.
func TestAllProblems(t *testing.T) {
	_, err := dashboard.Decode([]byte(`{"format":1,"title":"t","panels":[
		{"id":1,"title":"a","kind":"text","at":{"w":1,"h":1}},{"id":1,"title":"b","kind":"no","at":{"w":25,"h":1}}]}`))
	require.EqualError(t, err, `panel 2 "b": its kind is "no", and must be timeseries, stat, gauge, heatmap, table or text; `+
		`panel 2 "b": it is 25 columns wide and 1 rows high, and must be 1 to 24 wide and 1 to 60 high; `+
		`panel 2 "b": its id 1 is that of panel 1 "a", too`)
	_, err = dashboard.Decode([]byte(`{"format":1,"title":"t","panels":[` + repeated(200, `{}`) + `]}`))
	require.ErrorContains(t, err, "more problems")
	require.Less(t, len(err.Error()), 6000)
}

// TestHostileIsLinear: text that is made to cost much costs as much as its size.
func TestHostileIsLinear(t *testing.T) {
	for name, text := range map[string]func(n int) string{
		"panels":   func(n int) string { return `{"format":1,"title":"t","panels":[` + repeated(n/8, `{"id":1}`) + `]}` },
		"spaces":   func(n int) string { return `{"format":1,"title":"t","panels":[` + strings.Repeat(" ", n) + `]}` },
		"a string": func(n int) string { return `{"format":1,"title":"` + strings.Repeat(`é`, n/6) + `"}` },
	} {
		t.Run(name, func(t *testing.T) {
			linear.Check(t, 100_000, text, func(text string) { _, _ = dashboard.Decode([]byte(text)) })
		})
	}
}

// FuzzDecode: whatever comes in, either it is refused or it has a form that stays.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(contract))
	f.Add([]byte(`{"format":1,"title":"t","panels":[{"id":1,"kind":"stat","at":{"w":1,"h":1},"min":-0,"thresholds":[{"from":1e-300,"level":"ok"}]}]}`))
	for _, name := range []string{"hosts", "quern", "demo"} {
		text, err := os.ReadFile("builtin/" + name + ".json")
		require.NoError(f, err)
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := dashboard.Decode(text)
		if err != nil {
			require.ErrorAs(t, err, new(*dashboard.InvalidError))
			return
		}
		checkForm(t, d)
	})
}

// checkForm fails unless d has a form in JSON that is read as the same dashboard.
func checkForm(t *testing.T, d *dashboard.Dashboard) {
	t.Helper()
	once, err := d.Encode()
	require.NoError(t, err)
	if len(once) > dashboard.MaxBytes {
		return
	}
	again, err := dashboard.Decode(once)
	require.NoError(t, err)
	require.Equal(t, d, again)
	ids := map[int]bool{}
	for _, p := range again.Panels {
		require.False(t, ids[p.ID])
		ids[p.ID] = true
		require.LessOrEqual(t, p.At.X+p.At.W, dashboard.Columns)
		for _, n := range []*float64{p.Min, p.Max} {
			require.False(t, n != nil && (math.IsNaN(*n) || math.IsInf(*n, 0)))
		}
	}
}
