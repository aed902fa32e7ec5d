// Package otlp reads metrics as OpenTelemetry sends them, an ExportMetricsServiceRequest as protobuf or as JSON, and makes
// of them what Prometheus would: https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics.
//
// Protobuf is read where it lies, message by message, so that a request takes no memory but what it fills of the batch. A request
// as a tree of objects would take fifty times its size if somebody meant it to. JSON, which is rare, is brought into
// protobuf first.
package otlp

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"github.com/go-faster/jx"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

// What a body in JSON takes until it is protobuf: an object becomes a message, and a comma has a number or a text behind it.
const (
	objectBytes = 256
	commaBytes  = 16
)

// maxMessage bounds a message, maxShown what it repeats of the client's own text.
const (
	maxMessage = 400
	maxShown   = 100
)

// Options say how requests are read.
type Options struct {
	// Promote are the resource attributes that each series of the resource has as labels, besides those that make job and
	// instance.
	Promote []string
	// Labels bounds the attributes of one data point, and of what belongs to many. The default is 128.
	Labels int
	// Note is told what is known of each metric that is read; the strings are views into the body. The default is nobody.
	Note func(metric.Metadata)
}

// Decoder reads one request at a time. It remembers names from one to the next.
type Decoder struct {
	opts  Options
	names names

	b *ingest.Batch

	// Of the resource that is being read: its attributes, job and instance, what came of it, and the latest time of that.
	resource []attribute
	identity []metric.Label
	taken    int
	latestMs int64
	// Of its scope: the labels that all series have.
	fixed []fixedLabel

	scratch []attribute
	labels  []metric.Label // of the data point that is being read
	point   point
	json    jx.Writer
}

// attribute is a KeyValue, with its value as text.
type attribute struct {
	key, value string
	// noText says that the value cannot be made one.
	noText bool
}

// fixedLabel is one that all series of a scope have. Strong ones replace a data point's attribute of the same name, the
// others give way to it.
type fixedLabel struct {
	metric.Label

	strong bool
}

// flaw is why data points cannot be taken. Without a reason it is none.
type flaw struct {
	reason  ingest.Reason
	message string
}

// flawed makes a flaw. Its message is kept once for each data point, so that it is cut.
func flawed(reason ingest.Reason, format string, args ...any) flaw {
	message := fmt.Sprintf(format, args...)
	if len(message) > maxMessage {
		message = message[:maxMessage] + "…"
	}
	return flaw{reason, strings.ToValidUTF8(message, "?")}
}

// clip shortens what a message repeats.
func clip(s string) string { return s[:min(len(s), maxShown)] }

// NewDecoder makes a decoder.
func NewDecoder(opts Options) *Decoder {
	opts.Labels = cmp.Or(opts.Labels, 128)
	return &Decoder{opts: opts, names: newNames()}
}

// errFull ends reading: the batch takes no more.
var errFull = errors.New("the batch is full")

// JSON reads a request in OTLP's JSON. With an error nothing of it is in the batch.
func (d *Decoder) JSON(body []byte, b *ingest.Batch) error {
	// Its text is in the objects once more, and then in the protobuf.
	takes := objectBytes*bytes.Count(body, []byte{'{'}) + commaBytes*bytes.Count(body, []byte{','}) + 2*len(body)
	if !b.Charge(int64(takes)) {
		return nil
	}
	var request metricspb.MetricsData // which is the same as the request, without its service
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(body, &request); err != nil {
		// The library varies what stands before its messages.
		return errors.New(strings.TrimLeft(strings.TrimPrefix(err.Error(), "proto:"), " \u00a0"))
	}
	body, err := proto.Marshal(&request)
	if err != nil {
		return err
	}
	return d.Protobuf(body, b)
}

// The fields of the messages down to a metric.
var (
	requestResources = bytesTag(1)

	resourceResource   = bytesTag(1)
	resourceScopes     = bytesTag(2)
	resourceAttributes = bytesTag(1)

	scopeScope      = bytesTag(1)
	scopeMetrics    = bytesTag(2)
	scopeSchemaURL  = bytesTag(3)
	scopeName       = bytesTag(1)
	scopeVersion    = bytesTag(2)
	scopeAttributes = bytesTag(3)
)

// Protobuf reads a request in protobuf. With an error what stands before it is in the batch. The batch holds views into
// the body.
func (d *Decoder) Protobuf(body []byte, b *ingest.Batch) error {
	d.b = b
	defer func() { d.b = nil }()
	f := fields{rest: body}
	for f.next() {
		if f.tag == requestResources {
			if err := d.resourceMetrics(f.bytes); err != nil {
				return d.failure(body, err)
			}
		}
	}
	return d.failure(body, f.err)
}

