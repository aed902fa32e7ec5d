package group_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/documents/group"
	"github.com/quern/quern/internal/documents/shelf"
)

func TestDecode(t *testing.T) {
	name, body, err := group.Decode([]byte(`{"name":"Web","sources":["b","a","b"]}`))
	require.NoError(t, err)
	require.Equal(t, "Web", name)
	require.Equal(t, `{"name":"Web","metrics":[],"sources":["a","b"]}`, string(body)) //nolint:testifylint // its one form

	names := func(n int) string { return "[" + strings.Repeat(`"x",`, n-1) + `"x"]` }
	_, _, err = group.Decode(fmt.Appendf(nil, `{"name":"Web","metrics":%s}`, names(group.MaxNames)))
	require.NoError(t, err)
	long := strings.Repeat("x", group.MaxName+1)
	for _, c := range []struct{ text, want string }{
		{`{"name":" ","metrics":["a"]}`, "the name is empty"},
		{`{"name":"a\nb","metrics":["a"]}`, "control character"},
		{`{"name":"` + long + `","metrics":["a"]}`, "the name has 1025 bytes"},
		{`{"name":"a"}`, "no metrics and no sources"},
		{`{"name":"a","metrics":[],"sources":[]}`, "no metrics and no sources"},
		{`{"name":"a","metrics":["b",""]}`, "number 2 of the metrics is empty"},
		{`{"name":"a","sources":["` + long + `"]}`, "number 1 of the sources has 1025 bytes"},
		{`{"name":"a","metrics":` + names(group.MaxNames+1) + `}`, "1001 metrics, at most 1000"},
		{`{"name":"a","metrics":["b"],"colour":"red"}`, "colour"},
		{`{"name":"a","metrics":"b"}`, "not valid JSON"},
		{`{"name":"a","metrics":["b"]} {}`, "more than one"},
		{`{"name":"a","metrics":["b"]`, "not valid JSON"},
		{"{\"name\":\"\xff\",\"metrics\":[\"b\"]}", "not valid UTF-8"},
		{strings.Repeat(" ", group.MaxBytes+1), "at most 262144 are allowed"},
	} {
		_, _, err := group.Decode([]byte(c.text))
		var invalid *shelf.InvalidError
		require.ErrorAs(t, err, &invalid, c.text[:min(len(c.text), 60)])
		require.Contains(t, err.Error(), c.want)
	}
}

// FuzzDecode: whatever is decoded is decoded again as the same.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"name":"Web","metrics":["b"],"sources":["a"]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		_, body, err := group.Decode(text)
		if err != nil || len(body) > group.MaxBytes {
			return
		}
		_, again, err := group.Decode(body)
		require.NoError(t, err)
		require.Equal(t, string(body), string(again))
	})
}
