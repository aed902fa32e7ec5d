package reports

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/push"
)

func newDecoder() *decoder {
	limits := &push.Limits{}
	limits.EnsureDefaults()
	return &decoder{limits: limits}
}

// TestDecoderReuse decodes many bodies with one decoder. It checks the views of each body before
// the next, so that data of one body does not show up in another.
func TestDecoderReuse(t *testing.T) {
	d := newDecoder()
	for round := range 3 {
		for _, n := range []int{1, 1000, 3, 0} {
			body := exampleBody(n, fmt.Sprintf("web-%d", round))
			require.True(t, d.decode(body))
			reports := d.result()
			kept := 0
			for _, r := range reports {
				require.Equal(t, fmt.Sprintf("web-%d", round), r.Source)
				for i, m := range r.Measurements {
					require.Equal(t, fmt.Sprintf("metric_%d", i%50), m.Metric)
					require.Equal(t, []metric.Label{{Name: "core", Value: strconv.Itoa(i % 8)}, {Name: "mode\n", Value: "us\"er"}}, m.Labels)
					require.Equal(t, int64(1732161600000+i), m.TimeMs)
				}
				kept += len(r.Measurements)
			}
			require.Equal(t, n, kept)
			d.release()
		}
	}
}

// TestDecodedSlicesAreApart: an append to the labels of one measurement must not overwrite those of
// the next.
func TestDecodedSlicesAreApart(t *testing.T) {
	d := newDecoder()
	require.True(t, d.decode(exampleBody(2, "a")))
	ms := d.result()[0].Measurements
	_ = append(ms[0].Labels, metric.Label{Name: "x", Value: "y"})
	require.Equal(t, "core", ms[1].Labels[0].Name)
}

func TestDecoderDoesNotAllocate(t *testing.T) {
	d := newDecoder()
	body := exampleBody(500, "a")
	allocs := testing.AllocsPerRun(20, func() {
		if !d.decode(body) || len(d.result()) != 1 {
			panic("not decoded")
		}
		d.release()
	})
	require.Zero(t, allocs)
}

// exampleBody has escapes in names and values, so that the arena is used.
func exampleBody(n int, source string) []byte {
	var buf bytes.Buffer
	buf.WriteString(`{"measurements":[`)
	for i := range n {
		if i > 0 {
			buf.WriteByte(',')
		}
		fmt.Fprintf(&buf, `{"metric":"metric_%d","labels":{"core":"%d","mode\n":"us\"er"},"time":%d,"value":%d.5}`,
			i%50, i%8, 1732161600000+i, i)
	}
	fmt.Fprintf(&buf, `],"source":%q}`, source)
	return buf.Bytes()
}

