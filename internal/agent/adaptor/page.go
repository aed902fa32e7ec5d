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

	memory  []byte         // where the texts and labels lie that were known before
	series  []series       // the known ones, and behind them those that are new
	known   int            // how many were known
	index   map[string]int // of the series, by text and by labels, once one came that was not the next
	order   []int          // of the series in this scrape
	changed bool           // the series are not what they were, or not in this order
}

// series is one of a target.
type series struct {
	text   []byte // as the target writes it
	labels []byte // as a prometheus.TimeSeries has them; empty if the series is dropped
	timed  bool   // the target gives it times: Prometheus writes no stale marker for it
	seen   bool
}

var staleMarker = math.Float64frombits(value.StaleNaN)

var pages = sync.Pool{New: func() any { return new(page) }}

var unzstd, _ = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1)) // it has no error

// recall returns a page for a scrape with the series of the last one.
func recall(last []byte, timeMs int64) *page {
	p := pages.Get().(*page)
	memory, _ := unzstd.DecodeAll(last, p.memory[:0]) // it was in memory all the time
	*p = page{timeMs: timeMs, body: p.body[:0], memory: memory, series: p.series[:0], order: p.order[:0]}
	for rest := memory; len(rest) > 0; {
		var s series
		var n int
		s.text, n = protowire.ConsumeBytes(rest)
		rest = rest[n:]
		s.labels, n = protowire.ConsumeBytes(rest)
		rest = rest[n:]
		timed, n := protowire.ConsumeVarint(rest)
		s.timed, rest = protowire.DecodeBool(timed), rest[n:]
		p.series = append(p.series, s)
	}
	p.known = len(p.series)
	return p
}

// keep keeps the series of a scrape.
func (t *target) keep(p *page) {
	if !p.changed && len(p.order) == p.known {
		return
	}
	var all []byte
	for _, i := range p.order {
		s := &p.series[i]
		all = protowire.AppendBytes(protowire.AppendBytes(all, s.text), s.labels)
		all = protowire.AppendVarint(all, protowire.EncodeBool(s.timed))
	}
	t.last = t.out.zstd.EncodeAll(all, nil)
}

// add appends a sample of a series.
func (p *page) add(labels []byte, v float64, timeMs int64) {
	p.body = appendSample(p.body, labels, v, timeMs)
}

// drop drops the samples, but not the counts.
func (p *page) drop() {
	p.body, p.order, p.series, p.changed = p.body[:0], p.order[:0], p.series[:p.known], true
	for i := range p.series {
		p.series[i].seen = false
	}
}

// end appends a stale marker for each known series that this scrape does not have.
func (p *page) end() {
	for i := range p.series[:p.known] {
		if s := &p.series[i]; !s.seen && len(s.labels) > 0 && !s.timed {
			p.add(s.labels, staleMarker, p.timeMs)
		}
	}
}

// byLabels is before the labels of a series in the index. No text begins with it.
const byLabels = "\xff"

// find returns the series with a text, nil if it is new.
func (p *page) find(text []byte) *series {
	if p.index == nil {
		if next := len(p.order); next < p.known && bytes.Equal(p.series[next].text, text) {
			return p.meet(next)
		}
		p.changed = true
		p.index = make(map[string]int, 2*p.known)
		for i := range p.series {
			p.learn(i)
		}
	}
	if i, known := p.index[string(text)]; known {
		return p.meet(i)
	}
	return nil
}

// learn notes a series in the index.
func (p *page) learn(i int) {
	s := &p.series[i]
	p.index[string(s.text)] = i
	if len(s.labels) > 0 {
		p.index[byLabels+string(s.labels)] = i
	}
}

// meet returns a series, which this scrape has.
func (p *page) meet(i int) *series {
	s := &p.series[i]
	if !s.seen {
		p.order = append(p.order, i)
	}
	return s
}

// found returns the series with a new text. Its labels may be known: after relabeling, many texts can have the same.
func (p *page) found(text, labels []byte) *series {
	if i, known := p.index[byLabels+string(labels)]; known {
		s := p.meet(i)
		if !s.seen {
			s.text = bytes.Clone(text)
		}
		return s
	}
	i := len(p.series)
	p.series = append(p.series, series{text: bytes.Clone(text), labels: labels})
	p.learn(i)
	if len(labels) > 0 {
		p.added++
	}
	return p.meet(i)
}
