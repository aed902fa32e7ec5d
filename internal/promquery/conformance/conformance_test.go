// Package conformance holds no code: its test runs Prometheus' own scripts over internal/promquery.
// It is a module of its own, because the package with the scripts requires the clients of all
// clouds in which Prometheus discovers targets.
package conformance

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	promstorage "github.com/prometheus/prometheus/storage"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/promquery"
	"github.com/quern/quern/internal/query/querytest"
	"github.com/quern/quern/internal/storage"
)

// leftOutFile names the evaluations of Prometheus' scripts that are left out, because their answers depend on what
// Quern does not take: a line for each script and reason, with the lines of the script. Each is found to
// answer otherwise here than over Prometheus' storage, and a test holds the list to exactly these.
//
//go:embed testdata/left_out.txt
var leftOutFile string

// These are the reasons for leaving out an evaluation.
const (
	nativeHistograms = "native histograms"
	startTimestamps  = "start timestamps"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestConformance runs Prometheus' own scripts. All their data is recent, so it also shows that
// nothing is rewritten for recent data.
func TestConformance(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(scriptsDir(t), "*.test"))
	require.NoError(t, err)
	require.Greater(t, len(paths), 20)
	var left strings.Builder
	engine := promquery.NewEngine(promql.EngineOpts{
		MaxSamples:               50_000_000,
		Timeout:                  100 * time.Second,
		NoStepSubqueryIntervalFn: func(int64) int64 { return time.Minute.Milliseconds() },
		EnableAtModifier:         true,
		EnableNegativeOffset:     true,
		EnableDelayedNameRemoval: true,
		UseStartTimestamps:       true,
		Parser:                   parser.NewParser(promqltest.TestParserOpts),
	})
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			content, err := os.ReadFile(path)
			require.NoError(t, err)
			s := &splitter{
				t: t, engine: engine, parser: parser.NewParser(promqltest.TestParserOpts),
				leftOut: map[string][]string{}, strange: map[string][]labels.Labels{},
			}
			script := s.split(string(content))
			for _, reason := range slices.Sorted(maps.Keys(s.leftOut)) {
				fmt.Fprintf(&left, "%s, %s: %s\n", filepath.Base(path), reason, strings.Join(s.leftOut[reason], " "))
			}
			for kind := range querytest.Stores {
				t.Run(kind, func(t *testing.T) {
					promqltest.RunTestWithStorage(t, script, engine, func(t testing.TB) promstorage.Storage { return newScriptStorage(t, kind) })
				})
			}
		})
	}
	require.Equal(t, leftOutFile, left.String())
}

// newScriptStorage makes a world that keeps raw samples for ever, at a time after all times in the
// scripts.
func newScriptStorage(t testing.TB, kind string) promstorage.Storage {
	w := querytest.New(t, kind, storage.Retention{}, time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli())
	t.Cleanup(func() {
		require.Zero(t, w.Store.RollupReads.Load())
		require.Zero(t, w.Store.SliceReads.Load())
	})
	_, queryable := promquery.New(w.Querier, promquery.Options{})
	return &scriptStorage{Queryable: queryable, world: w}
}

// scriptsDir returns the directory of the scripts that promqltest embeds, next to its source.
func scriptsDir(t *testing.T) string {
	file, _ := runtime.FuncForPC(reflect.ValueOf(promqltest.RunBuiltinTests).Pointer()).FileLine(0)
	if file == "" {
		t.Fatal("no source of promqltest")
	}
	return filepath.Join(filepath.Dir(file), "testdata")
}

var (
	timestamped     = regexp.MustCompile(`^(\S+)\s*@st\b`)
	instantly       = regexp.MustCompile(`^eval\S*\s+instant\s+(?:at\s+(\S+)\s+)?(.+)$`)
	overRange       = regexp.MustCompile(`^eval\S*\s+range\s+from\s+(\S+)\s+to\s+(\S+)\s+step\s+(\S+)\s+(.+)$`)
	histogramSuffix = regexp.MustCompile(`_(bucket|count|sum)$`)
)

// splitter removes the evaluations from a script that are to be left out.
type splitter struct {
	t      *testing.T
	engine *promquery.Engine
	parser parser.Parser
	// leftOut are the line numbers, by reason.
	leftOut map[string][]string

	// Loaded data: the commands, and by reason the series that are not plain samples.
	loads   []string
	strange map[string][]labels.Labels
	// Storages with this data, made on demand.
	upstream, ours promstorage.Storage
}

