package importer_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/importer"
	"github.com/quern/quern/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func importTo(tb testing.TB, b *apitest.BackFiller, body io.Reader, headers ...string) *httptest.ResponseRecorder {
	tb.Helper()
	s := apitest.Server(tb, func(o *api.Options) {
		o.Appender, o.BackFiller, o.Limits.Rejections = b, b, 3
		o.Sources = metric.SourceLabels{"instance"}
	})
	return apitest.Send(tb, s, wire.ImportPath, body, headers...)
}

func TestImport(t *testing.T) {
	digits := strings.Repeat("1", 5000)
	for _, c := range []struct {
		name, body  string
		code        int
		kept, reply string
	}{
		{"a line", apitest.ImportLine + "\n", 200, "web-1: \"cpu\" @1000 1\nweb-1: \"cpu\" @2000 2.5\n", `{"accepted":2,"rejected":[],"lines":1}`},
		{"its end may lack", "\n" + apitest.ImportLine, 200, "web-1: \"cpu\" @1000 1\nweb-1: \"cpu\" @2000 2.5\n", `{"accepted":2,"rejected":[],"lines":2}`},
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
			"a series that cannot be", apitest.ImportLine + "\n" + `{"metric":{"a":"b"},"values":[1,2],"timestamps":[1,2]}` + "\n" + apitest.ImportLine, 200,
			"web-1: \"cpu\" @1000 1\nweb-1: \"cpu\" @2000 2.5\nweb-1: \"cpu\" @1000 1\nweb-1: \"cpu\" @2000 2.5\n",
			`{"accepted":4,"rejected":[{"line":2,"reason":"invalid_metric","message":"by the appender","samples":2}],"rejected_total":2,"lines":3}`,
		},
		{"escapes stay", `{"metric":{"__name__":"a\tb"},"values":[1],"timestamps":[1]}` + "\n" + `{"metric":{"__name__":"c\td"},"values":[1],"timestamps":[1]}`, 200, ": \"a\\tb\" @1 1\n: \"c\\td\" @1 1\n", `"accepted":2`},
		{
			"malformed", apitest.ImportLine + "\n{\"metric\":}\n" + apitest.ImportLine, 400,
			strings.Repeat("web-1: \"cpu\" @1000 1\nweb-1: \"cpu\" @2000 2.5\n", 2),
			`{"status":"error","error":"line 2: at byte 10: unexpected '}', want an object of labels","accepted":4,"rejected":[],` +
				`"malformed":[{"line":2,"message":"at byte 10: unexpected '}', want an object of labels"}],"malformed_total":1,"lines":3}`,
		},
		{
			"many malformed", "1\n2\n" + apitest.ImportLine + "\n4\n5\n", 400, "web-1: \"cpu\" @1000 1\nweb-1: \"cpu\" @2000 2.5\n",
			`{"line":4,"message":"at byte 0: unexpected '4', want an object"}],"malformed_total":4,"lines":5}`,
		},
		{"the first and their number are said", "1\n\n3\n", 400, "", `"error":"line 1: at byte 0: unexpected '1', want an object; 2 lines are malformed, the others were accepted"`},
		{
			"all rejected", `{"metric":{"a":"b"},"values":[1,2],"timestamps":[1,2]}`, 400, "",
			`{"status":"error","error":"all 2 samples were rejected; line 1: by the appender (invalid_metric)","accepted":0,` +
				`"rejected":[{"line":1,"reason":"invalid_metric","message":"by the appender","samples":2}],"rejected_total":2,"lines":1}`,
		},
		{
			"too many labels", `{"metric":{"__name__":"m"` + manyLabels(129) + `},"values":[1,2],"timestamps":[1,2]}` + "\n" + apitest.ImportLine, 200,
			"web-1: \"cpu\" @1000 1\nweb-1: \"cpu\" @2000 2.5\n",
			`"accepted":2,"rejected":[{"line":1,"reason":"limit_exceeded","message":"more than 128 labels","samples":2}],"rejected_total":2,"lines":2}`,
		},
		{
			"the dialects of others", `{"metric":{"__name__":"m"},"values":[NaN,nan,Infinity,+Inf,-Inf,inf,"+Infinity","-inf","nan","1.5","-2e3"],"timestamps":[1,2,3,4,5,6,7,8,9,10,11]}`, 200,
			": \"m\" @1 NaN\n: \"m\" @2 NaN\n: \"m\" @3 +Inf\n: \"m\" @4 +Inf\n: \"m\" @5 -Inf\n: \"m\" @6 +Inf\n: \"m\" @7 +Inf\n: \"m\" @8 -Inf\n: \"m\" @9 NaN\n: \"m\" @10 1.5\n: \"m\" @11 -2000\n",
			`"accepted":11`,
		},
		{"a word that is no value", `{"metric":{},"values":[true],"timestamps":[1]}`, 400, "", `\"true\" is not a value`},
		{"a number that is too large, in quotes", `{"metric":{},"values":["1e999"],"timestamps":[1]}`, 400, "", `\"1e999\" is not a value`},
		{"a number of more digits than are read", `{"metric":{},"values":[` + digits + `],"timestamps":[1]}`, 400, "", `"error":"line 1: at byte 23: ` + digits[:80] + `… is too large or too long"`},
		{"a long number that is no time", `{"metric":{},"values":[1],"timestamps":[` + digits + `]}`, 400, "", `"error":"line 1: at byte 40: ` + digits[:80] + `… is not a time in Unix ms"`},
		{"a long text that is no value", `{"metric":{},"values":["` + digits + `"],"timestamps":[1]}`, 400, "", digits[:80] + `…\" is not a value"`},
		{"lengths", `{"metric":{},"values":[1],"timestamps":[]}`, 400, "", "there are 1 values and 0 timestamps"},
		{"members", `{"metric":{},"values":[1]}`, 400, "", "a line must have metric, values and timestamps"},
		{"a value", `{"metric":{},"values":["one"],"timestamps":[1]}`, 400, "", `\"one\" is not a value`},
		{"bits of no NaN", `{"metric":{},"values":["NaN:3ff0000000000000"],"timestamps":[1]}`, 400, "", `is not a value`},
		{"a time", `{"metric":{},"values":[1],"timestamps":[1.5]}`, 400, "", "1.5 is not a time in Unix ms"},
		{"a label", `{"metric":{"a":1},"values":[],"timestamps":[]}`, 400, "", "want a label's value in quotes"},
		{"more on the line", apitest.ImportLine + "x", 400, "", "want the end of the line"},
		{"cut off", apitest.ImportLine[:50], 400, "", "the body ends in the middle"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := new(apitest.BackFiller)
			w := importTo(t, b, strings.NewReader(c.body))
			assert.Equal(t, c.code, w.Code)
			assert.Contains(t, w.Body.String(), c.reply)
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
	_, err := gz.Write([]byte(apitest.ImportLine + "\n{]\n" + apitest.ImportLine + "\n"))
	require.NoError(t, err)
	require.NoError(t, gz.Close())
	body := zipped.Bytes()
	body[len(body)-5]++ // of the checksum
	w := importTo(t, new(apitest.BackFiller), bytes.NewReader(body), "Content-Encoding", "gzip")
	require.Equal(t, 400, w.Code)
	require.Contains(t, w.Body.String(), `"lines":0}`)
	require.NotContains(t, w.Body.String(), "malformed")
	require.Contains(t, w.Body.String(), "line 1: the body cannot be decompressed: gzip: invalid checksum; nothing of it was kept")

	w = importTo(t, new(apitest.BackFiller), apitest.CutOff(body[:len(body)-5]), "Content-Encoding", "gzip")
	require.Equal(t, 400, w.Code)
	require.Contains(t, w.Body.String(), `"accepted":4,"rejected":[],"lines":1}`)
	require.NotContains(t, w.Body.String(), "malformed")
}

// TestImportDamaged: nothing is kept of a damaged body that is held until it is decompressed. Of a
// longer one, nothing is kept of the part that is read when the damage shows, and the reply says so.
func TestImportDamaged(t *testing.T) {
	line := strings.Replace(apitest.ImportLine, "web-1", strings.Repeat("w", 100), 1) + "\n"
	for _, enc := range []string{"gzip", "zstd"} {
		for _, size := range []int{importer.HeldBytes - len(line), 5 * importer.HeldBytes / 4} {
			n := size / len(line)
			body := apitest.Compressed(t, enc, []byte(strings.Repeat(line, n)))
			// Of the checksum: gzip has the length behind it.
			body[len(body)-map[string]int{"gzip": 5, "zstd": 1}[enc]] ^= 1
			b := new(apitest.BackFiller)
			w := importTo(t, b, bytes.NewReader(body), "Content-Encoding", enc)
			require.Equal(t, 400, w.Code, enc)
			if size < importer.HeldBytes {
				require.Zero(t, b.Calls, enc)
				require.Contains(t, w.Body.String(), "nothing of it was kept")
				continue
			}
			var reply wire.Import
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &reply))
			require.Positive(t, reply.Lines, enc)
			require.Less(t, reply.Lines, n, enc)
			kept := 0
			for _, size := range b.Sizes {
				kept += size
			}
			require.EqualValues(t, kept, reply.Accepted)
			require.Contains(t, reply.Error, fmt.Sprintf("%d samples were kept before that showed, and may be wrong", kept))
		}
	}
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
		b := new(apitest.BackFiller)
		w := importTo(t, b, bytes.NewReader(body), "Content-Encoding", enc)
		require.Equal(t, 200, w.Code, "%s: %s", enc, w.Body)
		assert.Contains(t, w.Body.String(), fmt.Sprintf(`{"accepted":%d,`, lines*each))
		total := 0
		for _, n := range b.Sizes {
			assert.LessOrEqual(t, n, importer.BatchSamples)
			total += n
		}
		assert.Equal(t, lines*each, total)
		assert.Equal(t, "m2 ", b.Reports[len(b.Reports)-1].Measurements[0].Metric)

		w = importTo(t, new(apitest.BackFiller), bytes.NewReader(body[:len(body)-len(body)/4]), "Content-Encoding", enc)
		assert.Equal(t, 400, w.Code, enc)
	}
	assert.Equal(t, 415, importTo(t, new(apitest.BackFiller), bytes.NewReader(nil), "Content-Encoding", "snappy").Code)
}

