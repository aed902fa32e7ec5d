package promapi

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTSDB: the status has Prometheus' own form.
func TestTSDB(t *testing.T) {
	const path = "/api/v1/status/tsdb"
	h := newAPI(t, nil)
	code, body := ask(t, h, http.MethodGet, path+"?limit=2")
	require.Equal(t, 200, code, body)
	// What a label takes is an estimate of the index.
	var reply struct {
		Data struct{ MemoryInBytesByLabelName []tsdbStat }
	}
	require.NoError(t, json.Unmarshal([]byte(body), &reply))
	memory, err := json.Marshal(reply.Data.MemoryInBytesByLabelName)
	require.NoError(t, err)
	require.Equal(t, "__name__", reply.Data.MemoryInBytesByLabelName[0].Name)
	// The names are those of TSDBStatus in web/api/v1 of Prometheus, and the times those of its empty head.
	require.JSONEq(t, `{"status":"success","data":{
		"headStats":{"numSeries":4,"numLabelPairs":7,"chunkCount":0,"minTime":9223372036854775807,"maxTime":-9223372036854775808},
		"seriesCountByMetricName":[{"name":"up","value":2},{"name":"odd","value":1}],
		"labelValueCountByLabelName":[{"name":"__name__","value":3},{"name":"instance","value":2}],
		"memoryInBytesByLabelName":`+string(memory)+`,
		"seriesCountByLabelValuePair":[{"name":"instance=a","value":3},{"name":"job=web","value":3}]}}`, body)

	for target, message := range map[string]string{
		"?limit=0": "limit must be a positive number", "?limit=many": "limit must be a positive number", "?limit=10001": "limit must not exceed 10000",
	} {
		code, body = ask(t, h, http.MethodGet, path+target)
		require.Equal(t, 400, code)
		require.JSONEq(t, `{"status":"error","errorType":"bad_data","error":"`+message+`"}`, body)
	}
	code, _ = ask(t, h, http.MethodPost, path)
	require.Equal(t, 405, code)
}
