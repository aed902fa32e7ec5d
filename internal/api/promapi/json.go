package promapi

import (
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	promstorage "github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
	"github.com/prometheus/prometheus/util/stats"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/respond"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/wire/excerpt"
)

// evaluated is the data of a query's answer.
type evaluated struct {
	value parser.Value
	stats stats.QueryStats // nil unless requested
}

// seriesList is the data of a series listing. Labels are converted as they are sent.
type seriesList []promstorage.Series

// wordList is the data of a list of names or values.
type wordList []string

// metadataList is the data of what is known of metrics: of each all that is known of it, which is not empty.
type metadataList [][]metric.Metadata

// chunkBytes is how much of an answer is put together before it is sent.
const chunkBytes = 256 << 10

// writer sends an answer while it is encoded. A write error means that the client has gone, so
// nobody needs the error or the rest.
type writer struct {
	b    []byte
	out  http.ResponseWriter
	gone bool
}

func (w *writer) spill() {
	if len(w.b) >= chunkBytes {
		_, err := w.out.Write(w.b)
		w.gone = err != nil
		w.b = w.b[:0]
	}
}

// list writes an array of n elements; one writes each.
func (w *writer) list(n int, one func(i int)) {
	w.between('[', ']', n, one)
}

// between writes n elements, or members of an object, each by one.
func (w *writer) between(begin, end byte, n int, one func(i int)) {
	w.b = append(w.b, begin)
	for i := range n {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		one(i)
		if w.spill(); w.gone {
			return
		}
	}
	w.b = append(w.b, end)
}

// reply sends an answer. Large answers are encoded by hand, the rest by encoding/json.
func reply(out http.ResponseWriter, ans answer, querier *query.Querier, warnings, infos []string) {
	out.Header().Set("Content-Type", "application/json")
	w := &writer{out: out}
	w.b = append(w.b, `{"status":"success","data":`...)
	switch v := ans.data.(type) {
	case evaluated:
		w.b = slices.Grow(w.b, min(chunkBytes, v.bytes()))
		w.evaluated(v)
	case seriesList:
		w.list(len(v), func(i int) { w.b = appendLabels(w.b, v[i].Labels()) })
	case wordList:
		w.list(len(v), func(i int) { w.b = appendString(w.b, v[i]) })
	case metadataList:
		w.metadata(v)
	default:
		w.b = appendJSON(w.b, v)
	}
	if ans.levels != nil && !w.gone {
		w.levels(ans.levels, querier.Ladder())
	}
	if len(warnings) > 0 {
		w.b = appendJSON(append(w.b, `,"warnings":`...), warnings)
	}
	if len(infos) > 0 {
		w.b = appendJSON(append(w.b, `,"infos":`...), infos)
	}
	w.b = append(w.b, '}')
	if !w.gone {
		_, _ = out.Write(w.b)
	}
}

func encodeFailure(f *failure, found annotations.Annotations) []byte {
	warnings, infos := found.AsStrings("", 10, 10)
	for _, said := range [][]string{warnings, infos} {
		for i := range said {
			said[i] = excerpt.Message(said[i])
		}
	}
	return appendJSON(nil, struct {
		Status    string   `json:"status"`
		ErrorType string   `json:"errorType"`
		Error     string   `json:"error"`
		Warnings  []string `json:"warnings,omitempty"`
		Infos     []string `json:"infos,omitempty"`
	}{"error", f.kind, excerpt.Message(f.err.Error()), warnings, infos})
}

func replyFailure(out http.ResponseWriter, code int, message []byte) {
	out.Header().Set("Content-Type", "application/json")
	switch code {
	case http.StatusServiceUnavailable:
		out.Header().Set("Retry-After", respond.RetryAway)
	case http.StatusTooManyRequests:
		out.Header().Set("Retry-After", respond.RetryBusy)
	}
	out.WriteHeader(code)
	_, _ = out.Write(message)
}

