package api

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
)

// backFiller is a recordingAppender for history that can be busy.
type backFiller struct {
	recordingAppender
	busy  int // the number of calls to refuse, after the first at calls
	at    int
	bits  []uint64
	sizes []int
}

func (b *backFiller) BackFill(ctx context.Context, reports []ingest.Report) (ingest.Result, error) {
	if b.calls >= b.at && b.busy > 0 {
		b.busy--
		return ingest.Result{}, ingest.ErrBusy
	}
	n := 0
	for _, r := range reports {
		n += len(r.Measurements)
		for _, m := range r.Measurements {
			b.bits = append(b.bits, math.Float64bits(m.Value))
		}
	}
	b.sizes = append(b.sizes, n)
	return b.Append(ctx, reports)
}

func importTo(tb testing.TB, b *backFiller, body io.Reader, headers ...string) *httptest.ResponseRecorder {
	tb.Helper()
	s := newServer(tb, func(o *Options) {
		o.Appender, o.BackFiller, o.Limits.Rejections = b, b, 3
		o.Sources.Prometheus = ingest.SourceLabels{"instance"}
	})
	r := httptest.NewRequestWithContext(tb.Context(), http.MethodPost, importPath, body)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

const importLine = `{"metric":{"__name__":"cpu","source":"web-1"},"values":[1,2.5],"timestamps":[1000,2000]}`

func TestImport(t *testing.T) {
	for _, c := range []struct {
		name, body string
		code       int
		kept, said string
	}{
		{"a line", importLine + "\n", 200, "web-1: \"cpu\" @1000 1\nweb-1: \"cpu\" @2000 2.5\n", `{"accepted":2,"rejected":[],"lines":1}`},
		{"its end may lack", "\n" + importLine, 200, "web-1: \"cpu\" @1000 1\nweb-1: \"cpu\" @2000 2.5\n", `{"accepted":2,"rejected":[],"lines":2}`},
		{"nothing", "", 200, "", `{"accepted":0,"rejected":[],"lines":0}`},
		{
			"a derived source, members in another order, and some of others",
			`{"timestamps":[5],"x":[{}],"values":[1],"metric":{"instance":"i","__name__":"up\u00e4"}}` + "\r\n", 200,
			`i: "upä" "instance"="i" @5 1` + "\n", `"accepted":1`,
		},
		{
			"not finite", `{"metric":{"__name__":"m"},"values":[null,"NaN","Infinity","-Infinity","+Inf","-Inf"],"timestamps":[1,2,3,4,5,6]}`, 200,
			": \"m\" @1 NaN\n: \"m\" @2 NaN\n: \"m\" @3 +Inf\n: \"m\" @4 -Inf\n: \"m\" @5 +Inf\n: \"m\" @6 -Inf\n", `"accepted":6`,
		},
		{
			"a series that cannot be", importLine + "\n" + `{"metric":{"a":"b"},"values":[1,2],"timestamps":[1,2]}` + "\n" + importLine, 200,
			"web-1: \"cpu\" @1000 1\nweb-1: \"cpu\" @2000 2.5\nweb-1: \"cpu\" @1000 1\nweb-1: \"cpu\" @2000 2.5\n",
			`{"accepted":4,"rejected":[{"line":2,"reason":"invalid_metric","message":"by the appender","samples":2}],"rejected_total":2,"lines":3}`,
		},
		{"escapes stay", `{"metric":{"__name__":"a\tb"},"values":[1],"timestamps":[1]}` + "\n" + `{"metric":{"__name__":"c\td"},"values":[1],"timestamps":[1]}`, 200, ": \"a\\tb\" @1 1\n: \"c\\td\" @1 1\n", `"accepted":2`},
		{
			"malformed", importLine + "\n{\"metric\":}\n" + importLine, 400,
			strings.Repeat("web-1: \"cpu\" @1000 1\nweb-1: \"cpu\" @2000 2.5\n", 2),
			`{"status":"error","error":"line 2: at byte 10: unexpected '}', want an object of labels","accepted":4,"rejected":[],` +
				`"malformed":[{"line":2,"message":"at byte 10: unexpected '}', want an object of labels"}],"malformed_total":1,"lines":3}`,
		},
		{
			"many malformed", "1\n2\n" + importLine + "\n4\n5\n", 400, "web-1: \"cpu\" @1000 1\nweb-1: \"cpu\" @2000 2.5\n",
			`{"line":4,"message":"at byte 0: unexpected '4', want an object"}],"malformed_total":4,"lines":5}`,
		},
		{"the first and their number are said", "1\n\n3\n", 400, "", `"error":"line 1: at byte 0: unexpected '1', want an object; 2 lines are malformed, the others were taken"`},
		{
			"all rejected", `{"metric":{"a":"b"},"values":[1,2],"timestamps":[1,2]}`, 400, "",
			`{"status":"error","error":"all 2 samples were rejected; line 1: by the appender (invalid_metric)","accepted":0,` +
				`"rejected":[{"line":1,"reason":"invalid_metric","message":"by the appender","samples":2}],"rejected_total":2,"lines":1}`,
		},
		{
			"too many labels", `{"metric":{"__name__":"m"` + manyLabels(129) + `},"values":[1,2],"timestamps":[1,2]}` + "\n" + importLine, 200,
			"web-1: \"cpu\" @1000 1\nweb-1: \"cpu\" @2000 2.5\n",
			`"accepted":2,"rejected":[{"line":1,"reason":"limit_exceeded","message":"more than 128 labels","samples":2}],"rejected_total":2,"lines":2}`,
		},
		{
			"the dialects of others", `{"metric":{"__name__":"m"},"values":[NaN,nan,Infinity,+Inf,-Inf,inf,"+Infinity","-inf","nan","1.5","-2e3"],"timestamps":[1,2,3,4,5,6,7,8,9,10,11]}`, 200,
			": \"m\" @1 NaN\n: \"m\" @2 NaN\n: \"m\" @3 +Inf\n: \"m\" @4 +Inf\n: \"m\" @5 -Inf\n: \"m\" @6 +Inf\n: \"m\" @7 +Inf\n: \"m\" @8 -Inf\n: \"m\" @9 NaN\n: \"m\" @10 1.5\n: \"m\" @11 -2000\n",
			`"accepted":11`,
		},
		{"a word that is no value", `{"metric":{},"values":[true],"timestamps":[1]}`, 400, "", `\"true\" is no value`},
		{"a number that is too large, in quotes", `{"metric":{},"values":["1e999"],"timestamps":[1]}`, 400, "", `\"1e999\" is no value`},
		{"lengths", `{"metric":{},"values":[1],"timestamps":[]}`, 400, "", "there are 1 values and 0 timestamps"},
		{"members", `{"metric":{},"values":[1]}`, 400, "", "a line has metric, values and timestamps"},
		{"a value", `{"metric":{},"values":["one"],"timestamps":[1]}`, 400, "", `\"one\" is no value`},
		{"bits of no NaN", `{"metric":{},"values":["NaN:3ff0000000000000"],"timestamps":[1]}`, 400, "", `is no value`},
		{"a time", `{"metric":{},"values":[1],"timestamps":[1.5]}`, 400, "", "1.5 is no time in Unix ms"},
		{"a label", `{"metric":{"a":1},"values":[],"timestamps":[]}`, 400, "", "want a label's value in quotes"},
		{"more on the line", importLine + "x", 400, "", "want the end of the line"},
		{"cut off", importLine[:50], 400, "", "the body ends in the middle"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := new(backFiller)
			w := importTo(t, b, strings.NewReader(c.body))
			assert.Equal(t, c.code, w.Code)
			assert.Contains(t, w.Body.String(), c.said)
			assert.Equal(t, c.kept, b.String())
		})
	}
}