// FuzzDecode compares the decoder with one built on encoding/json. For a body that is a sequence of
// JSON values, both must keep the same measurements with the same values, and reject as many. Both
// must refuse any other body.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{"source":"a","measurements":[{"metric":"m","labels":{"a":"1","b":"2"},"time":1,"value":0.25}]}`,
		`[{"measurements":[{"value":1e3,"metric":"m"},{"metric":"n","value":"NaN"}],"source":"a"},{}]`,
		"{\"source\":\"a\",\"measurements\":[]}\n{\"source\":\"b\",\"measurements\":[{}]}",
		`{"source":"a","measurements":[{"metric":"\ud83d\ude00\ud83d","labels":{"a":1,"a":"x"},"time":1.0,"value":-0}]}`,
		`{"source":1,"source":"a","measurements":5,"measurements":[{"metric":"m","time":1e400,"value":1e400}]}`,
		`{"source":"a","measurements":[{"metric":"m","value":9007199254740993.5,"time":9223372036854775808}]`,
		`[null,true,[],"x",{"x":[{"y":[]}]}]`,
		`{"source":"a","measurements":[{"metric":"m","value":NaN}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		d := newDecoder()
		ok := d.decode(body)
		require.LessOrEqual(t, d.allowance.Used(), 100*int64(len(body)+1))
		// The two have different limits of nesting; only bodies below both are compared.
		if !utf8.Valid(body) || bytes.Count(body, []byte("["))+bytes.Count(body, []byte("{")) > d.limits.Depth {
			return
		}
		want, wantRejected, valid, decided := oracle(body)
		if !decided {
			return
		}
		require.Equal(t, valid, ok, "%s at %d", d.Fault, d.At)
		if !utf8.Valid(d.Arena) {
			return // half of a surrogate pair, which encoding/json makes U+FFFD
		}
		if !valid {
			require.NotEmpty(t, d.Fault)
			require.LessOrEqual(t, d.At, len(body))
			return
		}
		got := d.result()
		require.Len(t, got, len(want))
		for i := range want {
			require.Equal(t, want[i].Source, got[i].Source)
			require.Len(t, got[i].Measurements, len(want[i].Measurements))
			for j, w := range want[i].Measurements {
				g := got[i].Measurements[j]
				g.Labels = slices.Clone(g.Labels)
				slices.SortFunc(g.Labels, func(a, b metric.Label) int { return strings.Compare(a.Name, b.Name) })
				require.Equal(t, math.Float64bits(w.Value), math.Float64bits(g.Value))
				g.Value = w.Value // NaN is impossible, but -0 equals 0
				require.Equal(t, w.Labels, g.Labels)
				require.Equal(t, w.TimeMs, g.TimeMs)
				require.Equal(t, w.Metric, g.Metric)
			}
		}
		require.Equal(t, wantRejected, d.rejectedTotal)
	})
}

// oracle decodes with encoding/json, whose maps keep the last of two members with one name, as
// documented. decided is false for bodies that the two decoders may treat differently.
func oracle(body []byte) (reports []ingest.Report, rejected int, valid, decided bool) {
	dec := json.NewDecoder(bytes.NewReader(body))
	for {
		var raw json.RawMessage
		err := dec.Decode(&raw)
		if err == io.EOF {
			return reports, rejected, true, true
		}
		if err != nil {
			return nil, 0, false, true
		}
		if raw[0] != '{' && raw[0] != '[' {
			// encoding/json reads adjacent numbers, such as 00, as two. Such a body is answered
			// with 400 either way.
			return nil, 0, false, false
		}
		var list []json.RawMessage
		if raw[0] != '[' || json.Unmarshal(raw, &list) != nil {
			list = []json.RawMessage{raw}
		}
		for _, el := range list {
			r, n := oracleReport(el)
			rejected += n
			if len(r.Measurements) > 0 {
				reports = append(reports, r)
			}
		}
	}
}

func oracleReport(raw json.RawMessage) (r ingest.Report, rejected int) {
	var members map[string]json.RawMessage
	var list []json.RawMessage
	if raw[0] != '{' || json.Unmarshal(raw, &members) != nil {
		return r, 0
	}
	if v := members["measurements"]; len(v) == 0 || json.Unmarshal(v, &list) != nil {
		return r, 0
	}
	hasSource := json.Unmarshal(members["source"], &r.Source) == nil && r.Source != ""
	for _, el := range list {
		if m, ok := oracleMeasurement(el); ok && hasSource {
			r.Measurements = append(r.Measurements, m)
		} else {
			rejected++
		}
	}
	return r, rejected
}

func oracleMeasurement(raw json.RawMessage) (m ingest.Measurement, ok bool) {
	var members map[string]json.RawMessage
	if raw[0] != '{' || json.Unmarshal(raw, &members) != nil {
		return m, false
	}
	if v := members["metric"]; len(v) == 0 || v[0] != '"' || json.Unmarshal(v, &m.Metric) != nil {
		return m, false
	}
	var value *float64
	if v := members["value"]; len(v) == 0 || json.Unmarshal(v, &value) != nil || value == nil {
		return m, false
	}
	m.Value = *value
	m.TimeMs = ingest.NoTime
	if v := members["time"]; len(v) > 0 && v[0] != 'n' {
		if m.TimeMs, ok = oracleTime(v); !ok {
			return m, false
		}
	}
	if v := members["labels"]; len(v) > 0 && v[0] != 'n' {
		var labels map[string]json.RawMessage
		if json.Unmarshal(v, &labels) != nil || len(labels) > 128 {
			return m, false
		}
		for name, lv := range labels {
			l := metric.Label{Name: name}
			if lv[0] != '"' || json.Unmarshal(lv, &l.Value) != nil {
				return m, false
			}
			m.Labels = append(m.Labels, l)
		}
		slices.SortFunc(m.Labels, func(a, b metric.Label) int { return strings.Compare(a.Name, b.Name) })
	}
	return m, true
}

func oracleTime(v json.RawMessage) (int64, bool) {
	var text json.Number
	if v[0] == '"' || json.Unmarshal(v, &text) != nil {
		return 0, false
	}
	if ms, err := strconv.ParseInt(string(text), 10, 64); err == nil {
		return ms, ms != ingest.NoTime
	}
	f, err := strconv.ParseFloat(string(text), 64)
	digits, _, _ := strings.Cut(strings.ToLower(string(text)), "e")
	tiny := f == 0 && strings.ContainsAny(digits, "123456789")
	return int64(f), err == nil && !tiny && f == math.Trunc(f) && math.Abs(f) <= 1<<53
}