func appendJSON(b []byte, v any) []byte {
	enc, err := json.Marshal(v)
	if err != nil {
		panic(err) // a value of this package that JSON cannot represent
	}
	return append(b, enc...)
}

// bytes returns about how many bytes the floats of a matrix take in an answer, 0 of other values.
func (e evaluated) bytes() (n int) {
	const point = 24 // the time, a comma and five digits
	matrix, _ := e.value.(promql.Matrix)
	for i := range matrix {
		n += point * len(matrix[i].Floats)
	}
	return n
}

func (w *writer) evaluated(e evaluated) {
	w.b = append(w.b, `{"resultType":"`...)
	w.b = append(w.b, e.value.Type()...)
	w.b = append(w.b, `","result":`...)
	switch v := e.value.(type) {
	case promql.Vector:
		w.list(len(v), func(i int) { w.sample(&v[i]) })
	case promql.Matrix:
		w.list(len(v), func(i int) { w.series(&v[i]) })
	case promql.Scalar:
		w.b = appendPoint(w.b, v.T, v.V)
	case promql.String:
		w.b = append(appendTime(append(w.b, '['), v.T), ',')
		w.b = append(appendString(w.b, v.V), ']')
	}
	if e.stats != nil {
		w.b = append(w.b, `,"stats":`...)
		w.b = appendJSON(w.b, e.stats)
	}
	w.b = append(w.b, '}')
}

// levels writes from where each selector was read. Times are in seconds, as those of samples.
func (w *writer) levels(of *query.Levels, ladder metric.Ladder) {
	all, more := of.List()
	w.b = append(w.b, `,"levels":`...)
	w.list(len(all), func(i int) {
		s := &all[i]
		w.b = appendString(append(w.b, `{"selector":`...), s.Selector)
		w.b = append(w.b, `,"parts":`...)
		w.list(len(s.Parts), func(i int) {
			p := &s.Parts[i]
			w.b = appendString(append(w.b, `{"level":`...), ladder.Name(p.Bucket))
			w.b = appendTime(append(w.b, `,"start":`...), p.StartMs)
			w.b = appendTime(append(w.b, `,"end":`...), p.EndMs)
			w.b = strconv.AppendInt(append(w.b, `,"series":`...), int64(p.Series), 10)
			w.b = strconv.AppendBool(append(w.b, `,"late":`...), p.Late)
			w.b = strconv.AppendBool(append(w.b, `,"partial":`...), p.Partial)
			w.b = append(w.b, '}')
		})
		if s.Cut {
			w.b = append(w.b, `,"cut":true`...)
		}
		w.b = append(w.b, '}')
	})
	if more > 0 {
		w.b = strconv.AppendInt(append(w.b, `,"levelsCut":`...), int64(more), 10)
	}
}

func (w *writer) metadata(all metadataList) {
	w.between('{', '}', len(all), func(i int) {
		w.b = append(appendString(w.b, all[i][0].Name), ':')
		w.list(len(all[i]), func(n int) {
			m := &all[i][n]
			w.b = appendString(append(w.b, `{"type":`...), m.Type.String())
			w.b = appendString(append(w.b, `,"help":`...), m.Help)
			w.b = append(appendString(append(w.b, `,"unit":`...), m.Unit), '}')
		})
	})
}

func (w *writer) sample(s *promql.Sample) {
	w.b = append(w.b, `{"metric":`...)
	w.b = appendLabels(w.b, s.Metric)
	if s.H == nil {
		w.b = appendPoint(append(w.b, `,"value":`...), s.T, s.F)
	} else {
		w.b = appendHistogramPoint(append(w.b, `,"histogram":`...), s.T, s.H)
	}
	w.b = append(w.b, '}')
}

