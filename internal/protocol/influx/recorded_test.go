package influx

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/ingest"
)

// TestRecorded decodes requests of real clients, recorded by `go test ./integration/programs
// -record DIR`.
func TestRecorded(t *testing.T) {
	files, err := filepath.Glob("testdata/recorded/*")
	require.NoError(t, err)
	require.Len(t, files, 2)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			body, err := os.ReadFile(file)
			require.NoError(t, err)
			if filepath.Ext(file) == ".gz" {
				z, err := gzip.NewReader(bytes.NewReader(body))
				require.NoError(t, err)
				body, err = io.ReadAll(z)
				require.NoError(t, err)
			}
			want, _, ok := reference(body)
			require.True(t, ok)
			require.NotEmpty(t, want)

			var d decoder
			var b ingest.Batch
			d.decode(body, settings{}, &b)
			require.Zero(t, b.Rejected())
			require.Equal(t, want, measurements(&b))
		})
	}
}
