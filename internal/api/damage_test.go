package api_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/collectd"
	"github.com/quern/quern/internal/protocol/remotewrite"
	"github.com/quern/quern/internal/wire"
)

// fewSamples returns, by path as hostileTo takes it, a body with samples of a few series.
func fewSamples() map[string]string {
	var reported, lines, imported, written, lists, points strings.Builder
	for i := range 4 {
		v := float64(i*i) + 0.25
		comma := ","[:min(i, 1)]
		fmt.Fprintf(&reported, `%s{"metric":"m","labels":{"core":"%d"},"time":1732161600000,"value":%g}`, comma, i, v)
		fmt.Fprintf(&lines, "m,host=h,core=%d v=%g 1732161600000000000\n", i, v)
		fmt.Fprintf(&imported, `{"metric":{"__name__":"m","source":"s","core":"%d"},"values":[%g],"timestamps":[1732161600000]}`+"\n", i, v)
		fmt.Fprintf(&lists, `%s{"host":"h","plugin":"p%d","type":"t","time":1732161600,"values":[%g],"dstypes":["gauge"],"dsnames":["value"]}`, comma, i, v)
		label := func(name, value string) string {
			return apitest.Proto(1, apitest.Proto(1, name), apitest.Proto(2, value))
		}
		written.WriteString(apitest.Proto(1, label(metric.NameLabel, "m"), label(metric.SourceLabel, fmt.Sprint("s", i)), apitest.Proto(2, pbDouble(1, v))))
		attribute := apitest.Proto(1, "core") + apitest.Proto(2, apitest.Proto(1, fmt.Sprint(i)))
		points.WriteString(apitest.Proto(1, apitest.Proto(7, attribute), pbDouble(4, v)))
	}
	return map[string]string{
		wire.ReportsPath: `{"source":"s","measurements":[` + reported.String() + `]}`,
		"/write":         lines.String(),
		"/api/v2/write":  lines.String(),
		wire.ImportPath:  imported.String(),
		remotewrite.Path: written.String(),
		collectd.Path:    "[" + lists.String() + "]",
		"/v1/metrics":    apitest.Proto(1, apitest.Proto(2, apitest.Proto(2, apitest.Proto(1, "m"), apitest.Proto(5, points.String())))),
	}
}

// forEachDoor runs a test with each path, encoding, and body in it. Send returns what the server keeps of a body.
func forEachDoor(t *testing.T, test func(t *testing.T, body []byte, send func(io.Reader) (code int, kept string))) {
	t.Helper()
	for path, plain := range fewSamples() {
		for _, enc := range []string{"gzip", "zstd", "snappy-framed"} {
			if path == wire.ImportPath && enc == "snappy-framed" {
				continue // it takes none
			}
			t.Run(enc+path, func(t *testing.T) {
				b := new(apitest.BackFiller)
				s := apitest.Server(t, func(o *api.Options) { o.Appender, o.BackFiller = b, b })
				test(t, apitest.Compressed(t, enc, []byte(plain)), func(body io.Reader) (int, string) {
					b.Reports = nil
					code := hostileTo(s, path, body, "Content-Encoding", apitest.HeaderOf(enc)).Code
					return code, b.String()
				})
			})
		}
	}
}

// TestFlippedBits: of a compressed body in which a bit is wrong, nothing is kept, unless the bit means
// nothing: then everything is.
func TestFlippedBits(t *testing.T) {
	forEachDoor(t, func(t *testing.T, body []byte, send func(io.Reader) (int, string)) {
		code, whole := send(bytes.NewReader(body))
		require.Less(t, code, 300)
		require.Equal(t, 4, strings.Count(whole, "\n"))
		refused := 0
		for i := range 8 * len(body) {
			damaged := bytes.Clone(body)
			damaged[i/8] ^= 1 << (i % 8)
			switch code, kept := send(bytes.NewReader(damaged)); code {
			case http.StatusOK, http.StatusNoContent:
				require.Equal(t, whole, kept, "bit %d", i)
			case http.StatusBadRequest, http.StatusRequestEntityTooLarge:
				require.Empty(t, kept, "bit %d", i)
				refused++
			default:
				t.Fatalf("bit %d: %d", i, code)
			}
		}
		require.Greater(t, refused, 4*len(body))
	})
}

// TestCutOff: of a compressed body that breaks off, what arrived is kept.
func TestCutOff(t *testing.T) {
	forEachDoor(t, func(t *testing.T, body []byte, send func(io.Reader) (int, string)) {
		_, whole := send(bytes.NewReader(body))
		longest := ""
		for i := range body {
			code, kept := send(apitest.CutOff(body[:i]))
			require.Equal(t, http.StatusBadRequest, code, "%d bytes", i)
			require.True(t, strings.HasPrefix(whole, kept), "%d bytes: %s", i, kept)
			require.GreaterOrEqual(t, len(kept), len(longest), "%d bytes", i)
			longest = kept
			// If it arrives whole, and ends early all the same, it is not known why.
			code, kept = send(bytes.NewReader(body[:i]))
			require.Contains(t, []int{http.StatusBadRequest, http.StatusOK, http.StatusNoContent}, code)
			require.Empty(t, kept, "%d bytes", i)
		}
		t.Log(strings.Count(longest, "\n"), "samples were kept")
	})
}
