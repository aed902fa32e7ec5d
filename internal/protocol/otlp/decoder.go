// Package otlp serves OTLP/HTTP for metrics. It decodes an ExportMetricsServiceRequest in protobuf or JSON,
// into the series that Prometheus would make of them:
// https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics.
//
// Protobuf is decoded in place, message by message, so that a request takes no memory beyond its
// part of the batch. As a tree of objects, a malicious request could take fifty times its size.
// JSON, which is rare, is converted to protobuf first.
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
	"github.com/quern/quern/internal/wire/excerpt"
)

// objectBytes and commaBytes estimate the memory of JSON until it is protobuf: an object becomes a
// message, and a comma precedes a number or a text.
const (
	objectBytes = 256
	commaBytes  = 16
)

// settings configure a decoder.
type settings struct {
	// Promote are the resource attributes that become labels of each series of the resource, in
	// addition to job and instance.
	Promote []string
	// Labels bounds the attributes of one data point, and those of a resource or scope. The default
	// is 128.
	Labels int
	// Note receives the metadata of each decoded metric; the strings are views into the body. The
	// default discards it.
	Note func(metric.Metadata)
}

// decoder decodes one request at a time. It caches names between requests.
type decoder struct {
	opts  settings
	names names

	b *ingest.Batch

	// State of the current resource: its attributes, its job and instance, the labels that all of its
	// series have, the number of samples taken, and their latest time.
	resource []attribute
	identity []metric.Label
	common   []fixedLabel
	taken    int
	latestMs int64
	// State of the current scope: the labels that all of its series have.
	fixed []fixedLabel

	scratch []attribute
	labels  []metric.Label // labels of the current data point
	point   point
	json    jx.Writer
}

// attribute is a KeyValue with its value as text.
type attribute struct {
	key, value string
	// noText means that the value has no text.
	noText bool
}

// fixedLabel is a label that all series of a scope have. A strong label replaces a data point's
// attribute of the same name; other labels give way to it.
type fixedLabel struct {
	metric.Label

	strong bool
}

// flaw is the reason why data points are rejected; no reason means that there is no flaw.
type flaw struct {
	reason  ingest.Reason
	message string
}

