package adaptor

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/stretchr/testify/require"
)

// TestUnzipped: any place can be read, in any order.
func TestUnzipped(t *testing.T) {
	const size = 3000
	want := make([]byte, size)
	for i := range want {
		want[i] = byte(rand.Uint32())
	}
	var file bytes.Buffer
	z := gzip.NewWriter(&file)
	_, err := z.Write(want)
	require.NoError(t, errors.Join(err, z.Close()))
	path := filepath.Join(t.TempDir(), "a.gz")
	require.NoError(t, os.WriteFile(path, file.Bytes(), 0o600))
	info, err := os.Stat(path)
	require.NoError(t, err)
	u, err := open(path, identity(info))
	require.NoError(t, err)
	for range 1000 {
		at, n := rand.IntN(size+10), rand.IntN(500)
		got := make([]byte, n)
		m, err := u.ReadAt(got, int64(at))
		if at+n > size || err != nil {
			require.GreaterOrEqual(t, at+n, size)
			require.ErrorIs(t, err, io.EOF)
		}
		require.Equal(t, want[min(at, size):min(at+n, size)], got[:m], "%d bytes at %d", n, at)
	}
	require.NoError(t, u.Close())
}
