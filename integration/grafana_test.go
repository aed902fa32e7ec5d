package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/process"
	"github.com/quern/quern/internal/storage/cassandra"
)

// vocabulary holds the labels of each metric and the values of each label, nil for any value.
type vocabulary map[string]map[string][]string

// add adds what a server reports at /metrics. A histogram has the names of its series.
func (v vocabulary) add(families map[string]*dto.MetricFamily) {
	for name, f := range families {
		names := []string{name}
		more := map[string][]string{}
		if f.GetType() == dto.MetricType_HISTOGRAM {
			names = []string{name + "_bucket", name + "_sum", name + "_count"}
			more["le"] = nil
		}
		values := map[string][]string{"job": nil, "instance": nil}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				values[l.GetName()] = append(values[l.GetName()], l.GetValue())
			}
		}
		for _, n := range names {
			v[n] = maps.Clone(values)
		}
		maps.Copy(v[names[0]], more)
	}
}

var described = regexp.MustCompile(`fqName: "([^"]+)".*variableLabels: \{([^}]*)\}`)

// describe adds the metrics that a collector describes without a server.
func (v vocabulary) describe(c prometheus.Collector) {
	descs := make(chan *prometheus.Desc, 100)
	c.Describe(descs)
	close(descs)
	for d := range descs {
		found := described.FindStringSubmatch(d.String())
		values := map[string][]string{"job": nil, "instance": nil}
		for _, l := range strings.FieldsFunc(found[2], func(r rune) bool { return r == ',' }) {
			values[l] = nil
		}
		v[found[1]] = values
	}
}

// check returns an error for names in an expression that the vocabulary lacks.
func (v vocabulary) check(expr string) error {
	e, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		return err
	}
	var wrong []string
	known := map[string]bool{}
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		s, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		names, ok := v[s.Name]
		if !ok {
			wrong = append(wrong, "there is no metric "+s.Name)
		}
		for l := range names {
			known[l] = true
		}
		for _, m := range s.LabelMatchers {
			values, ok := names[m.Name]
			switch {
			case m.Name == model.MetricNameLabel:
			case !ok:
				wrong = append(wrong, fmt.Sprintf("%s has no label %s", s.Name, m.Name))
			case values != nil && m.Name != "code" && m.Name != "path" && !slices.ContainsFunc(values, m.Matches):
				wrong = append(wrong, fmt.Sprintf("%s has nothing with %s", s.Name, m))
			}
		}
		return nil
	})
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		if a, ok := n.(*parser.AggregateExpr); ok {
			for _, l := range a.Grouping {
				if !known[l] {
					wrong = append(wrong, "nothing has the label "+l)
				}
			}
		}
		return nil
	})
	if wrong != nil {
		return fmt.Errorf("%s: %s", expr, strings.Join(wrong, "; "))
	}
	return nil
}

// TestMonitoring compares the dashboard and the alerts in docs/grafana with what a server reports
// at /metrics.
func TestMonitoring(t *testing.T) {
	t.Parallel()
	p := serve(t, t.TempDir(), append([]string{"--graphite-listen", "127.0.0.1:0"}, seconds...)...)
	_, err := p.Report(t.Context(), []process.Sample{{Source: "a", Metric: "it_level", Ms: time.Now().UnixMilli(), Value: 1}})
	require.NoError(t, err)
	var families map[string]*dto.MetricFamily
	process.Eventually(t, "a run of each bucket", func() error {
		r, err := p.Get("/metrics", nil)
		if err != nil {
			return err
		}
		text := expfmt.NewTextParser(model.UTF8Validation)
		if families, err = text.TextToMetricFamilies(bytes.NewReader(r.Body)); err != nil {
			return err
		}
		if runs := len(families["quern_aggregation_run_seconds"].GetMetric()); runs < 3 {
			return fmt.Errorf("%d buckets", runs)
		}
		return nil
	})
	known := vocabulary{"up": {"job": nil, "instance": nil}}
	known.add(families)
	known.describe((&cassandra.Store{}).Collector())
	require.Error(t, known.check(`quern_ingest_samples_acepted_total`))
	require.Error(t, known.check(`quern_ingest_commits_total{outcome="perhaps"}`))
	require.Error(t, known.check(`sum by (sort) (quern_ingest_commits_total)`))

	t.Run("dashboard", func(t *testing.T) {
		type query struct{ Expr string }
		var d struct {
			Title, UID    string
			SchemaVersion int
			Templating    struct {
				List []struct{ Name, Type, Definition string }
			}
			Panels []struct {
				ID      int
				Type    string
				Title   string
				GridPos struct{ X, Y, W, H int }
				Targets []query
			}
		}
		file, err := os.ReadFile("../docs/grafana/quern.json")
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(file, &d))
		assert.Equal(t, "Quern", d.Title)
		assert.Equal(t, 39, d.SchemaVersion)
		variables := []string{}
		for _, v := range d.Templating.List {
			variables = append(variables, v.Name)
			if found := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(v.Definition); v.Type == "query" {
				require.NotNil(t, found, v.Definition)
				require.NoError(t, known.check(strings.ReplaceAll(found[1], "$job", ".*")))
			}
		}
		assert.Equal(t, []string{"datasource", "job", "instance"}, variables)
		ids := map[int]bool{}
		for _, panel := range d.Panels {
			assert.False(t, ids[panel.ID], "two panels %d", panel.ID)
			ids[panel.ID] = true
			assert.LessOrEqual(t, panel.GridPos.X+panel.GridPos.W, 24, panel.Title)
			assert.Equal(t, panel.Type == "row", len(panel.Targets) == 0, panel.Title)
			for _, q := range panel.Targets {
				expr := strings.NewReplacer("$__rate_interval", "1m", "$job", ".*", "$instance", ".*").Replace(q.Expr)
				assert.NotContains(t, expr, "$")
				require.NoError(t, known.check(expr), panel.Title)
				// The server itself must evaluate it too.
				r, err := p.Get("/api/v1/query", url.Values{"query": {expr}})
				require.NoError(t, err)
				require.Equal(t, 200, r.Code, "%s", r.Body)
			}
		}
	})

	t.Run("built in", func(t *testing.T) {
		r, err := p.Get("/api/v1/dashboards/quern", nil)
		require.NoError(t, err)
		var got struct {
			Data struct {
				Dashboard struct {
					Panels []struct {
						Title   string
						Queries []struct{ Expr string }
					}
				}
			}
		}
		require.NoError(t, json.Unmarshal(r.Body, &got))
		require.NotEmpty(t, got.Data.Dashboard.Panels)
		for _, panel := range got.Data.Dashboard.Panels {
			for _, q := range panel.Queries {
				require.NoError(t, known.check(strings.NewReplacer("$__rate_interval", "1m", "$job", ".*", "$instance", ".*").Replace(q.Expr)), panel.Title)
			}
		}
	})

	t.Run("alerts", func(t *testing.T) {
		file, err := os.ReadFile("../docs/grafana/alerts.yml")
		require.NoError(t, err)
		groups, errs := rulefmt.Parse(file, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
		require.Empty(t, errs)
		require.Len(t, groups.Groups, 1)
		for _, rule := range groups.Groups[0].Rules {
			require.NoError(t, known.check(rule.Expr), rule.Alert)
			assert.NotZero(t, rule.For, rule.Alert)
			assert.Contains(t, []string{"warning", "critical"}, rule.Labels["severity"], rule.Alert)
			assert.NotEmpty(t, rule.Annotations["summary"], rule.Alert)
			assert.NotEmpty(t, rule.Annotations["runbook"], rule.Alert)
		}
	})
	p.Stop()
}
