package commands

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/client"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/operate/verify"
	"github.com/quern/quern/internal/wire"
)

const statusBody = `{"levels":[{"level":"raw","width_seconds":0,"retention_seconds":604800,"whole_from":1763121600000},{"level":"1h","width_seconds":3600,"retention_seconds":0}],"buckets":[{"bucket":"raw","outstanding":[{"slice":1763719200000,"marks":1},{"slice":1763722800000,"marks":20}],"lag_seconds":3725.4},
{"bucket":"1h","outstanding":[],"lag_seconds":0}],
"runs":[{"bucket":"raw","slice":1763715600000,"worker":"a","started":1763719320000,"seconds":0.25,"blocks":3,"schedules":300,"block_queries":3,"index_queries":16,"late":2,"rescheduled":1,"dropped":0,"error":"gone"}],
"packing":{"slices":168,"left":40},
"workers":[{"id":"a","host":"h1","started":1763700000000,"seen":1763726397000,"aggregates":true},{"id":"i","host":"h2","started":1763700000000,"seen":1763726400000,"aggregates":false}],
"shards":[{"shard":0,"worker":"a"},{"shard":1,"worker":"a"},{"shard":2,"worker":"b"},{"shard":3,"worker":"a"}],
"errors":[{"component":"aggregator","worker":"a","time":1763719320000,"bucket":"raw","slice":1763715600000,"start":128,"message":"oh"},
{"component":"worker","worker":"b","time":1763719320000,"bucket":"raw","slice":0,"message":"two of a name"}]}`

func TestStatusSays(t *testing.T) {
	var st wire.Status
	require.NoError(t, json.Unmarshal([]byte(statusBody), &st))
	var out bytes.Buffer
	require.NoError(t, writeStatus(&out, &st, time.UnixMilli(1763726400000)))
	assert.Equal(t, `BUCKET  BEHIND     OUTSTANDING
raw     1 h 2 min  2025-11-21T10:00:00Z (1 mark), 2025-11-21T11:00:00Z (20 marks)
1h      0 s        -

LEVEL  KEPT      WHOLE FROM
raw    7d        2025-11-14T12:00:00Z
1h     for ever  -

RAW PACKED IN  128 of 168 slices

WORKER  HOST  SINCE                 LAST SEEN  SHARDS
a       h1    2025-11-21T04:40:00Z  3 s ago    0-1, 3
i       h2    2025-11-21T04:40:00Z  0 s ago    -

RUN OF                    BY  AT                    TOOK     BLOCKS  ROWS  QUERIES  LATE  PUT OFF  DROPPED  ABORTED
raw 2025-11-21T09:00:00Z  a   2025-11-21T10:02:00Z  0.250 s  3       300   3 + 16   2     1        0        gone

ERROR AT              OF          BY  IN THE RUN OF             BLOCK  WHAT
2025-11-21T10:02:00Z  aggregator  a   raw 2025-11-21T09:00:00Z  128    oh
2025-11-21T10:02:00Z  worker      b   -                         -      two of a name
`, out.String())

	out.Reset()
	require.NoError(t, Status(t.Context(), config.Status{Connection: config.Connection{URL: answering(t, 200, statusBody)}, JSON: true}, &out, nil))
	assert.JSONEq(t, statusBody, out.String())
	require.ErrorContains(t, Status(t.Context(), config.Status{Connection: config.Connection{URL: answering(t, 200, `{}`)}}, &out, nil), "is not a Quern status")
}

// TestHostileServers: what a server sends is bounded, and no terminal obeys it.
func TestHostileServers(t *testing.T) {
	endless := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"buckets":[`)
		spaces := bytes.Repeat([]byte(" "), 1<<20)
		for range 64 { // a client that reads more finds that the answer ended early
			if _, err := w.Write(spaces); err != nil {
				return
			}
		}
	}))
	defer endless.Close()
	var out bytes.Buffer
	require.ErrorContains(t, Status(t.Context(), config.Status{Connection: config.Connection{URL: endless.URL}}, &out, nil), "the answer is longer than 32 MiB")
	require.ErrorContains(t, Explain(t.Context(), config.Explain{Connection: config.Connection{URL: endless.URL}}, &out, nil), "the answer is longer than 32 MiB")
	_, err := (&verify.Client{Client: client.Client{URL: endless.URL}}).Status(t.Context())
	require.ErrorContains(t, err, "the answer is longer than 32 MiB")
	require.Empty(t, out.String())

	stranger := strings.Replace(statusBody, `"runs":`, `"unkept":[{"count":1,"reason":"r","path":"/p","sender":"a`+"\u009b31m\x7f"+`b","last":0,"message":"m"}],"runs":`, 1)
	require.NoError(t, Status(t.Context(), config.Status{Connection: config.Connection{URL: answering(t, 200, stranger)}}, &out, nil))
	require.Contains(t, out.String(), `a\u009b31m\u007fb`)
	require.NotContains(t, out.String(), "\u009b")
}

func TestHealthy(t *testing.T) {
	for _, c := range []struct {
		code       int
		body, want string
	}{
		{200, "Quern is ready.\n", ""},
		{503, "Quern is not ready: nobody at home:\nthe store is unavailable.\n", "Quern is not ready: nobody at home: the store is unavailable"},
		{200, "<html>", "answered 200 OK, which is not a Quern response: check the URL"},
		{404, "Not found.", "answered 404 Not Found, which is not a Quern response: check the URL"},
	} {
		err := Healthy(t.Context(), config.Connection{URL: answering(t, c.code, c.body)}, nil, io.Discard)
		if c.want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, c.want)
	}
	require.ErrorContains(t, Healthy(t.Context(), config.Connection{URL: "http://127.0.0.1:1"}, nil, io.Discard), "the server is unavailable: ")
}