func manyLabels(n int) string {
	var sb strings.Builder
	for i := range n {
		fmt.Fprintf(&sb, `,"l%d":"v"`, i)
	}
	return sb.String()
}

// TestImportBrokenStream: if a body turns out to be damaged, the damage may be the cause of a
// malformed line. So the line does not count as processed.
func TestImportBrokenStream(t *testing.T) {
	var zipped bytes.Buffer
	gz := gzip.NewWriter(&zipped)
	_, err := gz.Write([]byte(importLine + "\n{]\n" + importLine + "\n"))
	require.NoError(t, err)
	require.NoError(t, gz.Close())
	body := zipped.Bytes()
	body[len(body)-5]++ // of the checksum
	w := importTo(t, new(backFiller), bytes.NewReader(body), "Content-Encoding", "gzip")
	require.Equal(t, 400, w.Code)
	require.Contains(t, w.Body.String(), `"lines":1}`)
	require.NotContains(t, w.Body.String(), "malformed")
}

// TestImportIdle: a body that only its compression makes large, and that brings no samples, is
// refused. The samples that it brings are kept. An uncompressed body has no such limit.
func TestImportIdle(t *testing.T) {
	line := importLine + "\n"
	for name, idle := range map[string]string{
		"line feeds": "\n", "blank lines": strings.Repeat(" ", 100) + "\r\n", "malformed": strings.Repeat("x", 100) + "\n", "no samples": `{"metric":{},"values":[],"timestamps":[]}` + "\n",
		"other members": `{"metric":{"__name__":"m"},"values":[1],"timestamps":[1],"x":"` + strings.Repeat("x", 64<<10) + `"}` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			plain := []byte(line + strings.Repeat(idle, 3*maxIdleBytes/2/len(idle)) + line)
			for enc, code := range map[string]int{"gzip": 413, "zstd": 413, "identity": 200} {
				if code == 200 && name == "malformed" {
					code = 400
				}
				b := new(backFiller)
				w := importTo(t, b, bytes.NewReader(compressed(t, enc, plain)), "Content-Encoding", enc)
				require.Equal(t, code, w.Code, "%s: %.200s", enc, w.Body)
				if enc == "identity" {
					require.Contains(t, w.Body.String(), `"accepted":`)
					continue
				}
				require.Contains(t, w.Body.String(), "bytes of the body bring no samples")
				require.NotEmpty(t, b.reports, "what came before is kept")
			}
		})
	}
	// This is like an export of series with constant values: a line of some hundred bytes
	// compresses to far less than one byte.
	same := []byte(strings.Repeat(line, 5*maxIdleBytes/4/len(line)))
	w := importTo(t, new(backFiller), bytes.NewReader(compressed(t, "zstd", same)), "Content-Encoding", "zstd")
	require.Equal(t, 200, w.Code, "%.200s", w.Body)
}