func (w *writer) series(s *promql.Series) {
	w.b = append(w.b, `{"metric":`...)
	w.b = appendLabels(w.b, s.Metric)
	if len(s.Floats) > 0 {
		w.b = append(w.b, `,"values":`...)
		w.list(len(s.Floats), func(i int) { w.b = appendPoint(w.b, s.Floats[i].T, s.Floats[i].F) })
	}
	if len(s.Histograms) > 0 {
		w.b = append(w.b, `,"histograms":`...)
		w.list(len(s.Histograms), func(i int) { w.b = appendHistogramPoint(w.b, s.Histograms[i].T, s.Histograms[i].H) })
	}
	w.b = append(w.b, '}')
}

func appendLabels(b []byte, ls labels.Labels) []byte {
	b = append(b, '{')
	first := true
	ls.Range(func(l labels.Label) {
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(appendString(b, l.Name), ':')
		b = appendString(b, l.Value)
	})
	return append(b, '}')
}

// appendPoint appends [time, "value"].
func appendPoint(b []byte, ms int64, v float64) []byte {
	b = append(appendTime(append(b, '['), ms), ',')
	return append(appendFloat(b, v), ']')
}

// appendHistogramPoint appends [time, {histogram}], whose buckets are [kind, "lower", "upper",
// "count"]. kind says which bounds the bucket includes: 0 the upper, 1 the lower, 2 neither, 3
// both.
func appendHistogramPoint(b []byte, ms int64, h *histogram.FloatHistogram) []byte {
	b = append(appendTime(append(b, '['), ms), `,{"count":`...)
	b = append(appendFloat(b, h.Count), `,"sum":`...)
	b = appendFloat(b, h.Sum)
	n := 0
	for it := h.AllBucketIterator(); it.Next(); {
		bucket := it.At()
		if bucket.Count == 0 {
			continue
		}
		if n == 0 {
			b = append(b, `,"buckets":[`...)
		} else {
			b = append(b, ',')
		}
		n++
		kind := byte('2')
		switch {
		case bucket.LowerInclusive && bucket.UpperInclusive:
			kind = '3'
		case bucket.LowerInclusive:
			kind = '1'
		case bucket.UpperInclusive:
			kind = '0'
		}
		b = append(b, '[', kind, ',')
		b = append(appendFloat(b, bucket.Lower), ',')
		b = append(appendFloat(b, bucket.Upper), ',')
		b = append(appendFloat(b, bucket.Count), ']')
	}
	if n > 0 {
		b = append(b, ']')
	}
	return append(b, '}', ']')
}

// appendTime appends Unix ms as seconds.
func appendTime(b []byte, ms int64) []byte {
	if ms < 0 {
		b = append(b, '-')
		ms = -ms
	}
	b = strconv.AppendInt(b, ms/1000, 10)
	if f := ms % 1000; f != 0 {
		b = append(b, '.', byte('0'+f/100), byte('0'+f/10%10), byte('0'+f%10))
	}
	return b
}

// appendFloat appends a value as a string; it may be NaN or infinite.
func appendFloat(b []byte, v float64) []byte {
	const exact = 1 << 53 // integers below are their own shortest decimals
	if n := int64(v); float64(n) == v && n > -exact && n < exact && (n != 0 || !math.Signbit(v)) {
		b = strconv.AppendInt(append(b, '"'), n, 10)
		return append(b, '"')
	}
	format := byte('f')
	if abs := math.Abs(v); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		format = 'e'
	}
	b = append(b, '"')
	b = strconv.AppendFloat(b, v, format, -1, 64)
	return append(b, '"')
}

const hex = "0123456789abcdef"

// appendString appends s in quotes. Invalid UTF-8 becomes U+FFFD.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			b = utf8.AppendRune(b, r)
			i += n
			continue
		}
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, '\\', 'n')
		case c == '\r':
			b = append(b, '\\', 'r')
		case c == '\t':
			b = append(b, '\\', 't')
		case c < ' ':
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			b = append(b, c)
		}
		i++
	}
	return append(b, '"')
}