// flawed makes a flaw. The arguments that are text of the client are excerpts.
func flawed(reason ingest.Reason, format string, args ...any) flaw {
	return flaw{reason, strings.ToValidUTF8(fmt.Sprintf(format, args...), "?")}
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
	if err := checkNumbers(body); err != nil {
		return err
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

// These are the fields of the messages down to a metric.
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

// fromProtobuf decodes a request in protobuf. On error, the batch has what precedes the error. The
// batch holds views into the body.
func (d *decoder) fromProtobuf(body []byte, b *ingest.Batch) error {
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

func (d *decoder) failure(body []byte, err error) error {
	if errors.Is(err, errFull) {
		return nil
	}
	if broken := (*wireError)(nil); errors.As(err, &broken) {
		return fmt.Errorf("at byte %d: %w", cap(body)-broken.left, err)
	}
	return err
}

func (d *decoder) resourceMetrics(b []byte) error {
	if !d.b.Charge(ingest.MessageBytes) {
		return errFull
	}
	d.resource, d.identity, d.taken, d.latestMs = d.resource[:0], d.identity[:0], 0, ingest.NoTime
	var bad flaw
	f := fields{rest: b}
	for f.next() {
		if f.tag != resourceResource {
			continue
		}
		var err error
		// The other attributes only go into target_info.
		if d.resource, bad, err = d.attributes(d.resource[:0], f.bytes, resourceAttributes, d.onAll); err != nil {
			return err
		}
	}
	if f.err != nil {
		return f.err
	}
	d.identify()
	if problem := d.promote(); bad.reason == "" {
		bad = problem
	}
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

// onAll returns whether a resource attribute contributes to the labels of all its series.
func (d *decoder) onAll(key string) bool {
	return identifies(key) || slices.Contains(d.opts.Promote, key)
}

func all(string) bool { return true }

// attributes decodes the fields of a message with the given tag. It reports flaws only for keys
// that matter.
func (d *decoder) attributes(to []attribute, message []byte, which tag, matters func(key string) bool) ([]attribute, flaw, error) {
	var bad flaw
	f := fields{rest: message}
	for f.next() {
		if f.tag != which {
			continue
		}
		if !d.b.Charge(ingest.MessageBytes) {
			return to, bad, errFull
		}
		key, value, err := keyValue(f.bytes)
		if err != nil {
			return to, bad, err
		}
		if len(to) > d.opts.Labels {
			// They are too many for translate. Still keep the attributes that the series need, each
			// once.
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

func (d *decoder) attribute(key string, value []byte) (attribute, flaw, error) {
	text, err := d.text(value)
	if errors.Is(err, errTooComplex) {
		return attribute{key: key, noText: true}, flawed(ingest.ReasonInvalidLabel, "attribute %s: %s", excerpt.Quoted(key), err), nil
	}
	return attribute{key: key, value: text}, flaw{}, err
}

// These attributes form job and instance.
const (
	serviceName      = "service.name"
	serviceNamespace = "service.namespace"
	serviceInstance  = "service.instance.id"
)

func identifies(key string) bool {
	return key == serviceName || key == serviceNamespace || key == serviceInstance
}

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
	if name != "" {
		d.identity = append(d.identity, metric.Label{Name: "job", Value: name})
	}
	if instance != "" {
		d.identity = append(d.identity, metric.Label{Name: "instance", Value: instance})
	}
}

// targetInfo adds the target_info sample, which has the resource's attributes as labels, if there
// are series to join it with.
func (d *decoder) targetInfo() error {
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

func (d *decoder) scopeMetrics(b []byte, bad flaw) error {
	if !d.b.Charge(ingest.MessageBytes) {
		return errFull
	}
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

// promote builds the labels that all series of the resource have. If names collide, the later source wins: first
// promoted attributes, then job and instance, then the labels of the scope.
func (d *decoder) promote() flaw {
	d.fixed, d.common = d.fixed[:0], d.common[:0]
	d.scratch = d.scratch[:0]
	for _, a := range d.resource {
		if slices.Contains(d.opts.Promote, a.key) {
			d.scratch = append(d.scratch, a)
		}
	}
	labels, bad := d.translate(d.labels[:0], d.scratch, "")
	if d.labels = labels; bad.reason != "" {
		return bad
	}
	for _, l := range d.labels {
		d.fix(l, false)
	}
	for _, l := range d.identity {
		d.fix(l, true)
	}
	d.common = append(d.common, d.fixed...)
	return flaw{}
}

// scope builds the labels that all series of a scope have.
func (d *decoder) scope(scope, schemaURL []byte) (flaw, error) {
	d.fixed = append(d.fixed[:0], d.common...)
	var bad flaw
	var err error
	if d.scratch, bad, err = d.attributes(d.scratch[:0], scope, scopeAttributes, all); err != nil || bad.reason != "" {
		return bad, err
	}
	labels, bad := d.translate(d.labels[:0], d.scratch, "otel_scope_")
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

func (d *decoder) fix(l metric.Label, strong bool) {
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

// translate converts attributes to labels and appends them.
func (d *decoder) translate(to []metric.Label, attributes []attribute, prefix string) ([]metric.Label, flaw) {
	if len(attributes) > d.opts.Labels {
		return to, flawed(ingest.ReasonLimit, "more than the limit of %d attributes", d.opts.Labels)
	}
	begin, collide := len(to), false
	for _, a := range attributes {
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
		collide = collide || find(to[begin:], name) >= 0
		to = append(to, metric.Label{Name: name, Value: a.value})
	}
	if collide {
		return d.join(to[:begin], attributes, prefix)
	}
	return to, flaw{}
}

// join is translate for different keys with the same name: it joins their values in the order of
// the keys.
func (d *decoder) join(to []metric.Label, attributes []attribute, prefix string) ([]metric.Label, flaw) {
	begin := len(to)
	slices.SortStableFunc(attributes, func(a, b attribute) int { return strings.Compare(a.key, b.key) })
	for _, a := range attributes {
		name, _ := d.names.label(prefix + a.key) // translate has checked the name
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
			return to, flawed(ingest.ReasonLimit, "the values of all attributes that become label %s are too long together", excerpt.Quoted(name))
		case a.value != "":
			to[begin+at].Value += ";" + a.value
		}
	}
	return to, flaw{}
}

// set sets a label of the data point, replacing one of the same name.
func (d *decoder) set(l metric.Label) {
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
func (d *decoder) series(name string) error {
	d.b.Series(name, d.labels)
	if d.b.TooMany() {
		return errFull
	}
	return nil
}

func (d *decoder) note(m metric.Metadata) {
	if d.opts.Note != nil {
		d.opts.Note(m)
	}
}

// view returns b as a string that shares its bytes.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
