package influx

import (
	"bytes"
	"compress/gzip"
	"io"
	"math"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/influxdata/line-protocol/v2/lineprotocol"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

// FuzzDecode compares the decoder with Influx' own: a body that the latter accepts decodes to the
// same samples, line by line. No input causes a crash. Decoding twice, the second time with cached
// names, gives the same result.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		"", "#", "m v=1", "m v=1 1732161600000000000\r\n", "cpu,host=a,core=0 user=1.5,system=2i,idle=3u,on=t,text=\"x\\\"y\nz\" -5\n",
		"a\\ b,c\\,d=e\\=f g\\ h=1e5 12\n\n# comment\nm bad\nm v=9223372036854775807i", "m v=1 1\rm", ",t=x v=1", "m,t= v=1", "m v=\"", "m,t=a\\\\ b v=1\\",
		"m v=1e400,w=1_0,x=0x1p5,y=+1,z=-0.0", "m v=.,w=-,x=i,y=u", "m a=1,a=2", "m,host=a,host=b v=1",
	} {
		f.Add([]byte(s))
	}
	f.Add(tsbs(1, 1))
	f.Add(telegraf(9))
	// What real clients sent, recorded by `go test ./integration/programs -record DIR`.
	for _, name := range []string{"influxdb-client-go-2.14.lp.gz", "influxdb1-client.lp"} {
		body, err := os.ReadFile("testdata/recorded/" + name)
		require.NoError(f, err)
		if strings.HasSuffix(name, ".gz") {
			z, err := gzip.NewReader(bytes.NewReader(body))
			require.NoError(f, err)
			body, err = io.ReadAll(z)
			require.NoError(f, err)
		}
		want, _, ok := reference(body)
		require.True(f, ok && len(want) > 0, name)
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var d Decoder
		got := decode(&d, body, Settings{})
		require.Equal(t, got, decode(&d, body, Settings{}))
		var held ingest.Batch
		d.Decode(body, Settings{}, &held)
		require.LessOrEqual(t, held.Allowance.Used(), maxGrowth*int64(len(body)+1), "%q", body)
		if want, ignored, ok := reference(body); ok {
			var b ingest.Batch
			require.Equal(t, ignored, d.Decode(body, Settings{}, &b), "%q", body)
			require.Zero(t, b.Rejected(), "%q: %v", body, got)
			require.Equal(t, want, measurements(&b), "%q", body)
		}
	})
}

// maxGrowth is the maximum ratio of decoded memory to input size.
const maxGrowth = 400

// measurements returns all measurements of a batch, in order.
func measurements(b *ingest.Batch) []ingest.Measurement {
	var out []ingest.Measurement
	for _, r := range b.Reports() {
		for _, m := range r.Measurements {
			m.Labels = append([]metric.Label(nil), m.Labels...) // nil if there are no labels
			out = append(out, m)
		}
	}
	return out
}

// reference decodes a body with Influx' own decoder. ok is false if that finds any fault.
func reference(body []byte) (out []ingest.Measurement, ignored int, ok bool) {
	if !utf8.Valid(body) {
		return nil, 0, false
	}
	d := lineprotocol.NewDecoderWithBytes(bytes.Clone(body))
	for d.Next() {
		name, err := d.Measurement()
		if err != nil {
			return nil, 0, false
		}
		m := ingest.Measurement{TimeMs: ingest.NoTime}
		prefix := string(name) + "_"
		for {
			k, v, err := d.NextTag()
			if err != nil || string(k) == metric.SourceLabel { // the batch stores it elsewhere
				return nil, 0, false
			}
			if k == nil {
				break
			}
			m.Labels = append(m.Labels, metric.Label{Name: string(k), Value: string(v)})
		}
		first := len(out)
		for {
			k, v, err := d.NextField()
			if err != nil {
				return nil, 0, false
			}
			if k == nil {
				break
			}
			m.Metric = prefix + string(k)
			switch x := v.Interface().(type) {
			case int64:
				m.Value = float64(x)
			case uint64:
				m.Value = float64(x)
			case float64:
				m.Value = x
			case bool:
				m.Value = 0
				if x {
					m.Value = 1
				}
			default:
				ignored++
				continue
			}
			out = append(out, m)
		}
		unset := time.Unix(0, math.MinInt64)
		at, err := d.Time(lineprotocol.Nanosecond, unset)
		if err != nil {
			return nil, 0, false
		}
		if !at.Equal(unset) {
			for i := range out[first:] {
				out[first+i].TimeMs = at.UnixMilli()
			}
		}
	}
	return out, ignored, d.Err() == nil
}

// FuzzEncoded lets Influx' own encoder write a point with arbitrary strings, which the decoder must
// restore.
func FuzzEncoded(f *testing.F) {
	f.Add("cpu", "host", "web 1", "usage,idle", 1.5, int64(7), "text", int64(1732161600000000000))
	f.Add("a\\b", "=c,", "d\\e", "\\ ", math.Copysign(0, -1), int64(-7), "\"\\\"\n", int64(-1))
	f.Fuzz(func(t *testing.T, measurement, tag, value, key string, v float64, n int64, text string, ns int64) {
		var enc lineprotocol.Encoder
		enc.StartLine(measurement)
		enc.AddTag(tag, value)
		number, ok := lineprotocol.FloatValue(v)
		str, valid := lineprotocol.StringValue(text)
		if !ok || !valid || ns == math.MinInt64 {
			return
		}
		enc.AddField(key, number)
		enc.AddField("text", str)
		enc.AddField("n", lineprotocol.IntValue(n))
		enc.EndLine(time.Unix(0, ns))
		// A backslash before the end of a name would escape the terminator; Influx cannot express
		// such a name.
		for _, s := range []string{measurement, tag, value, key} {
			if strings.HasSuffix(s, "\\") || strings.Contains(s, "\r") {
				return
			}
		}
		if enc.Err() != nil || value == "" || tag == metric.SourceLabel || strings.HasPrefix(measurement, "#") {
			return
		}
		var d Decoder
		var b ingest.Batch
		require.Equal(t, 1, d.Decode(enc.Bytes(), Settings{}, &b), "%q", enc.Bytes())
		ms := time.Unix(0, ns).UnixMilli()
		require.Equal(t, []ingest.Measurement{
			{Metric: measurement + "_" + key, Labels: []metric.Label{{Name: tag, Value: value}}, TimeMs: ms, Value: v},
			{Metric: measurement + "_n", Labels: []metric.Label{{Name: tag, Value: value}}, TimeMs: ms, Value: float64(n)},
		}, measurements(&b), "%q", enc.Bytes())
		require.Zero(t, b.Rejected())
	})
}