func (s *splitter) split(script string) string {
	var lines []string
	command := ""
	for i, line := range strings.Split(script, "\n") {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			line = ""
		}
		switch word, _, _ := strings.Cut(line, " "); {
		case line == "":
			command = ""
		case word == "clear":
			command, s.loads, s.upstream, s.ours = "clear", nil, nil, nil
			clear(s.strange)
		case strings.HasPrefix(word, "load"):
			command = word
			s.upstream, s.ours = nil, nil
		case strings.HasPrefix(word, "eval"):
			command = "eval"
			if reason := s.mayDiffer(line); reason != "" && s.differs(line) {
				command = "left out"
				s.leftOut[reason] = append(s.leftOut[reason], strconv.Itoa(i+1))
			}
		case strings.HasPrefix(command, "load"):
			s.load(command, line)
		}
		if strings.HasPrefix(command, "load") || command == "" {
			s.loads = append(s.loads, line)
		}
		if command == "left out" {
			line = ""
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func (s *splitter) load(command, line string) {
	note := func(reason string, ls labels.Labels) { s.strange[reason] = append(s.strange[reason], ls) }
	if st := timestamped.FindStringSubmatch(line); st != nil {
		ls, err := s.parser.ParseMetric(st[1])
		require.NoError(s.t, err, line)
		note(startTimestamps, ls)
		return
	}
	ls, values, err := s.parser.ParseSeriesDesc(line)
	require.NoError(s.t, err, line)
	if slices.ContainsFunc(values, func(v parser.SequenceValue) bool { return v.Histogram != nil }) {
		note(nativeHistograms, ls)
	}
	if name := ls.Get(metric.NameLabel); command == "load_with_nhcb" && histogramSuffix.MatchString(name) {
		b := labels.NewBuilder(ls).Del(labels.BucketLabel).Set(metric.NameLabel, histogramSuffix.ReplaceAllString(name, ""))
		note(nativeHistograms, b.Labels())
	}
}

// mayDiffer returns why an evaluation that involves a strange series may have another answer, "" if
// it may not.
func (s *splitter) mayDiffer(line string) string {
	m := instantly.FindStringSubmatch(line)
	if m == nil {
		m = overRange.FindStringSubmatch(line)
	}
	expr, err := s.parser.ParseExpr(m[len(m)-1])
	require.NoError(s.t, err, line)
	for _, reason := range []string{nativeHistograms, startTimestamps} {
		if slices.ContainsFunc(parser.ExtractSelectors(expr), func(sel []*labels.Matcher) bool {
			return slices.ContainsFunc(s.strange[reason], func(ls labels.Labels) bool {
				return !slices.ContainsFunc(sel, func(m *labels.Matcher) bool { return !m.Matches(ls.Get(m.Name)) })
			})
		}) {
			return reason
		}
	}
	return ""
}

// differs returns whether an evaluation has another answer here than over Prometheus' storage.
func (s *splitter) differs(line string) bool {
	if s.upstream == nil {
		s.upstream = s.loaded(func(t testing.TB) promstorage.Storage { return promqltest.NewBuiltinTestStorage(t) })
		s.ours = s.loaded(func(t testing.TB) promstorage.Storage { return newScriptStorage(t, "model") })
	}
	at := func(d string) time.Time {
		if d == "" {
			d = "0"
		}
		v, err := model.ParseDuration(d)
		require.NoError(s.t, err, line)
		return time.Unix(0, 0).Add(time.Duration(v))
	}
	if m := overRange.FindStringSubmatch(line); m != nil {
		start, end, step := at(m[1]), at(m[2]), at(m[3]).Sub(time.Unix(0, 0))
		ask := func(st promstorage.Storage) string {
			return s.ask(s.engine.NewRangeQuery(s.t.Context(), st, nil, m[4], start, end, step))
		}
		return ask(s.upstream) != ask(s.ours)
	}
	m := instantly.FindStringSubmatch(line)
	ask := func(st promstorage.Storage) string {
		t := at(m[1])
		once := s.ask(s.engine.NewInstantQuery(s.t.Context(), st, nil, m[2], t))
		return once + s.ask(s.engine.NewRangeQuery(s.t.Context(), st, nil, m[2], t.Add(-time.Minute), t.Add(time.Minute), time.Minute))
	}
	return ask(s.upstream) != ask(s.ours)
}

// loaded returns a storage with the loaded data.
func (s *splitter) loaded(open func(testing.TB) promstorage.Storage) promstorage.Storage {
	var st promstorage.Storage
	promqltest.RunTestWithStorage(s.t, strings.Join(s.loads, "\n"), s.engine, func(t testing.TB) promstorage.Storage {
		st = open(t)
		return stayOpen{st}
	})
	return st
}

// stayOpen is a storage that stays open after the script that has filled it.
type stayOpen struct{ promstorage.Storage }

func (stayOpen) Close() error { return nil }

// ask returns the complete answer of a query as text.
func (s *splitter) ask(q promql.Query, err error) string {
	if err != nil {
		return err.Error()
	}
	defer q.Close()
	r := q.Exec(s.t.Context())
	result := r.String()
	if v, ok := r.Value.(promql.Vector); ok {
		lines := strings.Split(v.String(), "\n")
		slices.Sort(lines)
		result = strings.Join(lines, "\n")
	}
	warnings, infos := r.Warnings.AsStrings("", 0, 0)
	slices.Sort(warnings)
	slices.Sort(infos)
	return fmt.Sprint(result, warnings, infos)
}

// scriptStorage is a world that scripts can write to. It drops native histograms.
type scriptStorage struct {
	*promquery.Queryable
	world *querytest.World
}

var errNone = errors.New("not there")

func (s *scriptStorage) ChunkQuerier(int64, int64) (promstorage.ChunkQuerier, error) {
	return nil, errNone
}

func (s *scriptStorage) Appender(context.Context) promstorage.Appender { return nil }

func (s *scriptStorage) AppenderV2(context.Context) promstorage.AppenderV2 {
	return &scriptAppender{w: s.world}
}

func (s *scriptStorage) StartTime() (int64, error) { return 0, nil }

func (s *scriptStorage) Close() error { return nil }

type scriptAppender struct {
	w       *querytest.World
	samples []metric.Sample
}

func (a *scriptAppender) Append(
	_ promstorage.SeriesRef, ls labels.Labels, _, tMs int64, v float64, h *histogram.Histogram, fh *histogram.FloatHistogram,
	_ promstorage.AppendV2Options,
) (promstorage.SeriesRef, error) {
	if h != nil || fh != nil {
		return 0, nil
	}
	var series metric.Labels
	ls.Range(func(l labels.Label) { series = append(series, metric.Label{Name: l.Name, Value: l.Value}) })
	a.samples = append(a.samples, metric.Sample{Schedule: a.w.ID(series), TimeMs: tMs, Value: v})
	return 0, nil
}

func (a *scriptAppender) Commit() error {
	a.w.Put(a.samples...)
	return nil
}

func (a *scriptAppender) Rollback() error { return nil }
