package reports

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

const depth = 100

// TestDecoderReuse decodes many bodies with one decoder. Data of one body does not show up in another, also if names and
// values have escapes.
func TestDecoderReuse(t *testing.T) {
	var d decoder
	for round := range 3 {
		for _, n := range []int{1, 1000, 3, 0} {
			var body bytes.Buffer
			body.WriteString(`{"measurements":[`)
			for i := range n {
				if i > 0 {
					body.WriteByte(',')
				}
				fmt.Fprintf(&body, `{"metric":"m_%d","labels":{"core":"%d","mode\n":"us\"er"},"time":%d,"value":%d.5}`, i, i%8, i, i)
			}
			fmt.Fprintf(&body, `],"source":"web-%d"}`, round)
			b := ingest.Batch{MaxLabels: 128}
			require.NoError(t, d.decode(body.Bytes(), depth, &b))
			d.release()
			require.Equal(t, n, b.Len())
			for _, r := range b.Reports() {
				require.Equal(t, fmt.Sprintf("web-%d", round), r.Source)
				for i, m := range r.Measurements {
					require.Equal(t, ingest.Measurement{
						Metric: fmt.Sprintf("m_%d", i), TimeMs: int64(i), Value: float64(i) + 0.5,
						Labels: []metric.Label{{Name: "core", Value: strconv.Itoa(i % 8)}, {Name: "mode\n", Value: "us\"er"}},
					}, m)
				}
			}
		}
	}
}

// FuzzDecode: the decoder reads what encoding/json reads as a sequence of objects and arrays, and nothing else. No body
// takes much more than its size.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{"source":"a","measurements":[{"metric":"m","labels":{"a":"1","b":"2"},"time":1,"value":0.25}]}`,
		`[{"measurements":[{"value":1e3,"metric":"m"},{"metric":"n","value":"NaN"}],"source":"a"},{}]`,
		"{\"source\":\"a\",\"measurements\":[]}\n{\"source\":\"b\",\"measurements\":[{}]}",
		`{"source":"a","measurements":[{"metric":"\ud83d\ude00\ud83d","labels":{"a":1,"a":"x"},"time":1.0,"value":-0}]}`,
		`{"source":1,"source":"a","measurements":5,"measurements":[{"metric":"m","time":1e400,"value":1e400}]}`,
		`[null,true,[],"x",{"x":[{"y":[]}]}]`,
		`{"source":"a","measurements":[{"metric":"m","value":NaN}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var d decoder
		b := ingest.Batch{MaxLabels: 128}
		err := d.decode(body, depth, &b)
		require.LessOrEqual(t, b.Allowance.Used(), 200*int64(len(body)+1))
		// The two have different limits of nesting; only bodies below both are compared.
		if !utf8.Valid(body) || bytes.Count(body, []byte("["))+bytes.Count(body, []byte("{")) > depth {
			return
		}
		valid := true
		for dec := json.NewDecoder(bytes.NewReader(body)); ; {
			var raw json.RawMessage
			if err := dec.Decode(&raw); err == io.EOF {
				break
			} else if err != nil {
				valid = false
				break
			}
			if raw[0] != '{' && raw[0] != '[' {
				return // it reads adjacent numbers, such as 00, as two
			}
		}
		require.Equal(t, valid, d.Fault == "", "%v", err)
		if !valid {
			require.Error(t, err)
		}
	})
}
