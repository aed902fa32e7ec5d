package api_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/collectd"
	"github.com/quern/quern/internal/protocol/push"
	"github.com/quern/quern/internal/protocol/remotewrite"
	"github.com/quern/quern/internal/treecheck/linear"
	"github.com/quern/quern/internal/wire"
)

func times(n int, format string) string { return linear.Times(n, format) }

// descending is times with decreasing numbers.
func descending(n int, format string) string {
	var sb strings.Builder
	for i := 9_999_999; sb.Len() < n; i-- {
		fmt.Fprintf(&sb, format, i)
	}
	return sb.String()
}

func pbDouble(field protowire.Number, v float64) string {
	return string(protowire.AppendFixed64(protowire.AppendTag(nil, field, protowire.Fixed64Type), math.Float64bits(v)))
}

func pbRefs(refs ...uint64) string {
	var b []byte
	for _, r := range refs {
		b = protowire.AppendVarint(b, r)
	}
	return apitest.Proto(1, b)
}

// each concatenates parts up to about n bytes.
func each(n int, part func(i int) string) string {
	var sb strings.Builder
	for i := 0; sb.Len() < n; i++ {
		sb.WriteString(part(i))
	}
	return sb.String()
}

// hostile returns, by path, bodies whose cost could be far out of proportion to their size.
func hostile() map[string]map[string]func(n int) string {
	sample := apitest.Proto(2, pbDouble(1, 1))
	label := func(name, value string) string {
		return apitest.Proto(1, apitest.Proto(1, name), apitest.Proto(2, value))
	}
	symbols := func(all ...string) (out string) {
		for _, s := range all {
			out += apitest.Proto(4, s)
		}
		return out
	}
	attribute := func(key, value string) string {
		return apitest.Proto(1, key) + apitest.Proto(2, apitest.Proto(1, value))
	}
	gauge := func(points string) string { return apitest.Proto(2, apitest.Proto(1, "m"), apitest.Proto(5, points)) }
	point := func(attributes string) string { return apitest.Proto(1, attributes, pbDouble(4, 1)) }
	otlpRequest := func(resource, scope, metrics string) string {
		return apitest.Proto(1, apitest.Proto(1, resource), apitest.Proto(2, apitest.Proto(1, scope), metrics))
	}
	long := strings.Repeat("x", 100)
	return map[string]map[string]func(n int) string{
		"/write": {
			"equal tags":             func(n int) string { return "m" + times(n, ",b=1") + ",a=1 v=1\n" },
			"descending tags":        func(n int) string { return "m" + descending(n, ",t%07d=1") + " v=1\n" },
			"lines of many tags":     func(n int) string { return times(n, "m"+strings.Repeat(",b=1", 150)+" v=1\n") },
			"a long tag":             func(n int) string { return "m,a=" + times(n/2, "x") + " " + times(n/2, "f=1,") + "g=1\n" },
			"a long measurement":     func(n int) string { return times(n/2, "x") + " " + times(n/2, "f%d=1,") + "g=1\n" },
			"fields of many tags":    func(n int) string { return "m" + times(4000, ",t%02d="+long) + " " + times(n, "f=1,") + "g=1\n" },
			"long fields":            func(n int) string { return times(n, "m "+long+long+"%d=1\n") },
			"series":                 func(n int) string { return times(n, "m,a=%d v=1\n") },
			"lines that are none":    func(n int) string { return times(n, "a\n") },
			"escapes":                func(n int) string { return "m,a=" + times(n, `\ `) + " v=1\n" },
			"strings without an end": func(n int) string { return times(n, "m f=\"\n") },
			"a string without end":   func(n int) string { return `m f="` + times(n, "\nm f=\\") },
		},
		"/api/v1/write": {
			"equal labels": func(n int) string { return apitest.Proto(1, times(n, label("b", "1")), sample) },
			"descending labels": func(n int) string {
				return apitest.Proto(1, each(n, func(i int) string { return label(fmt.Sprintf("l%07d", 9_999_999-i), "1") }), sample)
			},
			"samples of many labels": func(n int) string {
				return apitest.Proto(1, strings.Repeat(label("b", "1"), 150), times(n, sample))
			},
			"series": func(n int) string {
				return each(n, func(i int) string { return apitest.Proto(1, label("a", fmt.Sprint(i)), sample) })
			},
			"empty series": func(n int) string { return times(n, apitest.Proto(1, "")) },
			"histograms":   func(n int) string { return apitest.Proto(1, times(n, apitest.Proto(4, ""))) },
			"a long source": func(n int) string {
				return each(n, func(int) string { return apitest.Proto(1, label(metric.SourceLabel, times(n/4, "x")), sample) })
			},
			"metadata of one": func(n int) string { return times(n, apitest.Proto(3, apitest.Proto(2, "m"), apitest.Proto(4, long))) },
		},
		"/api/v1/write 2": {
			"empty symbols": func(n int) string { return times(n, apitest.Proto(4, "")) },
			"references": func(n int) string {
				return symbols("", "a") + apitest.Proto(5, apitest.Proto(1, times(n, "\x01\x01")), sample)
			},
			"series that share labels": func(n int) string {
				return symbols("", "a", long) + times(n, apitest.Proto(5, pbRefs(slices.Repeat([]uint64{1, 2}, 50)...), sample))
			},
			"two equal long texts": func(n int) string {
				help := times(n/4, "x")
				return symbols("", "a", help, help) + each(n/2, func(i int) string {
					md := protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), uint64(2+i%2))
					return apitest.Proto(5, apitest.Proto(5, md), sample)
				})
			},
			"two equal long sources": func(n int) string {
				source := times(n/4, "x")
				return symbols("", metric.SourceLabel, source, source) + each(n/2, func(i int) string {
					return apitest.Proto(5, pbRefs(1, uint64(2+i%2)), sample)
				})
			},
			"two equal long names": func(n int) string {
				name := times(n/4, "x")
				return symbols("", metric.NameLabel, name, name) + each(n/2, func(i int) string {
					return apitest.Proto(5, pbRefs(1, uint64(2+i%2)), sample)
				})
			},
		},
		"/v1/metrics": {
			"equal attributes": func(n int) string {
				return otlpRequest("", "", gauge(point(times(n, apitest.Proto(7, attribute("b", "1"))))))
			},
			"points of many": func(n int) string {
				return otlpRequest("", "", gauge(times(n, point(strings.Repeat(apitest.Proto(7, attribute("b", "1")), 150)))))
			},
			"attributes of resource": func(n int) string {
				return otlpRequest(times(n, apitest.Proto(1, attribute("b", "1"))), "", gauge(point("")))
			},
			"services": func(n int) string {
				return otlpRequest(times(n, apitest.Proto(1, attribute("service.name", "1"))), "", gauge(point("")))
			},
			"empty attributes": func(n int) string {
				return otlpRequest(times(n, apitest.Proto(1, "")), times(n, apitest.Proto(3, "")), gauge(point(times(n, apitest.Proto(7, "")))))
			},
			"points that share many": func(n int) string {
				return otlpRequest(apitest.Proto(1, attribute("service.name", "s")), each(3000, func(i int) string { return apitest.Proto(3, attribute(fmt.Sprint("a", i), long)) }), gauge(times(n, point(""))))
			},
			"names that collide": func(n int) string {
				return otlpRequest("", strings.Repeat(apitest.Proto(3, attribute("a.b", times(n/100, "x"))), 100), gauge(point("")))
			},
			"a long key": func(n int) string {
				return otlpRequest("", apitest.Proto(3, attribute(times(n/2, "x"), "1")), gauge(times(n/2, point(""))))
			},
			"a long name": func(n int) string {
				return otlpRequest("", "", apitest.Proto(2, apitest.Proto(1, times(n/2, "x.")), apitest.Proto(5, times(n/2, point("")))))
			},
			"deltas": func(n int) string {
				return otlpRequest("", "", apitest.Proto(2, apitest.Proto(1, times(n/2, "x")), apitest.Proto(7, times(n/2, point("")))))
			},
			"nesting": func(n int) string {
				v := ""
				for len(v) < n {
					v = apitest.Proto(5, apitest.Proto(1, v))
				}
				return otlpRequest("", "", gauge(point(apitest.Proto(7, apitest.Proto(1, "a"), apitest.Proto(2, v)))))
			},
			"lists of values": func(n int) string {
				return otlpRequest("", "", gauge(point(times(n, apitest.Proto(7, apitest.Proto(1, "a"), apitest.Proto(2, apitest.Proto(5, strings.Repeat(apitest.Proto(1, ""), 100))))))))
			},
			"buckets": func(n int) string {
				var counts, bounds []byte
				for i := range n / 16 {
					counts = protowire.AppendFixed64(counts, 1)
					bounds = protowire.AppendFixed64(bounds, math.Float64bits(float64(i)))
				}
				counts = protowire.AppendFixed64(counts, 1)
				cumulative := string(protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 2))
				attributes := each(500, func(i int) string { return apitest.Proto(9, attribute(fmt.Sprint("a", i), "1")) })
				return otlpRequest("", "", apitest.Proto(2, apitest.Proto(1, "m"), apitest.Proto(9, apitest.Proto(1, attributes, apitest.Proto(6, counts), apitest.Proto(7, bounds)), cumulative)))
			},
			"quantiles": func(n int) string {
				return otlpRequest("", "", apitest.Proto(2, apitest.Proto(1, "m"), apitest.Proto(11, apitest.Proto(1, times(n, apitest.Proto(6, ""))))))
			},
			"empty points":    func(n int) string { return otlpRequest("", "", gauge(times(n, apitest.Proto(1, "")))) },
			"empty resources": func(n int) string { return times(n, apitest.Proto(1, "")) },
		},
		"/v1/metrics json": {
			"objects": func(n int) string { return `{"resourceMetrics":[` + times(n, `{},`) + `{}]}` },
			"points": func(n int) string {
				return `{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"m","gauge":{"dataPoints":[` + times(n, `{"asDouble":1},`) + `{}]}}]}]}]}`
			},
			"nesting": func(n int) string { return strings.Repeat(`{"x":`, n/6) + "1" + strings.Repeat("}", n/6) },
			"space":   func(n int) string { return times(n, " ") + "{}" },
		},
		collectd.Path: {
			"a long plugin": func(n int) string {
				k := n / 20
				return `[{"plugin":"` + times(n/2, "x") + `","type":"t","values":[1` + strings.Repeat(",1", k) + `],"dstypes":["gauge"` + strings.Repeat(`,"gauge"`, k) +
					`],"dsnames":["v"` + strings.Repeat(`,"v"`, k) + `]}]`
			},
			"values":      func(n int) string { return `[{"plugin":"p","type":"t","values":[1` + times(n, ",1") + `]}]` },
			"empty lists": func(n int) string { return `[{}` + times(n, `,{}`) + `]` },
			"lists": func(n int) string {
				return "[" + times(n, `{"plugin":"p","type":"t","values":[1],"dstypes":["gauge"],"dsnames":["v"]},`) + "{}]"
			},
			"names": func(n int) string { return `[{"dsnames":["a"` + times(n, `,"a"`) + `]}]` },
		},
		wire.ReportsPath: {
			"equal labels": func(n int) string {
				return `{"source":"s","measurements":[{"metric":"m","labels":{"a":"1"` + times(n, `,"b":"1"`) + `},"value":1}]}`
			},
			"descending labels": func(n int) string {
				return `{"source":"s","measurements":[{"metric":"m","labels":{"a":"1"` + descending(n, `,"l%07d":"1"`) + `},"value":1}]}`
			},
			"labels that are no strings": func(n int) string {
				return `{"source":"s","measurements":[{"metric":"m","labels":{"a":1` + times(n, `,"l%d":1`) + `},"value":1}]}`
			},
			"long equal names": func(n int) string {
				return `{"source":"s","measurements":[{"metric":"m","labels":{"a":"1"` + each(n, func(i int) string { return fmt.Sprintf(`,"%s%03d":""`, times(n/100, "x"), i) }) + `},"value":1}]}`
			},
			"empty reports":      func(n int) string { return times(n, "{}\n") },
			"empty measurements": func(n int) string { return `{"source":"s","measurements":[{}` + times(n, ",{}") + `]}` },
			"measurements": func(n int) string {
				return `{"source":"s","measurements":[{}` + times(n, `,{"metric":"m","value":1}`) + `]}`
			},
			"other members": func(n int) string { return `{"x":[1` + times(n, `,[[]]`) + `],"source":"s","measurements":[]}` },
			"nesting":       func(n int) string { return `{"x":` + times(n, "[") },
			"space":         func(n int) string { return times(n, " \n\t") + "{}" },
			"escapes": func(n int) string {
				return `{"source":"s","measurements":[` + times(n, `{"metric":"\u0061\n","value":1},`) + `{}]}`
			},
			"digits": func(n int) string {
				return `{"source":"s","measurements":[{"metric":"m","value":1` + times(n, "0") + `,"time":1` + times(n, "0") + `}]}`
			},
		},
		wire.ImportPath: {
			"spaces":          func(n int) string { return times(n, " \n") },
			"malformed lines": func(n int) string { return times(n, "x\n") },
			"labels": func(n int) string {
				return `{"metric":{"__name__":"m"` + times(n, `,"b":"1"`) + `},"values":[1],"timestamps":[1]}`
			},
			"empty lines": func(n int) string { return times(n, `{"metric":{},"values":[],"timestamps":[]}`+"\n") },
			"lines":       func(n int) string { return times(n, apitest.ImportLine+"\n") },
			"values": func(n int) string {
				return `{"metric":{"__name__":"m"},"values":[1` + times(n/2, `,1`) + `],"timestamps":[1` + times(n/2, `,1`) + `]}`
			},
			"nesting": func(n int) string { return `{"x":` + times(n, "[") },
		},
	}
}

