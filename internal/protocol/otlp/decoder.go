// Package otlp serves OTLP/HTTP for metrics. It decodes an ExportMetricsServiceRequest in protobuf or JSON,
// into the series that Prometheus would make of them:
// https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics.
//
// A request in protobuf is decoded one metric at a time, since the objects of a hostile metric take many times
// its size. JSON, which is rare, is converted to protobuf first.
package otlp

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/wire/excerpt"
)

const (
	// objectBytes and commaBytes estimate the memory of JSON until it is protobuf: an object becomes a
	// message, and a comma precedes a number or a text.
	objectBytes = 256
	commaBytes  = 16
	// growth is how many times the size of its message an object may take. Measured: 100 for a histogram of empty data
	// points, each of which has two bytes.
	growth = 100
)

// settings configure a decoder.
type settings struct {
	// Promote are the resource attributes that become labels of each series of the resource, in
	// addition to job and instance.
	Promote []string
	// Labels bounds the attributes of one data point, and those of a resource or scope. The default
	// is 128.
	Labels int
	// Note receives the metadata of each decoded metric. The default discards it.
	Note func(metric.Metadata)
}

// decoder decodes one request at a time. It caches names between requests.
type decoder struct {
	opts  settings
	names names

	b *ingest.Batch
	// largest is the size of the largest message whose objects have been charged.
	largest int

	// State of the current resource: its attributes, its job and instance, the labels of its promoted attributes,
	// which give way to a data point's, the number of samples taken, and their latest time.
	resource []attribute
	identity []metric.Label
	promoted []metric.Label
	taken    int
	latestMs int64
	// strong are the labels of all series of the current scope, which replace a data point's attributes.
	strong []metric.Label
	// bad is why all data points of the current scope are rejected, nil if they are not.
	bad error

	scratch []attribute
	labels  []metric.Label // labels of the current data point
	point   point
}

// attribute is a KeyValue with its value as text.
type attribute struct{ key, value string }

// flaw is the reason why data points are rejected.
type flaw struct {
	reason  ingest.Reason
	message string
}

// Error implements error.
func (f *flaw) Error() string { return f.message }

// flawed makes a flaw. The arguments that are text of the client are excerpts.
func flawed(reason ingest.Reason, format string, args ...any) error {
	return &flaw{reason, fmt.Sprintf(format, args...)}
}

// newDecoder makes a decoder.
func newDecoder(opts settings) *decoder {
	opts.Labels = cmp.Or(opts.Labels, 128)
	return &decoder{opts: opts, names: newNames()}
}

// errFull stops decoding: the batch takes no more.
var errFull = errors.New("the batch is full")

// fromJSON decodes a request in OTLP's JSON. On error, the batch has nothing of it.
func (d *decoder) fromJSON(body []byte, b *ingest.Batch) error {
	// The text exists once more in the objects, and then in the protobuf.
	takes := objectBytes*bytes.Count(body, []byte{'{'}) + commaBytes*bytes.Count(body, []byte{','}) + 2*len(body)
	if !b.Charge(int64(takes)) {
		return nil
	}
	var request metricspb.MetricsData // same fields as the request, whose service package is not needed
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(body, &request); err != nil {
		// The library varies the prefix of its messages, which repeat a whole number or text.
		return errors.New(excerpt.Message(strings.TrimLeft(strings.TrimPrefix(err.Error(), "proto:"), " \u00a0")))
	}
	body, err := proto.Marshal(&request)
	if err != nil {
		return err
	}
	return d.fromProtobuf(body, b)
}

// fromProtobuf decodes a request in protobuf. On error, the batch has the metrics before the error.
func (d *decoder) fromProtobuf(body []byte, b *ingest.Batch) error {
	d.b, d.largest = b, 0
	defer func() { d.b = nil }()
	err := each(body, 1, d.resourceMetrics)
	if broken := (*wireError)(nil); errors.As(err, &broken) {
		return fmt.Errorf("at byte %d: %w", cap(body)-broken.left, broken.cause)
	}
	if errors.Is(err, errFull) {
		return nil
	}
	return err
}