func (d *Decoder) failure(body []byte, err error) error {
	if errors.Is(err, errFull) {
		return nil
	}
	if broken := (*wireError)(nil); errors.As(err, &broken) {
		return fmt.Errorf("at byte %d: %w", cap(body)-broken.left, err)
	}
	return err
}

func (d *Decoder) resourceMetrics(b []byte) error {
	d.resource, d.identity, d.taken, d.latestMs = d.resource[:0], d.identity[:0], 0, ingest.NoTime
	var bad flaw
	f := fields{rest: b}
	for f.next() {
		if f.tag != resourceResource {
			continue
		}
		var err error
		// Of the others target_info is made, and nothing else.
		if d.resource, bad, err = d.attributes(d.resource[:0], f.bytes, resourceAttributes, d.onAll); err != nil {
			return err
		}
	}
	if f.err != nil {
		return f.err
	}
	d.identify()
	f = fields{rest: b}
	for f.next() {
		if f.tag == resourceScopes {
			if err := d.scopeMetrics(f.bytes, bad); err != nil {
				return err
			}
		}
	}
	if f.err != nil {
		return f.err
	}
	return d.targetInfo()
}

// onAll says whether an attribute of the resource has a part in the labels of all its series.
func (d *Decoder) onAll(key string) bool {
	return identifies(key) || slices.Contains(d.opts.Promote, key)
}

func all(string) bool { return true }

// attributes reads those of the fields of a message that have the tag. Only the flaws of those that matter are told.
func (d *Decoder) attributes(to []attribute, message []byte, which tag, matters func(key string) bool) ([]attribute, flaw, error) {
	var bad flaw
	f := fields{rest: message}
	for f.next() {
		if f.tag != which {
			continue
		}
		key, value, err := keyValue(f.bytes)
		if err != nil {
			return to, bad, err
		}
		if len(to) > d.opts.Labels {
			// They are too many for translate. What the series need all the same is kept, once.
			if !d.onAll(key) {
				continue
			}
			to = slices.DeleteFunc(to, func(a attribute) bool { return a.key == key })
		}
		a, problem, err := d.attribute(key, value)
		if err != nil {
			return to, bad, err
		}
		if problem.reason != "" && matters(a.key) {
			bad = problem
		}
		to = append(to, a)
	}
	return to, bad, f.err
}

func (d *Decoder) attribute(key string, value []byte) (attribute, flaw, error) {
	text, err := d.text(value)
	if errors.Is(err, errTooComplex) {
		return attribute{key: key, noText: true}, flawed(ingest.ReasonInvalidLabel, "attribute %q: %s", clip(key), err), nil
	}
	return attribute{key: key, value: text}, flaw{}, err
}

// The attributes that make job and instance.
const (
	serviceName      = "service.name"
	serviceNamespace = "service.namespace"
	serviceInstance  = "service.instance.id"
)

func identifies(key string) bool {
	return key == serviceName || key == serviceNamespace || key == serviceInstance
}

// identify makes job and instance of the resource.
func (d *Decoder) identify() {
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
	if name != "" {
		d.identity = append(d.identity, metric.Label{Name: "job", Value: name})
	}
	if instance != "" {
		d.identity = append(d.identity, metric.Label{Name: "instance", Value: instance})
	}
}

// targetInfo adds the sample that has the resource's attributes as labels, where there is anything to join it with.
func (d *Decoder) targetInfo() error {
	d.scratch = d.scratch[:0]
	for _, a := range d.resource {
		if a.noText {
			return nil
		}
		if !identifies(a.key) {
			d.scratch = append(d.scratch, a)
		}
	}
	if d.taken == 0 || len(d.identity) == 0 || len(d.scratch) == 0 {
		return nil
	}
	labels, bad := d.translate(d.labels[:0], d.scratch, "")
	if d.labels = labels; bad.reason != "" {
		return nil
	}
	for _, l := range d.identity {
		d.set(l)
	}
	d.note(metric.Metadata{Name: "target_info", Type: metric.TypeGauge, Help: "Attributes of the resource"})
	if err := d.series("target_info"); err != nil {
		return err
	}
	if !d.b.AddTo(ingest.NoMeasurement, d.latestMs, 1) {
		return errFull
	}
	return nil
}

func (d *Decoder) scopeMetrics(b []byte, bad flaw) error {
	var scope, schemaURL []byte
	f := fields{rest: b}
	for f.next() {
		switch f.tag {
		case scopeScope:
			scope = f.bytes
		case scopeSchemaURL:
			schemaURL = f.bytes
		}
	}
	if f.err != nil {
		return f.err
	}
	problem, err := d.scope(scope, schemaURL)
	if err != nil {
		return err
	}
	if bad.reason == "" {
		bad = problem
	}
	f = fields{rest: b}
	for f.next() {
		if f.tag == scopeMetrics {
			if err := d.metric(f.bytes, bad); err != nil {
				return err
			}
		}
	}
	return f.err
}

