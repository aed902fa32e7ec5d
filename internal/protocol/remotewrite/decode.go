// Package remotewrite serves Prometheus remote write. It decodes prometheus.WriteRequest of
// version 1.0 and io.prometheus.write.v2.Request of version 2.0,
// https://prometheus.io/docs/specs/prw/remote_write_spec_2_0.
//
// It decodes the wire format itself, since a generated decoder allocates an object for every label
// and sample. Fields may come in any order; unknown fields are skipped. Sample values are kept bit
// for bit. Each native histogram is rejected as one measurement; exemplars and start times are
// skipped.
package remotewrite

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

// These are the fields of the messages, by their names in the .proto files.
const (
	request1Timeseries = 1
	request1Metadata   = 3

	series1Labels     = 1
	series1Samples    = 2
	series1Histograms = 4

	labelName  = 1
	labelValue = 2

	metadata1Type   = 1
	metadata1Family = 2
	metadata1Help   = 4
	metadata1Unit   = 5

	request2Symbols    = 4
	request2Timeseries = 5

	series2LabelsRefs = 1
	series2Samples    = 2
	series2Histograms = 3
	series2Metadata   = 5

	metadata2Type    = 1
	metadata2HelpRef = 3
	metadata2UnitRef = 4

	sampleValue     = 1
	sampleTimestamp = 2
)

// maxKept is the number of symbols for which a decoder keeps capacity.
const maxKept = 256 << 10

// maxNoted and maxNotedUnit truncate the metadata of a metric. They exceed what any catalog keeps.
// The limit matters because the metadata of every series is compared with the previous one.
const (
	maxNoted     = 2 << 10
	maxNotedUnit = 128
)

// symbolBytes is the memory of a symbol. In the message, an empty symbol takes only two bytes.
const symbolBytes = int64(unsafe.Sizeof(""))

// refBytes is the memory of a reference, which may take a single byte in the message.
const refBytes = int64(unsafe.Sizeof(uint32(0)))

const histogramMessage = "native histograms are not stored"

// decoder decodes one request at a time. It is not safe for concurrent use.
type decoder struct {
	// Note receives metadata. The strings are views into the body. The default discards it.
	Note func(metric.Metadata)

	labels  []metric.Label
	symbols []string
	refs    []uint32
	last    metric.Metadata // the last metadata passed to Note
}

// Decode adds the series of a prometheus.WriteRequest to a batch, whose strings are then views into the body. The error concerns the rest
// of the body.
func Decode(body []byte, b *ingest.Batch) error { return new(decoder).v1(body, b) }

// v1 adds the contents of a prometheus.WriteRequest to the batch; its strings are views into the
// body. The error concerns the rest of the body: the batch has the series before it. v1 stops early
// if the batch is full.
func (d *decoder) v1(body []byte, b *ingest.Batch) error {
	defer d.release()
	m := message{b: body}
	known, foreign := false, false
	for series := 0; m.more() && !b.TooMany(); {
		begin := m.i
		switch field, typ := m.tag(); field {
		case request1Timeseries:
			known = true
			ts := m.bytes(field, typ)
			if m.err != nil {
				break
			}
			if err := d.series1(ts, b); err != nil {
				return fmt.Errorf("timeseries %d, at byte %d: %w", series, begin, err)
			}
			series++
		case request1Metadata:
			known = true
			md := m.bytes(field, typ)
			if m.err != nil {
				break
			}
			if !b.Charge(ingest.MessageBytes) {
				return nil
			}
			if err := d.metadata1(md); err != nil {
				return fmt.Errorf("metadata at byte %d: %w", begin, err)
			}
		default:
			foreign = foreign || field == request2Symbols || field == request2Timeseries
			m.skip(field, typ)
		}
		if m.err != nil {
			return fmt.Errorf("after %d timeseries, at byte %d: %w", series, begin, m.err)
		}
	}
	if foreign && !known {
		return errIsV2
	}
	return nil
}

// A message of one version decodes as an empty message of the other, since unknown fields are
// skipped. These errors prevent that from passing as success.
var (
	errIsV1 = errors.New("the message is a prometheus.WriteRequest, but the Content-Type says io.prometheus.write.v2.Request")
	errIsV2 = errors.New("the message is an io.prometheus.write.v2.Request, but the Content-Type does not say so: " +
		"application/x-protobuf;proto=io.prometheus.write.v2.Request")
)

// release drops references to the body.
func (d *decoder) release() {
	clear(d.labels)
	clear(d.symbols)
	d.labels, d.symbols, d.last = d.labels[:0], d.symbols[:0], metric.Metadata{}
	if cap(d.symbols) > maxKept {
		d.symbols = nil
	}
	if cap(d.refs) > maxKept {
		d.refs = nil
	}
}