// wireError is a malformed message.
type wireError struct {
	cause error
	// left is the distance in bytes from the fault to the end of the body's buffer. All messages are slices of
	// that buffer, so it is their capacity.
	left int
}

// Error implements error.
func (e *wireError) Error() string { return e.cause.Error() }

// each calls do with the messages that a field of a message has, in order.
func each(message []byte, field protowire.Number, do func(message []byte) error) error {
	for len(message) > 0 {
		number, kind, size, n := protowire.Number(0), protowire.Type(0), 0, 0
		if number, kind, n = protowire.ConsumeTag(message); n >= 0 {
			size = protowire.ConsumeFieldValue(number, kind, message[n:])
		}
		if err := protowire.ParseError(min(n, size)); err != nil {
			return &wireError{err, cap(message)}
		}
		if number == field && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message[n:])
			if err := do(value); err != nil {
				return err
			}
		}
		message = message[n+size:]
	}
	return nil
}

// unmarshal decodes a message, and charges what it takes: its texts until the request ends, and its objects until the
// next one is decoded.
func (d *decoder) unmarshal(message []byte, to proto.Message) error {
	more := max(0, len(message)-d.largest)
	if !d.b.Charge(ingest.MessageBytes + int64(len(message)+growth*more)) {
		return errFull
	}
	d.largest += more
	if err := (proto.UnmarshalOptions{Merge: true, DiscardUnknown: true}).Unmarshal(message, to); err != nil {
		return &wireError{errors.New(strings.TrimLeft(strings.TrimPrefix(err.Error(), "proto:"), " \u00a0")), cap(message)}
	}
	return nil
}

func (d *decoder) resourceMetrics(message []byte) error {
	if !d.b.Charge(ingest.MessageBytes) {
		return errFull
	}
	var resource resourcepb.Resource
	if err := each(message, 1, func(m []byte) error { return d.unmarshal(m, &resource) }); err != nil {
		return err
	}
	d.taken, d.latestMs = 0, ingest.NoTime
	d.resource = d.attributes(d.resource[:0], resource.GetAttributes())
	d.identify()
	d.scratch = d.scratch[:0]
	for _, a := range d.resource {
		if slices.Contains(d.opts.Promote, a.key) {
			d.scratch = append(d.scratch, a)
		}
	}
	var bad error
	d.promoted, bad = d.translate(d.promoted[:0], d.scratch, "")
	if err := each(message, 2, func(m []byte) error { return d.scopeMetrics(m, bad) }); err != nil {
		return err
	}
	return d.targetInfo()
}

func (d *decoder) attributes(to []attribute, from []*commonpb.KeyValue) []attribute {
	for _, kv := range from {
		to = append(to, attribute{kv.GetKey(), d.text(kv.GetValue())})
	}
	return to
}

// These attributes form job and instance.
const (
	serviceName      = "service.name"
	serviceNamespace = "service.namespace"
	serviceInstance  = "service.instance.id"
)

// identify derives job and instance from the resource.
func (d *decoder) identify() {
	var name, namespace, instance string
	for _, a := range d.resource {
		switch a.key {
		case serviceName:
			name = a.value
		case serviceNamespace:
			namespace = a.value
		case serviceInstance:
			instance = a.value
		}
	}
	if name != "" && namespace != "" {
		name = namespace + "/" + name
	}
	d.identity = set(d.identity[:0], "job", name)
	d.identity = set(d.identity, "instance", instance)
}

// targetInfo adds the target_info sample, which has the resource's attributes as labels, if there
// are series to join it with.
func (d *decoder) targetInfo() error {
	d.scratch = d.scratch[:0]
	for _, a := range d.resource {
		if a.key != serviceName && a.key != serviceNamespace && a.key != serviceInstance {
			d.scratch = append(d.scratch, a)
		}
	}
	if d.taken == 0 || len(d.identity) == 0 || len(d.scratch) == 0 {
		return nil
	}
	labels, bad := d.translate(d.labels[:0], d.scratch, "")
	if d.labels = labels; bad != nil {
		return nil //nolint:nilerr // its series say so
	}
	for _, l := range d.identity {
		d.labels = set(d.labels, l.Name, l.Value)
	}
	d.note(metric.Metadata{Name: "target_info", Type: metric.TypeGauge, Help: "Attributes of the resource"})
	d.b.Series("target_info", d.labels)
	if !d.b.AddTo(ingest.NoMeasurement, d.latestMs, 1) {
		return errFull
	}
	return nil
}

