package targets

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/units"
	"github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
	"go.yaml.in/yaml/v3"
)

// Shared are the settings of a job that come from global where the job has none, or zero. A limit of zero is none.
type Shared struct {
	Interval              model.Duration   `yaml:"scrape_interval"`          // of a target, unless its labels say another
	Timeout               model.Duration   `yaml:"scrape_timeout"`           // of a target, unless its labels say another
	Protocols             []string         `yaml:"scrape_protocols"`         // the formats to accept, the best first: keys of MediaTypes
	BodySizeLimit         units.Base2Bytes `yaml:"body_size_limit"`          // of an answer, uncompressed
	SampleLimit           uint             `yaml:"sample_limit"`             // of a scrape, after MetricRelabel
	TargetLimit           uint             `yaml:"target_limit"`             // of the job; Discover sees to it
	LabelLimit            uint             `yaml:"label_limit"`              // of a sample, after MetricRelabel
	LabelNameLengthLimit  uint             `yaml:"label_name_length_limit"`  // in bytes, after MetricRelabel
	LabelValueLengthLimit uint             `yaml:"label_value_length_limit"` // in bytes, after MetricRelabel
}

// Job is one of scrape_configs.
type Job struct {
	Shared           `yaml:",inline"`
	Name             string                  `yaml:"job_name"`
	HonorLabels      bool                    `yaml:"honor_labels"`             // a sample's labels win over those of its target
	HonorTimestamps  bool                    `yaml:"honor_timestamps"`         // a sample keeps the time that it has
	FallbackProtocol string                  `yaml:"fallback_scrape_protocol"` // for an answer without Content-Type; in MediaTypes, or ""
	Client           config.HTTPClientConfig `yaml:",inline"`
	HTTPClient       *http.Client            `yaml:"-"`                      // for requests to targets, as Client says
	MetricRelabel    []*relabel.Config       `yaml:"metric_relabel_configs"` // of samples
	External         labels.Labels           `yaml:"-"`                      // external_labels of global, for what has no such label
	MetricsPath      string                  `yaml:"metrics_path"`           // from here on, what Discover makes targets of
	Scheme           string                  `yaml:"scheme"`
	Params           url.Values              `yaml:"params"`
	Relabel          []*relabel.Config       `yaml:"relabel_configs"`
	Static           []targetgroup.Group     `yaml:"static_configs"`
	Files            []*discovery            `yaml:"file_sd_configs"`
	DNS              []*discovery            `yaml:"dns_sd_configs"`
	HTTP             []*discovery            `yaml:"http_sd_configs"`
}

// MediaTypes of the formats, by the names that they have in scrape_protocols.
var MediaTypes = map[string]string{
	"PrometheusProto":      "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited",
	"OpenMetricsText1.0.0": "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8",
	"OpenMetricsText0.0.1": "application/openmetrics-text;version=0.0.1",
	"PrometheusText1.0.0":  "text/plain;version=1.0.0;escaping=allow-utf-8",
	"PrometheusText0.0.4":  "text/plain;version=0.0.4",
}

// ignored has the keys that change nothing here, with the types that may have them, and the value that changes nothing in Prometheus.
var ignored = map[string]struct{ in, harmless string }{
	"alerting": {in: "file"}, "rule_files": {in: "file"}, "remote_write": {in: "file"}, "remote_read": {in: "file"},
	"storage": {in: "file"}, "tracing": {in: "file"}, "otlp": {in: "file"}, "runtime": {in: "file"},
	"evaluation_interval": {in: "global"}, "rule_query_offset": {in: "global"}, "query_log_file": {in: "global"},
	"query_max_series": {in: "global"}, "query_max_samples_read": {in: "global"}, "query_max_duration": {in: "global"},
	"scrape_failure_log_file": {in: "global Job"}, "keep_dropped_targets": {in: "global Job"}, "enable_compression": {in: "Job"},
	"always_scrape_classic_histograms": {in: "global Job"}, "scrape_classic_histograms": {in: "Job"},
	"native_histogram_bucket_limit": {in: "Job"}, "native_histogram_min_bucket_factor": {in: "Job"},
	"scrape_native_histograms": {"global Job", "false"}, "convert_classic_histograms_to_nhcb": {"global Job", "false"},
	"metric_name_validation_scheme": {"global Job", "utf8"}, "metric_name_escaping_scheme": {"global Job", model.AllowUTF8},
	"extra_scrape_metrics": {"global Job", "false"}, "track_timestamps_staleness": {"Job", "false"},
}