func (d *decoder) series1(b []byte, batch *ingest.Batch) error {
	if !batch.Charge(ingest.MessageBytes) {
		return nil
	}
	d.labels = d.labels[:0]
	var named name
	samples := -1
	m := message{b: b}
	for m.more() {
		begin := m.i
		switch field, typ := m.tag(); field {
		case series1Labels:
			n, v, err := label(m.bytes(field, typ))
			if err != nil {
				return err
			}
			d.label(batch, &named, n, v)
		case series1Samples, series1Histograms:
			if samples < 0 {
				samples = begin
			}
			m.bytes(field, typ)
		default:
			m.skip(field, typ)
		}
	}
	if m.err != nil || samples < 0 {
		return m.err
	}
	batch.Series(named.value, d.labels)
	for m.i = samples; m.more(); {
		switch field, typ := m.tag(); field {
		case series1Samples:
			if ok, err := add(batch, m.bytes(field, typ)); !ok {
				return err
			}
		case series1Histograms:
			m.bytes(field, typ)
			if !batch.Reject(ingest.ReasonUnsupported, histogramMessage) {
				return nil
			}
		default:
			m.skip(field, typ)
		}
	}
	return m.err
}

// name is the value of metric.NameLabel, if found.
type name struct {
	value string
	found bool
}

// label adds a label to the series. An empty value means no label.
func (d *decoder) label(b *ingest.Batch, n *name, key, value string) {
	switch {
	case key == metric.NameLabel && !n.found:
		n.value, n.found = value, true
	case value != "":
		d.labels = b.Label(d.labels, key, value)
	}
}

func label(b []byte) (n, v string, err error) {
	m := message{b: b}
	for m.more() {
		switch field, typ := m.tag(); field {
		case labelName:
			n = m.text(field, typ)
		case labelValue:
			v = m.text(field, typ)
		default:
			m.skip(field, typ)
		}
	}
	return n, v, m.err
}

// add adds one sample, which both versions encode alike. It returns false if the caller must stop.
func add(batch *ingest.Batch, b []byte) (bool, error) {
	var timeMs int64
	var value float64
	m := message{b: b}
	for m.more() {
		switch field, typ := m.tag(); field {
		case sampleValue:
			value = m.float(field, typ)
		case sampleTimestamp:
			timeMs = int64(m.uint(field, typ))
		default:
			m.skip(field, typ)
		}
	}
	if m.err != nil {
		return false, m.err
	}
	if timeMs == ingest.NoTime {
		return batch.Reject(ingest.ReasonInvalidTime, "time %d: must be Unix milliseconds, 0 or later", timeMs), nil
	}
	return batch.Add(timeMs, value), nil
}

func (d *decoder) metadata1(b []byte) error {
	var md metric.Metadata
	m := message{b: b}
	for m.more() {
		switch field, typ := m.tag(); field {
		case metadata1Type:
			md.Type = metricType(m.uint(field, typ))
		case metadata1Family:
			md.Name = m.text(field, typ)
		case metadata1Help:
			md.Help = m.text(field, typ)
		case metadata1Unit:
			md.Unit = m.text(field, typ)
		default:
			m.skip(field, typ)
		}
	}
	if m.err == nil {
		d.note(md)
	}
	return m.err
}

// metricType decodes the enum MetricType, whose numbers are the same in both versions.
func metricType(n uint64) metric.Type {
	if n > uint64(metric.TypeStateset) {
		return metric.TypeUnknown
	}
	return metric.Type(n)
}

func (d *decoder) note(m metric.Metadata) {
	if len(m.Name) > maxNoted {
		return
	}
	m.Help, m.Unit = m.Help[:min(len(m.Help), maxNoted)], m.Unit[:min(len(m.Unit), maxNotedUnit)]
	if d.Note != nil && m.Name != "" && m != d.last {
		d.last = m
		d.Note(m)
	}
}

// v2 is v1 for an io.prometheus.write.v2.Request.
func (d *decoder) v2(body []byte, b *ingest.Batch) error {
	defer d.release()
	// Symbols may be anywhere in the message, so collect them first.
	first, end, broken := d.symbolsOf(body, b)
	if broken == nil && first < 0 && len(d.symbols) == 0 && hasField(body, request1Timeseries, request1Metadata) {
		return errIsV1
	}
	first = max(first, 0)
	m := message{b: body[:end], i: first}
	for series := 0; m.more() && !b.TooMany(); {
		begin := m.i
		field, typ := m.tag()
		if field != request2Timeseries {
			m.skip(field, typ)
			continue
		}
		if err := d.series2(m.bytes(field, typ), b); err != nil {
			return fmt.Errorf("timeseries %d, at byte %d: %w", series, begin, err)
		}
		series++
	}
	if broken != nil {
		return fmt.Errorf("at byte %d: %w", end, broken)
	}
	return nil
}

// symbolsOf collects the symbols. The timeseries lie between first and end, where the message is
// intact; first is negative if there are none.
func (d *decoder) symbolsOf(body []byte, b *ingest.Batch) (first, end int, broken error) {
	first = -1
	m := message{b: body}
	for m.more() {
		begin := m.i
		switch field, typ := m.tag(); field {
		case request2Symbols:
			symbol := m.text(field, typ)
			if !b.Charge(symbolBytes) {
				return 0, 0, nil
			}
			d.symbols = append(d.symbols, symbol)
		case request2Timeseries:
			if first < 0 {
				first = begin
			}
			m.bytes(field, typ)
		default:
			m.skip(field, typ)
		}
		if m.err != nil {
			return first, begin, m.err
		}
	}
	return first, len(body), nil
}