// TestImportStreams: long bodies and long lines, also compressed ones, are made durable in batches.
func TestImportStreams(t *testing.T) {
	var plain, zipped, zstded bytes.Buffer
	const lines, each = 3, 50_001
	for i := range lines {
		var values, times strings.Builder
		for k := range each {
			fmt.Fprintf(&values, ",%d", k)
			fmt.Fprintf(&times, ",%d", 1000*k)
		}
		fmt.Fprintf(&plain, `{"metric":{"__name__":"m%d\u0020"},"values":[%s],"timestamps":[%s]}`+"\n", i, values.String()[1:], times.String()[1:])
	}
	gz := gzip.NewWriter(&zipped)
	_, err := gz.Write(plain.Bytes())
	require.NoError(t, err)
	require.NoError(t, gz.Close())
	zw, err := zstd.NewWriter(&zstded)
	require.NoError(t, err)
	_, err = zw.Write(plain.Bytes())
	require.NoError(t, err)
	require.NoError(t, zw.Close())
	for enc, body := range map[string][]byte{"identity": plain.Bytes(), "gzip": zipped.Bytes(), "zstd": zstded.Bytes()} {
		b := new(backFiller)
		w := importTo(t, b, bytes.NewReader(body), "Content-Encoding", enc)
		require.Equal(t, 200, w.Code, "%s: %s", enc, w.Body)
		assert.Contains(t, w.Body.String(), fmt.Sprintf(`{"accepted":%d,`, lines*each))
		total := 0
		for _, n := range b.sizes {
			assert.LessOrEqual(t, n, importSamples)
			total += n
		}
		assert.Equal(t, lines*each, total)
		assert.Equal(t, "m2 ", b.reports[len(b.reports)-1].Measurements[0].Metric)

		w = importTo(t, new(backFiller), bytes.NewReader(body[:len(body)-len(body)/4]), "Content-Encoding", enc)
		assert.Equal(t, 400, w.Code, enc)
	}
	assert.Equal(t, 415, importTo(t, new(backFiller), bytes.NewReader(nil), "Content-Encoding", "snappy").Code)
}