type (
	file struct {
		Global section[global] `yaml:"global"`
		Jobs   []section[Job]  `yaml:"scrape_configs"`
	}
	global struct {
		Shared   `yaml:",inline"`
		External labels.Labels `yaml:"external_labels"`
	}
	section[T any] struct {
		value  T
		line   int
		untold []string // what is ignored and should be told
	}
	node struct{ *yaml.Node }
)

// UnmarshalYAML is called by yaml.
func (n *node) UnmarshalYAML(value *yaml.Node) error {
	n.Node = value
	return nil
}

// UnmarshalYAML is called by yaml.
func (j *Job) UnmarshalYAML(decode func(any) error) error {
	type job Job
	*j = Job{HonorTimestamps: true, MetricsPath: "/metrics", Scheme: "http", Client: config.DefaultHTTPClientConfig}
	return decode((*job)(j))
}

// UnmarshalYAML is called by yaml. It takes what is ignored out of the text before it decodes that.
func (s *section[T]) UnmarshalYAML(decode func(any) error) error {
	var n node
	_ = decode(&n) // this takes any text
	var rest []*yaml.Node
	for pair := range slices.Chunk(n.Content, 2) {
		key, value, note := pair[0], pair[len(pair)-1].Value, ignored[pair[0].Value]
		switch ignore := strings.Contains(note.in, reflect.TypeFor[T]().Name()); {
		case !ignore:
			rest = append(rest, pair...)
		case note.harmless != "" && !strings.EqualFold(value, note.harmless):
			s.untold = append(s.untold, fmt.Sprintf("line %d: %s: %s", key.Line, key.Value, value))
		}
	}
	n.Content, s.line = rest, n.Line
	err := decode(&s.value)
	if typed := (*yaml.TypeError)(nil); err == nil || errors.As(err, &typed) {
		return err
	}
	// The errors of Prometheus' types tell no line: it is that of the key that cannot be decoded alone.
	var lines []string
	for pair := range slices.Chunk(rest, 2) {
		if err := (&yaml.Node{Kind: yaml.MappingNode, Content: pair}).Decode(new(T)); err != nil {
			lines = append(lines, fmt.Sprintf("line %d: %v", pair[0].Line, err))
		}
	}
	if lines == nil {
		lines = []string{fmt.Sprintf("line %d: %v", n.Line, err)}
	}
	return &yaml.TypeError{Errors: lines} // yaml goes on after it
}

// strictly decodes a text, and refuses unknown keys.
func strictly(text []byte, t any) error {
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(t); !errors.Is(err, io.EOF) {
		return err
	}
	return nil // there is nothing
}

// foreign is what yaml says of an unknown key.
var foreign = regexp.MustCompile("not found in type .*")