// TestImportClaims: an import takes its memory before it reads, and more for a long line; while the client reads the reply, it
// holds what the reply takes.
func TestImportClaims(t *testing.T) {
	long := `{"metric":{"a":"b"},"values":[` + strings.Repeat(" ", 1<<20) + `1],"timestamps":[1]}`
	budget := limits.NewBudget(1<<40, 0)
	w := &slowReader{ResponseRecorder: httptest.NewRecorder(), budget: budget}
	importServer(t, budget).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "POST", wire.ImportPath, strings.NewReader(long)))
	require.Equal(t, 400, w.Code)
	require.EqualValues(t, importer.ReplyBytes, w.held)
	all := budget.Claim(limits.Client{})
	require.True(t, all.Grow(1<<40), "all is given back")

	budget = limits.NewBudget(2*importer.LeastBytes+2<<20, 0)
	require.Equal(t, 429, apitest.Send(t, importServer(t, budget), wire.ImportPath, strings.NewReader(apitest.ImportLine+"\n"+long)).Code)
	require.Equal(t, 200, apitest.Send(t, importServer(t, budget), wire.ImportPath, strings.NewReader(apitest.ImportLine)).Code)
}

// slowReader is a client that looks, before it reads the reply, at what the budget has for others.
type slowReader struct {
	*httptest.ResponseRecorder
	budget *limits.Budget
	held   int64
}

