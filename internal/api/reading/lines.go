package reading

import (
	"math"
	"net/http"

	"github.com/go-faster/jx"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/wire"
)

// WarningHeader says what is missing from a reply because stored data is damaged. It is a header if
// the reply is short enough to be sent at once, else a trailer.
const WarningHeader = "Quern-Warning"

// linesBytes is the amount of a reply that is buffered before it is sent.
const linesBytes = 64 << 10

// lines writes an NDJSON reply.
type lines struct {
	jx.Writer
	to   http.ResponseWriter
	sent bool
	// exact writes NaNs other than the usual one as their bits.
	exact bool
}

func newLines(to http.ResponseWriter) *lines { return &lines{to: to} }

// end ends a line. An error means that the client has gone.
func (l *lines) end() error {
	l.RawStr("\n")
	return l.full()
}

// full sends what is buffered if it is enough.
func (l *lines) full() error {
	if len(l.Buf) < linesBytes {
		return nil
	}
	return l.send()
}

func (l *lines) send() error {
	if !l.sent {
		if l.to.Header().Get("Content-Type") == "" {
			l.to.Header().Set("Content-Type", "application/x-ndjson")
		}
		l.sent = true
	}
	_, err := l.to.Write(l.Buf)
	l.Buf = l.Buf[:0]
	return err
}

// finish sends the rest, even if it is empty.
func (l *lines) finish() error { return l.send() }

func (l *lines) warn(all []string) {
	name := WarningHeader
	if l.sent {
		name = http.TrailerPrefix + name
	}
	for _, w := range all {
		l.to.Header().Add(name, w)
	}
}

// error sends a last line with the reason why the reply ends here.
func (l *lines) error(message string) {
	l.RawStr(`{"status":"error","error":`)
	l.Str(message)
	l.RawStr("}\n")
	// If the client has gone, there is nobody to tell. Without a flush, the line would be lost when
	// the connection is cut.
	if l.send() == nil {
		_ = http.NewResponseController(l.to).Flush()
	}
}

// metric begins a line with the labels of its series.
func (l *lines) metric(labels metric.Labels) {
	l.RawStr(`{"metric":{`)
	for i, label := range labels {
		if i > 0 {
			l.Comma()
		}
		l.Str(label.Name)
		l.RawStr(":")
		l.Str(label.Value)
	}
	l.RawStr("}")
}

// number writes a computed value, or null if it is not finite.
func (l *lines) number(field string, v float64) {
	l.RawStr(field)
	if math.IsNaN(v) || math.IsInf(v, 0) {
		l.Null()
		return
	}
	l.Float64(v)
}

// value writes a stored value in the form of exports, since JSON has no numbers for non-finite
// values. Unless exact is set, it writes what all readers of exports understand.
func (l *lines) value(v float64) {
	if form, ok := wire.NotFinite(v, l.exact); ok {
		l.RawStr(form)
		return
	}
	l.Float64(v)
}

func (l *lines) integer(field string, v int64) {
	l.RawStr(field)
	l.Int64(v)
}

func writeSamples(l *lines, s *query.Samples) {
	l.metric(s.Labels)
	l.RawStr(`,"values":[`)
	for i := range s.Samples {
		if i > 0 {
			l.Comma()
		}
		l.value(s.Samples[i].Value)
	}
	l.RawStr(`],"timestamps":[`)
	for i := range s.Samples {
		if i > 0 {
			l.Comma()
		}
		l.Int64(s.Samples[i].TimeMs)
	}
	l.RawStr("]}")
}

func writeRow(l *lines, level string, r *query.Row) {
	l.metric(r.Labels)
	l.RawStr(`,"level":`)
	l.Str(level)
	l.integer(`,"time":`, r.TimeMs)
	l.integer(`,"count":`, int64(r.Count))
	l.number(`,"sum":`, r.Sum)
	l.number(`,"min":`, r.Min)
	l.number(`,"max":`, r.Max)
	l.number(`,"avg":`, r.Avg())
	l.number(`,"first":`, r.First)
	l.number(`,"last":`, r.Last)
	l.integer(`,"first_time":`, r.FirstMs)
	l.integer(`,"last_time":`, r.LastMs)
	l.number(`,"increase":`, r.Increase)
	l.number(`,"p50":`, r.P50)
	l.number(`,"p90":`, r.P90)
	l.number(`,"p99":`, r.P99)
	if r.Partial {
		l.RawStr(`,"partial":true`)
	}
	l.RawStr("}")
}

func writePoints(l *lines, rng query.Range, s *query.SeriesPoints) {
	l.metric(s.Labels)
	l.RawStr(`,"timestamps":[`)
	for i := range s.Points {
		if i > 0 {
			l.Comma()
		}
		l.Int64(rng.IntervalMs(i))
	}
	l.RawStr(`],"count":[`)
	for i := range s.Points {
		if i > 0 {
			l.Comma()
		}
		l.UInt64(s.Points[i].Count)
	}
	for _, f := range []struct {
		start string
		value func(p *query.Point) float64
	}{
		{`],"min":[`, func(p *query.Point) float64 { return p.Min }},
		{`],"max":[`, func(p *query.Point) float64 { return p.Max }},
		{`],"avg":[`, (*query.Point).Avg},
	} {
		l.RawStr(f.start)
		for i := range s.Points {
			if i > 0 {
				l.Comma()
			}
			v := math.NaN()
			if p := &s.Points[i]; p.Count > 0 {
				v = f.value(p)
			}
			l.number("", v)
		}
	}
	l.RawStr("]}")
}

func writeLatest(l *lines, s *query.Latest) {
	l.metric(s.Labels)
	l.integer(`,"time":`, s.TimeMs)
	l.RawStr(`,"value":`)
	l.value(s.Value)
	l.RawStr("}")
}

func writeSummary(l *lines, s *query.Summary) {
	l.metric(s.Labels)
	l.point(&s.Point)
	l.number(`,"p50":`, s.P50)
	l.number(`,"p90":`, s.P90)
	l.number(`,"p99":`, s.P99)
	l.RawStr("}")
}

func writeBaseline(l *lines, b *query.Baseline) {
	l.metric(b.Labels)
	l.integer(`,"rows":`, int64(b.Rows))
	l.point(&b.Point)
	l.RawStr("}")
}

func (l *lines) point(p *query.Point) {
	l.integer(`,"count":`, int64(p.Count))
	l.number(`,"sum":`, p.Sum)
	l.number(`,"min":`, p.Min)
	l.number(`,"max":`, p.Max)
	l.number(`,"avg":`, p.Avg())
}
