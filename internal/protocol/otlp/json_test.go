package otlp

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/ingest"
)

func pointJSON(members string) string {
	return `{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"a","gauge":{"dataPoints":[{` + members + `}]}}]}]}]}`
}

// TestNumbersOfJSON: a number of any length is stored as it is, or refused.
func TestNumbersOfJSON(t *testing.T) {
	zeros := strings.Repeat("0", 1000)
	small := "1" + zeros[:700] + "e-700"
	for body, want := range map[string]string{
		pointJSON(`"asDouble":` + small):                                                                             "1",
		pointJSON(`"asDouble":"` + small + `"`):                                                                      "1",
		pointJSON(`"asDouble":1` + zeros + "e-1000"):                                                                 "",
		pointJSON(`"asDouble":"1` + zeros + `e-1000"`):                                                               "",
		pointJSON(`"as_double" : "1` + zeros + `e-1000"`):                                                            "",
		pointJSON(`"asDouble":"` + strings.Repeat(`\u0031`, 801) + `e-800"`):                                         "",
		pointJSON(`"\u0061sDouble":"1` + zeros + `e-1000"`):                                                          "",
		pointJSON(`"asDouble":0.` + zeros + "1e1001"):                                                                "",
		pointJSON(`"asDouble":2,"attributes":[{"key":"k","value":{"stringValue":"` + zeros + ` \"` + zeros + `"}}]`): "2",
	} {
		var b ingest.Batch
		err := newDecoder(settings{}).fromJSON([]byte(body), &b)
		if want == "" {
			require.ErrorContains(t, err, "a number has more than 800 digits", "%.150s", body)
			continue
		}
		require.NoError(t, err, "%.150s", body)
		require.Equal(t, want, fmt.Sprint(b.Reports()[0].Measurements[0].Value))
	}
	histogram := strings.Replace(pointJSON(`"timeUnixNano":"1","count":"1","bucketCounts":["1","0"],"explicitBounds":["1`+zeros+`e-1000"]`), "gauge", "histogram", 1)
	require.ErrorContains(t, newDecoder(settings{}).fromJSON([]byte(histogram), new(ingest.Batch)), "a number has more than 800 digits")
	for _, broken := range []string{``, `"`, `"\`, `{"a":"`, `-`, `{"asDouble":"` + zeros, zeros} {
		require.Error(t, newDecoder(settings{}).fromJSON([]byte(broken), new(ingest.Batch)))
	}
}
