package adaptor

import (
	"bytes"
	"math"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/prometheus/model/value"
	"google.golang.org/protobuf/encoding/protowire"
)

// page is what a scrape brings: a request of remote write, and the series that the target had before. Most targets write the same series
// in the same order, so these are kept in that order, and compressed: a map of all would take many times what a scrape needs. A map is
// made only once a series comes that is not the next.
type page struct {
	body                 []byte
	timeMs               int64
	scraped, kept, added int

	memory  []byte             // where the texts and labels of the known series lie
	known   []series           // those of the last scrape with an answer, in its order
	index   map[string]*series // by text and by labels, once one came that was not the next
	order   []*series          // those of this scrape, in its order
	changed bool               // they are not those that were known, or not in this order
}

// series is one of a target.
type series struct {
	text   []byte // as the target writes it
	labels []byte // as a prometheus.TimeSeries has them; empty if the series is dropped
	timed  bool   // the target gave it a time: Prometheus writes no stale marker for it
	now    bool   // the same, in this scrape
	seen   bool   // it is in this scrape
}

var staleMarker = math.Float64frombits(value.StaleNaN)

var pages = sync.Pool{New: func() any { return new(page) }}

var unzstd, _ = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1)) // it has no error

// recall returns a page for a scrape with the series of the last one.
func recall(last []byte, timeMs int64) *page {
	p := pages.Get().(*page)
	clear(p.known) // what they refer to would stay as long as the page
	clear(p.order)
	memory, _ := unzstd.DecodeAll(last, p.memory[:0]) // it was in memory all the time
	*p = page{timeMs: timeMs, body: p.body[:0], memory: memory, known: p.known[:0], order: p.order[:0]}
	for rest := memory; len(rest) > 0; {
		var s series
		var n int
		s.text, n = protowire.ConsumeBytes(rest)
		rest = rest[n:]
		s.labels, n = protowire.ConsumeBytes(rest)
		rest = rest[n:]
		timed, n := protowire.ConsumeVarint(rest)
		s.timed, rest = protowire.DecodeBool(timed), rest[n:]
		p.known = append(p.known, s)
	}
	return p
}

// keep keeps the series of a scrape.
func (t *target) keep(p *page) {
	if !p.changed && len(p.order) == len(p.known) {
		return
	}
	var all []byte
	for _, s := range p.order {
		all = protowire.AppendBytes(protowire.AppendBytes(all, s.text), s.labels)
		all = protowire.AppendVarint(all, protowire.EncodeBool(s.now))
	}
	t.last = t.out.zstd.EncodeAll(all, nil)
}

// add appends a series with a sample to the request.
func (p *page) add(labels []byte, v float64, timeMs int64) {
	sample := protowire.SizeTag(1) + protowire.SizeFixed64() + protowire.SizeTag(2) + protowire.SizeVarint(uint64(timeMs))
	size := len(labels) + protowire.SizeTag(2) + protowire.SizeBytes(sample)
	b := protowire.AppendVarint(protowire.AppendTag(p.body, 1, protowire.BytesType), uint64(size))
	b = append(b, labels...)
	b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.BytesType), uint64(sample))
	b = protowire.AppendFixed64(protowire.AppendTag(b, 1, protowire.Fixed64Type), math.Float64bits(v))
	p.body = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), uint64(timeMs))
}

// drop drops the samples, but not the counts.
func (p *page) drop() {
	p.body, p.order = p.body[:0], p.order[:0]
	for i := range p.known {
		p.known[i].seen = false
	}
}

// byLabels is before the labels of a series in the index. No text begins with it.
const byLabels = "\xff"

// find returns the series with a text, nil if it is new.
func (p *page) find(text []byte) *series {
	if p.index == nil {
		if next := len(p.order); next < len(p.known) && bytes.Equal(p.known[next].text, text) {
			return &p.known[next]
		}
		p.changed = true
		p.index = make(map[string]*series, 2*len(p.known))
		for i := range p.known {
			p.learn(&p.known[i])
		}
	}
	return p.index[string(text)]
}

// learn notes a series in the index.
func (p *page) learn(s *series) {
	p.index[string(s.text)] = s
	if len(s.labels) > 0 {
		p.index[byLabels+string(s.labels)] = s
	}
}

// found returns the series with a new text. Its labels may be known: after relabeling, many texts can have the same.
func (p *page) found(text, labels []byte) *series {
	if s := p.index[byLabels+string(labels)]; s != nil {
		if !s.seen {
			s.text = bytes.Clone(text)
		}
		return s
	}
	s := &series{text: bytes.Clone(text), labels: labels}
	p.learn(s)
	if len(labels) > 0 {
		p.added++
	}
	return s
}