// scope puts together the labels that all series of a scope have. Where two have the same name, the later one counts: job and
// instance before what is promoted, and what tells the scope before both.
func (d *Decoder) scope(scope, schemaURL []byte) (flaw, error) {
	d.fixed = d.fixed[:0]
	d.scratch = d.scratch[:0]
	for _, a := range d.resource {
		if slices.Contains(d.opts.Promote, a.key) {
			d.scratch = append(d.scratch, a)
		}
	}
	labels, bad := d.translate(d.labels[:0], d.scratch, "")
	if d.labels = labels; bad.reason != "" {
		return bad, nil
	}
	for _, l := range d.labels {
		d.fix(l, false)
	}
	for _, l := range d.identity {
		d.fix(l, true)
	}

	var err error
	if d.scratch, bad, err = d.attributes(d.scratch[:0], scope, scopeAttributes, all); err != nil || bad.reason != "" {
		return bad, err
	}
	labels, bad = d.translate(d.labels[:0], d.scratch, "otel_scope_")
	if d.labels = labels; bad.reason != "" {
		return bad, nil
	}
	for _, l := range d.labels {
		d.fix(l, true)
	}
	f := fields{rest: scope}
	for f.next() {
		switch f.tag {
		case scopeName:
			d.fix(metric.Label{Name: "otel_scope_name", Value: view(f.bytes)}, true)
		case scopeVersion:
			d.fix(metric.Label{Name: "otel_scope_version", Value: view(f.bytes)}, true)
		}
	}
	d.fix(metric.Label{Name: "otel_scope_schema_url", Value: view(schemaURL)}, true)
	return flaw{}, f.err
}

func (d *Decoder) fix(l metric.Label, strong bool) {
	if l.Value == "" {
		return
	}
	for i := range d.fixed {
		if d.fixed[i].Name == l.Name {
			d.fixed[i] = fixedLabel{l, strong}
			return
		}
	}
	d.fixed = append(d.fixed, fixedLabel{l, strong})
}

// translate makes labels of attributes and appends them.
func (d *Decoder) translate(to []metric.Label, attributes []attribute, prefix string) ([]metric.Label, flaw) {
	if len(attributes) > d.opts.Labels {
		return to, flawed(ingest.ReasonLimit, "more than the limit of %d attributes", d.opts.Labels)
	}
	begin, collide := len(to), false
	for _, a := range attributes {
		if n := len(prefix) + len(a.key); n > ingest.MaxNameBytes {
			return to, flawed(ingest.ReasonInvalidLabel, "attribute %q…: its key has %d bytes, more than the limit of %d", clip(a.key), n, ingest.MaxNameBytes)
		}
		name, err := d.names.label(prefix + a.key)
		if err != nil {
			return to, flawed(ingest.ReasonInvalidLabel, "%s", err)
		}
		if name == metric.NameLabel {
			continue // the metric has a name
		}
		collide = collide || find(to[begin:], name) >= 0
		to = append(to, metric.Label{Name: name, Value: a.value})
	}
	if collide {
		return d.join(to[:begin], attributes, prefix)
	}
	return to, flaw{}
}

// join is translate where keys differ and names do not: their values are joined in the order of the keys.
func (d *Decoder) join(to []metric.Label, attributes []attribute, prefix string) ([]metric.Label, flaw) {
	begin := len(to)
	slices.SortStableFunc(attributes, func(a, b attribute) int { return strings.Compare(a.key, b.key) })
	for _, a := range attributes {
		name, _ := d.names.label(prefix + a.key) // translate has seen that it has one
		if name == metric.NameLabel {
			continue
		}
		at := find(to[begin:], name)
		switch {
		case at < 0:
			to = append(to, metric.Label{Name: name, Value: a.value})
		case to[begin+at].Value == "":
			to[begin+at].Value = a.value
		case len(to[begin+at].Value)+len(a.value) > maxBytes:
			return to, flawed(ingest.ReasonLimit, "the values of all attributes that become label %q are too long together", clip(name))
		case a.value != "":
			to[begin+at].Value += ";" + a.value
		}
	}
	return to, flaw{}
}

// set gives the data point a label, in place of one that it has.
func (d *Decoder) set(l metric.Label) {
	if at := find(d.labels, l.Name); at >= 0 {
		d.labels[at] = l
		return
	}
	d.labels = append(d.labels, l)
}

func find(labels []metric.Label, name string) int {
	return slices.IndexFunc(labels, func(l metric.Label) bool { return l.Name == name })
}

// series begins a series with the data point's labels.
func (d *Decoder) series(name string) error {
	d.b.Series(name, d.labels)
	if d.b.TooMany() {
		return errFull
	}
	return nil
}

func (d *Decoder) note(m metric.Metadata) {
	if d.opts.Note != nil {
		d.opts.Note(m)
	}
}

// view is b as a string that shares its bytes.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
