package backup

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/wire"
)

// fakeS3 serves a bucket within the process. instead may answer a request itself.
func fakeS3(t *testing.T, instead func(http.ResponseWriter, *http.Request) bool) (place string) {
	t.Helper()
	backend := s3mem.New()
	require.NoError(t, backend.CreateBucket("bucket"))
	handler := gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !instead(w, r) {
			handler.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	for name, value := range map[string]string{
		"AWS_ENDPOINT_URL": server.URL, "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
	} {
		t.Setenv(name, value)
	}
	retries := minio.MaxRetry
	minio.MaxRetry = 2 // it waits in between
	t.Cleanup(func() { minio.MaxRetry = retries })
	return "s3://bucket/some/prefix"
}

// TestS3: a bucket is as good as a directory.
func TestS3(t *testing.T) {
	place := fakeS3(t, func(http.ResponseWriter, *http.Request) bool { return false })
	testLife(t, filled(t, 300), place)
}

// TestS3Fails: what the server says is in the error, at whatever request it says so, and earlier backups stay whole.
func TestS3Fails(t *testing.T) {
	var left atomic.Int64 // requests that the server answers
	left.Store(1 << 40)
	var code atomic.Int64
	place := fakeS3(t, func(w http.ResponseWriter, _ *http.Request) bool {
		if left.Add(-1) >= 0 {
			return false
		}
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(int(code.Load()))
		_, _ = w.Write([]byte(`<?xml version="1.0"?><Error><Code>InternalError</Code><Message>not today</Message></Error>`))
		return true
	})
	st := filled(t, 50)
	m := maker(st, place)
	earlier := create(t, m)
	for at, ended := int64(0), false; !ended; at += 2 {
		if code.Store(http.StatusForbidden); at%4 == 2 {
			code.Store(http.StatusInternalServerError)
		}
		left.Store(at)
		_, err := m.Create(t.Context(), 0, silent)
		left.Store(1 << 40)
		if ended = err == nil; !ended {
			require.ErrorContains(t, err, "not today")
			require.ErrorContains(t, err, "s3://bucket/some/prefix/")
			require.NotContains(t, err.Error(), "\n")
		}
	}
	requireChunks(t, restore(t, place, earlier.Name), 50)
}

// TestS3Hangs: a server that does not answer ends with the request.
func TestS3Hangs(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	place := fakeS3(t, func(_ http.ResponseWriter, r *http.Request) bool {
		_, _ = io.Copy(io.Discard, r.Body) // only then it notices that the client has gone
		cancel()
		<-r.Context().Done()
		return true
	})
	_, err := maker(filled(t, 1), place).Create(ctx, 0, func(wire.Backup) error { return nil })
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "s3://bucket/some/prefix/")
}
