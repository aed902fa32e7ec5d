package apitest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// Now is the time of the tests of what is read: 12:00 UTC.
var Now = time.Date(2025, 11, 21, 12, 0, 0, 0, time.UTC)

// Store returns an empty store with one shard.
func Store(clk clock.Clock) *storagetest.Model {
	return storagetest.NewModel(storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: 8, IndexPartitions: 1, Epochs: blocks.Epochs{{BlockSize: 8}},
	}, nil, clk)
}

// Listen serves over HTTP until the test ends, and returns the URL.
func Listen(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// Do sends a request and returns the complete reply.
func Do(t *testing.T, r *http.Request) (code int, body string, header http.Header) {
	t.Helper()
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	http.DefaultClient.CloseIdleConnections()
	return resp.StatusCode, string(all), resp.Header
}