// hasField returns whether an intact message has one of the fields.
func hasField(body []byte, which ...int) bool {
	for m := (message{b: body}); m.more(); {
		field, typ := m.tag()
		if slices.Contains(which, field) {
			return true
		}
		m.skip(field, typ)
	}
	return false
}

func (d *decoder) series2(b []byte, batch *ingest.Batch) error {
	if !batch.Charge(ingest.MessageBytes) {
		return nil
	}
	d.labels, d.refs = d.labels[:0], d.refs[:0]
	var md metadata2
	samples := -1
	m := message{b: b}
	for m.more() {
		begin := m.i
		switch field, typ := m.tag(); field {
		case series2LabelsRefs:
			if !d.appendRefs(&m, field, typ, batch) {
				return m.err
			}
		case series2Samples, series2Histograms:
			if samples < 0 {
				samples = begin
			}
			m.bytes(field, typ)
		case series2Metadata:
			if err := md.read(m.bytes(field, typ)); err != nil {
				return err
			}
		default:
			m.skip(field, typ)
		}
	}
	if m.err != nil {
		return m.err
	}
	named, wrong := d.resolve(batch)
	if wrong == "" {
		d.noteSeries(named, md)
	}
	if samples < 0 {
		return nil
	}
	batch.Series(named, d.labels)
	for m.i = samples; m.more(); {
		field, typ := m.tag()
		isSample, isHistogram := field == series2Samples, field == series2Histograms
		switch {
		case isSample && wrong == "":
			if ok, err := add(batch, m.bytes(field, typ)); !ok {
				return err
			}
			continue
		case isSample && !batch.Reject(ingest.ReasonInvalidLabel, "%s", wrong),
			isHistogram && !batch.Reject(ingest.ReasonUnsupported, histogramMessage):
			return nil
		}
		m.skip(field, typ)
	}
	return m.err
}

// appendRefs decodes references to symbols, packed or not. It returns false if the batch has no
// room for them.
func (d *decoder) appendRefs(m *message, field, typ int, b *ingest.Batch) bool {
	if typ == varintType {
		d.refs = append(d.refs, uint32(m.varint()))
		return b.Charge(refBytes)
	}
	p := message{b: m.bytes(field, typ)}
	if !b.Charge(refBytes * int64(len(p.b))) {
		return false
	}
	for p.more() {
		d.refs = append(d.refs, uint32(p.varint()))
		m.err = p.err
	}
	return true
}

// resolve converts the references to labels, or returns what is wrong with them.
func (d *decoder) resolve(batch *ingest.Batch) (series, wrong string) {
	if len(d.refs)%2 != 0 {
		return "", fmt.Sprintf("labels_refs has %d entries, must be pairs of name and value", len(d.refs))
	}
	var named name
	for i := 0; i < len(d.refs); i += 2 {
		n, ok := d.symbol(d.refs[i])
		v, ok2 := d.symbol(d.refs[i+1])
		if !ok || !ok2 {
			return "", fmt.Sprintf("labels_refs %d and %d: there are only %d symbols", d.refs[i], d.refs[i+1], len(d.symbols))
		}
		d.label(batch, &named, n, v)
	}
	return named.value, ""
}

func (d *decoder) symbol(ref uint32) (string, bool) {
	if uint64(ref) >= uint64(len(d.symbols)) {
		return "", false
	}
	return d.symbols[ref], true
}

// metadata2 is the metadata attached to a series in version 2.0.
type metadata2 struct {
	kind       metric.Type
	help, unit uint32
}

func (md *metadata2) read(b []byte) error {
	m := message{b: b}
	for m.more() {
		switch field, typ := m.tag(); field {
		case metadata2Type:
			md.kind = metricType(m.uint(field, typ))
		case metadata2HelpRef:
			md.help = uint32(m.uint(field, typ))
		case metadata2UnitRef:
			md.unit = uint32(m.uint(field, typ))
		default:
			m.skip(field, typ)
		}
	}
	return m.err
}

// noteSeries notes the metadata of a series' family. Invalid references drop the metadata, but not
// the samples.
func (d *decoder) noteSeries(series string, md metadata2) {
	help, ok := d.symbol(md.help)
	unit, ok2 := d.symbol(md.unit)
	if ok && ok2 && (md.kind != metric.TypeUnknown || help != "" || unit != "") {
		d.note(metric.Metadata{Name: family(series, md.kind), Type: md.kind, Help: help, Unit: unit})
	}
}

// family returns the metric family of a series: histograms and summaries have several series names.
func family(series string, t metric.Type) string {
	var suffixes []string
	switch t {
	case metric.TypeHistogram:
		suffixes = []string{"_bucket", "_sum", "_count"}
	case metric.TypeGaugeHistogram:
		suffixes = []string{"_bucket", "_gsum", "_gcount", "_sum", "_count"}
	case metric.TypeSummary:
		suffixes = []string{"_sum", "_count"}
	}
	for _, s := range suffixes {
		if base, ok := strings.CutSuffix(series, s); ok {
			return base
		}
	}
	return series
}
