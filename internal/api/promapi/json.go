package promapi

import (
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/go-faster/jx"
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
	jx.Writer
	out  http.ResponseWriter
	gone bool
}

// list writes an array of n elements; one writes each.
func (w *writer) list(n int, one func(i int)) {
	w.between('[', ']', n, one)
}

// between writes n elements, or members of an object, each by one.
func (w *writer) between(begin, end byte, n int, one func(i int)) {
	w.Buf = append(w.Buf, begin)
	for i := range n {
		if i > 0 {
			w.Comma()
		}
		one(i)
		if len(w.Buf) >= chunkBytes {
			_, err := w.out.Write(w.Buf)
			w.gone = err != nil
			w.Buf = w.Buf[:0]
		}
		if w.gone {
			return
		}
	}
	w.Buf = append(w.Buf, end)
}

// reply sends an answer. Large answers are sent as they are encoded, the rest is left to encoding/json.
func reply(out http.ResponseWriter, ans answer, querier *query.Querier, warnings, infos []string) {
	out.Header().Set("Content-Type", "application/json")
	w := &writer{out: out}
	w.RawStr(`{"status":"success","data":`)
	switch v := ans.data.(type) {
	case evaluated:
		w.Buf = slices.Grow(w.Buf, min(chunkBytes, v.bytes()))
		w.evaluated(v)
	case seriesList:
		w.list(len(v), func(i int) { w.labels(v[i].Labels()) })
	case wordList:
		w.list(len(v), func(i int) { w.text(v[i]) })
	case metadataList:
		w.metadata(v)
	default:
		w.json(v)
	}
	if ans.levels != nil {
		w.levels(ans.levels, querier.Ladder())
	}
	if len(warnings) > 0 {
		w.RawStr(`,"warnings":`)
		w.json(warnings)
	}
	if len(infos) > 0 {
		w.RawStr(`,"infos":`)
		w.json(infos)
	}
	w.ObjEnd()
	if !w.gone {
		_, _ = out.Write(w.Buf)
	}
}

func encodeFailure(f *failure, found annotations.Annotations) []byte {
	warnings, infos := found.AsStrings("", 10, 10)
	for _, messages := range [][]string{warnings, infos} {
		for i := range messages {
			messages[i] = excerpt.Message(messages[i])
		}
	}
	return marshalled(struct {
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

func marshalled(v any) []byte {
	enc, err := json.Marshal(v)
	if err != nil {
		panic(err) // a value of this package that JSON cannot represent
	}
	return enc
}

func (w *writer) json(v any) { w.Raw(marshalled(v)) }

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
	w.RawStr(`{"resultType":"`)
	w.RawStr(string(e.value.Type()))
	w.RawStr(`","result":`)
	switch v := e.value.(type) {
	case promql.Vector:
		w.list(len(v), func(i int) {
			w.RawStr(`{"metric":`)
			w.labels(v[i].Metric)
			w.RawStr(`,"value":`)
			w.point(v[i].T, v[i].F)
			w.ObjEnd()
		})
	case promql.Matrix:
		w.list(len(v), func(i int) { w.series(&v[i]) })
	case promql.Scalar:
		w.point(v.T, v.V)
	case promql.String:
		w.ArrStart()
		w.Buf = appendTime(w.Buf, v.T)
		w.Comma()
		w.text(v.V)
		w.ArrEnd()
	}
	if e.stats != nil {
		w.RawStr(`,"stats":`)
		w.json(e.stats)
	}
	w.ObjEnd()
}

// levels writes from where each selector was read. Times are in seconds, as those of samples.
func (w *writer) levels(from *query.Levels, ladder metric.Ladder) {
	type part struct {
		Level   string  `json:"level"`
		Start   float64 `json:"start"`
		End     float64 `json:"end"`
		Series  int     `json:"series"`
		Late    bool    `json:"late"`
		Partial bool    `json:"partial"`
	}
	type selector struct {
		Selector string `json:"selector"`
		Parts    []part `json:"parts"`
		Cut      bool   `json:"cut,omitempty"`
	}
	all, more := from.List()
	w.RawStr(`,"levels":`)
	w.list(len(all), func(i int) {
		out := selector{all[i].Selector, make([]part, len(all[i].Parts)), all[i].Cut}
		for n, p := range all[i].Parts {
			out.Parts[n] = part{ladder.Name(p.Bucket), float64(p.StartMs) / 1000, float64(p.EndMs) / 1000, p.Series, p.Late, p.Partial}
		}
		w.json(out)
	})
	if more > 0 {
		w.RawStr(`,"levelsCut":`)
		w.Int(more)
	}
}

func (w *writer) metadata(all metadataList) {
	w.between('{', '}', len(all), func(i int) {
		w.text(all[i][0].Name)
		w.RawStr(":")
		w.list(len(all[i]), func(n int) {
			m := &all[i][n]
			w.RawStr(`{"type":`)
			w.text(m.Type.String())
			w.RawStr(`,"help":`)
			w.text(m.Help)
			w.RawStr(`,"unit":`)
			w.text(m.Unit)
			w.ObjEnd()
		})
	})
}

func (w *writer) series(s *promql.Series) {
	w.RawStr(`{"metric":`)
	w.labels(s.Metric)
	if len(s.Floats) > 0 {
		w.RawStr(`,"values":`)
		w.list(len(s.Floats), func(i int) { w.point(s.Floats[i].T, s.Floats[i].F) })
	}
	w.ObjEnd()
}

func (w *writer) labels(ls labels.Labels) {
	w.ObjStart()
	first := true
	ls.Range(func(l labels.Label) {
		if !first {
			w.Comma()
		}
		first = false
		w.text(l.Name)
		w.RawStr(":")
		w.text(l.Value)
	})
	w.ObjEnd()
}

// text writes a string. Invalid UTF-8, which an expression can make, becomes U+FFFD.
func (w *writer) text(s string) { w.Str(strings.ToValidUTF8(s, "\uFFFD")) }

// point writes [time, "value"]. All values are floats: there are no histograms in the store, and no function makes one of floats.
func (w *writer) point(ms int64, v float64) {
	w.Buf = append(appendTime(append(w.Buf, '['), ms), ',')
	w.Buf = append(appendFloat(w.Buf, v), ']')
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