// hostileTo sends a body to a path of hostile, with the headers of its format.
func hostileTo(s http.Handler, path string, body io.Reader, headers ...string) *httptest.ResponseRecorder {
	path, form, _ := strings.Cut(path, " ")
	r := httptest.NewRequestWithContext(context.Background(), http.MethodPost, path, body)
	switch {
	case form == "2":
		r.Header.Set("Content-Type", "application/x-protobuf;proto=io.prometheus.write.v2.Request")
	case form == "json":
		r.Header.Set("Content-Type", "application/json")
	case path == "/v1/metrics":
		r.Header.Set("Content-Type", "application/x-protobuf")
	}
	if path == remotewrite.Path {
		r.Header.Set("Content-Encoding", "identity")
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

// TestHostileIsLinear: whatever the body, decoding and answering takes time and memory in
// proportion to its size.
func TestHostileIsLinear(t *testing.T) {
	s := apitest.Server(t, func(o *api.Options) { o.Appender, o.BackFiller = apitest.AcceptAll{}, apitest.AcceptAll{} })
	for path, bodies := range hostile() {
		for name, body := range bodies {
			t.Run(path+"/"+name, func(t *testing.T) {
				const n = 16 << 10
				cost := linear.Check(t, n, body, func(body string) {
					if w := hostileTo(s, path, strings.NewReader(body)); w.Code >= 500 || w.Code == http.StatusUnsupportedMediaType {
						t.Errorf("%d: %.300s", w.Code, w.Body)
					}
				})
				t.Log(cost.CPU, cost.Bytes)
			})
		}
	}
}

// TestDecodedIsBounded: decoded data counts towards the memory that requests share, one request has
// its own limit, and decoding stops when the client has gone.
func TestDecodedIsBounded(t *testing.T) {
	for path, bodies := range hostile() {
		if path == wire.ImportPath {
			continue // an import holds only a part at a time
		}
		t.Run(path, func(t *testing.T) {
			refused := 0
			for name, body := range bodies {
				const n = 8 << 10
				text := body(n)
				s := apitest.Server(t, func(o *api.Options) { o.Appender, o.Limits = apitest.AcceptAll{}, push.Limits{DecodedBytes: 1} })
				w := hostileTo(s, path, strings.NewReader(text))
				if w.Code != http.StatusRequestEntityTooLarge {
					continue // it decodes to nothing
				}
				refused++
				s = apitest.Server(t, func(o *api.Options) { o.Appender, o.Bodies = apitest.AcceptAll{}, apitest.Share(push.MinBufferBytes) })
				w = hostileTo(s, path, strings.NewReader(text))
				require.Contains(t, []int{http.StatusTooManyRequests, http.StatusServiceUnavailable}, w.Code, "%s: %.200s", name, w.Body)
				require.Equal(t, "1", w.Header().Get("Retry-After"), name)
			}
			require.Positive(t, refused)
		})
	}
}