// Read reads a prometheus.yml. The error names all mistakes with their lines: those of the text, or if there are none, those of the
// values beside each other. ignored are the settings, with their lines, that are ignored but change what Prometheus stores.
func Read(path string, text []byte) (jobs []*Job, ignored []string, err error) {
	var whole section[file]
	if err := strictly(text, &whole); err != nil {
		mistakes := strings.TrimPrefix(foreign.ReplaceAllString(err.Error(), "is not supported here"), "yaml: unmarshal errors:\n  ")
		return nil, nil, fmt.Errorf("%s: %s", path, strings.ReplaceAll(mistakes, "\n  ", "\n"+path+": "))
	}
	var errs []error
	check := func(line int, section string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: line %d: %s: %w", path, line, section, err))
		}
	}
	g := &whole.value.Global
	ignored = g.untold
	check(g.line, "global", g.value.fill(Shared{
		Interval: 60e9, Timeout: 10e9, Protocols: []string{"OpenMetricsText1.0.0", "OpenMetricsText0.0.1", "PrometheusText1.0.0", "PrometheusText0.0.4"},
	}))
	b := labels.NewBuilder(g.value.External)
	b.Range(func(l labels.Label) {
		b.Set(l.Name, os.Expand(l.Value, func(key string) string { return cmp.Or(os.Getenv(key), map[string]string{"$": "$"}[key]) }))
	})
	for _, s := range whole.value.Jobs {
		j := &s.value
		j.External = b.Labels()
		ignored = append(ignored, s.untold...)
		check(s.line, "job "+j.Name, cmp.Or(j.fill(g.value.Shared), j.check(jobs, filepath.Dir(path))))
		jobs = append(jobs, j)
	}
	return jobs, ignored, errors.Join(errs...)
}

// fill takes what is not set from others, and checks the result.
func (s *Shared) fill(others Shared) error {
	s.Interval = cmp.Or(s.Interval, others.Interval)
	s.Timeout = cmp.Or(s.Timeout, min(others.Timeout, s.Interval))
	s.SampleLimit, s.TargetLimit = cmp.Or(s.SampleLimit, others.SampleLimit), cmp.Or(s.TargetLimit, others.TargetLimit)
	s.BodySizeLimit, s.LabelLimit = cmp.Or(s.BodySizeLimit, others.BodySizeLimit), cmp.Or(s.LabelLimit, others.LabelLimit)
	s.LabelNameLengthLimit = cmp.Or(s.LabelNameLengthLimit, others.LabelNameLengthLimit)
	s.LabelValueLengthLimit = cmp.Or(s.LabelValueLengthLimit, others.LabelValueLengthLimit)
	if s.Timeout > s.Interval {
		return fmt.Errorf("scrape_timeout: %s is longer than scrape_interval, %s", s.Timeout, s.Interval)
	}
	if s.Protocols != nil {
		return known("scrape_protocols", s.Protocols...)
	}
	s.Protocols = others.Protocols
	return nil
}

func known(key string, protocols ...string) error {
	if len(protocols) == 0 || slices.ContainsFunc(protocols, func(p string) bool { return MediaTypes[p] == "" }) {
		return fmt.Errorf("%s: %q: must be of %s", key, protocols, strings.Join(slices.Sorted(maps.Keys(MediaTypes)), ", "))
	}
	return nil
}

// check checks a job beside those before it, has its paths begin at a directory, and makes its client.
func (j *Job) check(jobs []*Job, dir string) (err error) {
	if j.Name == "" || slices.ContainsFunc(jobs, func(other *Job) bool { return other.Name == j.Name }) {
		return errors.New("job_name: each job must have its own")
	}
	for _, rule := range slices.Concat(j.Relabel, j.MetricRelabel) {
		if err := cmp.Or(rule, &relabel.Config{}).Validate(model.UTF8Validation); err != nil {
			return err
		}
	}
	for _, d := range slices.Concat(j.Files, j.DNS, j.HTTP) {
		if d == nil {
			return errors.New("a discovery is empty")
		}
		d.Client.SetDirectory(dir)
		for i, file := range d.Files {
			d.Files[i] = config.JoinDir(dir, file)
		}
	}
	j.Client.SetDirectory(dir)
	if err = cmp.Or(known("fallback_scrape_protocol", cmp.Or(j.FallbackProtocol, "PrometheusProto")), j.Client.Validate()); err == nil {
		j.HTTPClient, err = config.NewClientFromConfig(j.Client, j.Name)
	}
	return err
}