// TestImportBusy: a busy server is reported at the beginning of a body, and waited for later on.
func TestImportBusy(t *testing.T) {
	b := &backFiller{busy: 1}
	w := importTo(t, b, strings.NewReader(importLine))
	assert.Equal(t, 429, w.Code)
	assert.Equal(t, "1", w.Header().Get("Retry-After"))

	line := `{"metric":{"__name__":"m"},"values":[1` + strings.Repeat(",1", 2*importSamples-1) + `],"timestamps":[1` + strings.Repeat(",1", 2*importSamples-1) + "]}\n"
	b = &backFiller{busy: 10, at: 1}
	w = importTo(t, b, strings.NewReader(line))
	assert.Equal(t, 200, w.Code, "%s", w.Body)
	b = &backFiller{busy: 1000, at: 1}
	w = importTo(t, b, strings.NewReader(line))
	assert.Equal(t, 429, w.Code)
	assert.Contains(t, w.Body.String(), `"accepted":20000,"rejected":[],"lines":0`)
}

// TestImportOfExport: an import restores an export bit for bit.
func TestImportOfExport(t *testing.T) {
	labels, err := metric.NewLabels(metric.Label{Name: metric.NameLabel, Value: "m"}, metric.Label{Name: "a", Value: "\"\\\n\u00e4\u2028"})
	require.NoError(t, err)
	s := query.Samples{Labels: labels}
	var want []uint64
	for i, bits := range []uint64{
		0, 1, 1 << 63, math.Float64bits(0.1), math.Float64bits(math.MaxFloat64), math.Float64bits(-1e-300), math.Float64bits(1e21),
		math.Float64bits(math.Inf(1)), math.Float64bits(math.Inf(-1)), math.Float64bits(math.NaN()), 0x7ff0000000000002, 0x7ff8000000000000, 0xfff8000000000000,
	} {
		want = append(want, bits)
		s.Samples = append(s.Samples, metric.Sample{TimeMs: int64(i), Value: math.Float64frombits(bits)})
	}
	w := httptest.NewRecorder()
	out := newLines(w)
	out.exact = true
	writeSamples(out, &s)
	require.NoError(t, out.end())
	require.NoError(t, out.finish())
	b := new(backFiller)
	require.Equal(t, 200, importTo(t, b, w.Body).Code)
	assert.Equal(t, want, b.bits)
	assert.Equal(t, metric.Label{Name: "a", Value: "\"\\\n\u00e4\u2028"}, b.reports[0].Measurements[0].Labels[0])

	// By default an export writes only values that all programs know.
	w = httptest.NewRecorder()
	out = newLines(w)
	writeSamples(out, &s)
	require.NoError(t, out.finish())
	require.Contains(t, w.Body.String(), `,1e+21,"Infinity","-Infinity",null,null,null,null],`)
}

// FuzzImport: no body causes a crash, and all samples passed on are counted.
func FuzzImport(f *testing.F) {
	f.Add(importLine + "\n" + importLine)
	f.Add(`{"metric":{"a":"\u0000"},"values":["NaN:7ff0000000000002",1e3],"timestamps":[1e3,-5]}` + "\n{}")
	f.Fuzz(func(t *testing.T, body string) {
		b := new(backFiller)
		w := importTo(t, b, strings.NewReader(body))
		require.Contains(t, []int{200, 400}, w.Code)
		n := 0
		for _, r := range b.reports {
			n += len(r.Measurements)
		}
		require.Contains(t, w.Body.String(), fmt.Sprintf(`"accepted":%d,`, n))
	})
}