// scopeMetrics decodes the metrics of a scope. bad is what is wrong with its resource.
func (d *decoder) scopeMetrics(message []byte, bad error) error {
	if !d.b.Charge(ingest.MessageBytes) {
		return errFull
	}
	var scope commonpb.InstrumentationScope
	if err := each(message, 1, func(m []byte) error { return d.unmarshal(m, &scope) }); err != nil {
		return err
	}
	schemaURL := ""
	if err := each(message, 3, func(text []byte) error { schemaURL = d.b.Copy(text); return nil }); err != nil {
		return err
	}
	d.scratch = d.attributes(d.scratch[:0], scope.GetAttributes())
	labels, problem := d.translate(d.labels[:0], d.scratch, "otel_scope_")
	d.labels, d.bad = labels, cmp.Or(bad, problem)
	// If names collide, the later one wins: job and instance, then the labels of the scope.
	d.strong = append(d.strong[:0], d.identity...)
	for _, l := range d.labels {
		d.strong = set(d.strong, l.Name, l.Value)
	}
	d.strong = set(d.strong, "otel_scope_name", scope.GetName())
	d.strong = set(d.strong, "otel_scope_version", scope.GetVersion())
	d.strong = set(d.strong, "otel_scope_schema_url", schemaURL)
	return each(message, 2, func(m []byte) error {
		var decoded metricspb.Metric
		if err := d.unmarshal(m, &decoded); err != nil {
			return err
		}
		return d.metric(&decoded)
	})
}

// translate converts attributes to labels and appends them. It joins the values of different keys with the same name,
// in the order of the keys.
func (d *decoder) translate(to []metric.Label, attributes []attribute, prefix string) ([]metric.Label, error) {
	if len(attributes) > d.opts.Labels {
		return to, flawed(ingest.ReasonLimit, "more than the limit of %d attributes", d.opts.Labels)
	}
	begin := len(to)
	for i := 0; i < len(attributes); i++ {
		a := attributes[i]
		if n := len(prefix) + len(a.key); n > ingest.MaxNameBytes {
			return to, flawed(ingest.ReasonInvalidLabel, "attribute %s: its key has %d bytes, more than the limit of %d", excerpt.Quoted(a.key), n, ingest.MaxNameBytes)
		}
		name, err := d.names.label(prefix + a.key)
		if err != nil {
			return to, flawed(ingest.ReasonInvalidLabel, "%s", err)
		}
		if name == metric.NameLabel {
			continue // the metric's name takes precedence
		}
		at := find(to, name)
		byKey := func(a, b attribute) int { return strings.Compare(a.key, b.key) }
		switch {
		case at < 0:
			to = append(to, metric.Label{Name: name, Value: a.value})
		case !slices.IsSortedFunc(attributes, byKey):
			slices.SortStableFunc(attributes, byKey)
			i, to = -1, to[:begin] // once more, in the order of the keys
		case to[at].Value == "":
			to[at].Value = a.value
		case a.value != "":
			to[at].Value = d.b.Copy([]byte(to[at].Value + ";" + a.value))
		}
	}
	return to, nil
}

// set sets a label, replacing one of the same name. An empty value sets nothing.
func set(labels []metric.Label, name, value string) []metric.Label {
	if value == "" {
		return labels
	}
	if at := find(labels, name); at >= 0 {
		labels[at].Value = value
		return labels
	}
	return append(labels, metric.Label{Name: name, Value: value})
}

func find(labels []metric.Label, name string) int {
	return slices.IndexFunc(labels, func(l metric.Label) bool { return l.Name == name })
}

func (d *decoder) note(m metric.Metadata) {
	if d.opts.Note != nil {
		d.opts.Note(m)
	}
}
