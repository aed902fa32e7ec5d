package promapi

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLevels: with levels, an answer also says from where each selector was read. Without, it is the same to the byte.
func TestLevels(t *testing.T) {
	h := newAPI(t, nil)
	for target, want := range map[string]string{
		"/api/v1/query_range?query=sum(rate(requests_total[1m]))%2Bnone&start=100&end=200&step=50": `[
			{"selector":"requests_total[1m]","parts":[{"level":"raw","start":40.001,"end":200.001,"series":1,"late":false,"partial":false}]},
			{"selector":"none","parts":[]}]`,
		"/api/v1/query?query=up{instance%3D%22a%22}&time=300": `[
			{"selector":"up{instance=\"a\"}","parts":[{"level":"raw","start":0.001,"end":300.001,"series":1,"late":false,"partial":false}]}]`,
		"/api/v1/query?query=1&time=300": `[]`,
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			code, plain := ask(t, h, method, target)
			require.Equal(t, 200, code, plain)
			require.NotContains(t, plain, "levels")
			for _, off := range []string{"0", "false", ""} {
				_, body := ask(t, h, method, target+"&levels="+off)
				require.Equal(t, plain, body)
			}
			code, body := ask(t, h, method, target+"&levels=1")
			require.Equal(t, 200, code, body)
			front := strings.TrimSuffix(plain, "}")
			require.True(t, strings.HasPrefix(body, front+`,"levels":`), "%s\n%s", plain, body)
			require.JSONEq(t, want, strings.TrimSuffix(strings.TrimPrefix(body, front+`,"levels":`), "}"))
		}
	}
	code, body := ask(t, h, http.MethodGet, "/api/v1/query?query=1&levels=perhaps")
	require.Equal(t, 400, code)
	require.Contains(t, body, `invalid parameter \"levels\"`)
	code, body = ask(t, h, http.MethodGet, "/api/v1/query?query=sum(&levels=1")
	require.Equal(t, 400, code)
	require.NotContains(t, body, `"levels":`)
}

// TestManyLevels: selectors beyond the bound are counted.
func TestManyLevels(t *testing.T) {
	h := newAPI(t, nil)
	code, body := ask(t, h, http.MethodPost, "/api/v1/query?levels=1&time=100&query="+strings.TrimSuffix(strings.Repeat("none%2B", 130), "%2B"))
	require.Equal(t, 200, code)
	require.Equal(t, 100, strings.Count(body, `{"selector":"none"`))
	require.Contains(t, body, `],"levelsCut":30}`)
}