// Write implements http.ResponseWriter.
func (s *slowReader) Write(b []byte) (int, error) {
	others := s.budget.Claim(limits.Client{})
	defer others.Release()
	for n := int64(1 << 39); n > 0; n /= 2 {
		others.Grow(n)
	}
	s.held = 1<<40 - others.Held()
	return s.ResponseRecorder.Write(b)
}

func importServer(tb testing.TB, budget *limits.Budget) *api.Server {
	tb.Helper()
	return apitest.Server(tb, func(o *api.Options) {
		b := new(apitest.BackFiller)
		o.Appender, o.BackFiller, o.Imports = b, b, budget
	})
}

// TestImportBusy: a busy server is reported at the beginning of a body, and waited for later on.
func TestImportBusy(t *testing.T) {
	b := &apitest.BackFiller{Busy: 1}
	w := importTo(t, b, strings.NewReader(apitest.ImportLine))
	assert.Equal(t, 429, w.Code)
	assert.Equal(t, "1", w.Header().Get("Retry-After"))

	line := `{"metric":{"__name__":"m"},"values":[1` + strings.Repeat(",1", 2*importer.BatchSamples-1) + `],"timestamps":[1` + strings.Repeat(",1", 2*importer.BatchSamples-1) + "]}\n"
	b = &apitest.BackFiller{Busy: 10, At: 1}
	w = importTo(t, b, strings.NewReader(line))
	assert.Equal(t, 200, w.Code, "%s", w.Body)
	b = &apitest.BackFiller{Busy: 1000, At: 1}
	w = importTo(t, b, strings.NewReader(line))
	assert.Equal(t, 429, w.Code)
	assert.Contains(t, w.Body.String(), `"accepted":20000,"rejected":[],"lines":0`)
}

// FuzzImport: no body causes a crash, and all samples passed on are counted.
func FuzzImport(f *testing.F) {
	f.Add(apitest.ImportLine + "\n" + apitest.ImportLine)
	f.Add(`{"metric":{"a":"\u0000"},"values":["NaN:7ff0000000000002",1e3],"timestamps":[1e3,-5]}` + "\n{}")
	f.Fuzz(func(t *testing.T, body string) {
		b := new(apitest.BackFiller)
		w := importTo(t, b, strings.NewReader(body))
		require.Contains(t, []int{200, 400}, w.Code)
		n := 0
		for _, r := range b.Reports {
			n += len(r.Measurements)
		}
		require.Contains(t, w.Body.String(), fmt.Sprintf(`"accepted":%d,`, n))
	})
}
