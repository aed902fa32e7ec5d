package collectd_test

import (
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/protocol/push"
)

// TestCollectdRecorded ingests requests of a real collectd, recorded by `go test
// ./integration/programs -record DIR`.
func TestCollectdRecorded(t *testing.T) {
	body, err := os.ReadFile("testdata/collectd-5.12.json")
	require.NoError(t, err)
	var lists []struct{ Values []float64 }
	require.NoError(t, json.Unmarshal(body, &lists))
	values := 0
	for _, l := range lists {
		values += len(l.Values)
	}
	a := new(apitest.Appender)
	w := postCollectd(t, apitest.ReportServer(t, a, push.Limits{}), string(body))
	require.Equal(t, http.StatusOK, w.Code, "%s", w.Body)
	assert.Equal(t, values, strings.Count(a.String(), "\n"))
	assert.Contains(t, a.String(), `: "collectd_cpu_total" "instance"="it.host" "cpu"="1" "type"="wait" @1795295861451 33486`+"\n")
}
