package remotewrite

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

// TestRecorded decodes requests of real senders, recorded by `go test ./integration/programs
// -record DIR`.
func TestRecorded(t *testing.T) {
	files, err := filepath.Glob("testdata/*.snappy")
	require.NoError(t, err)
	require.Len(t, files, 3)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			body, err := os.ReadFile(file)
			require.NoError(t, err)
			body, err = snappy.Decode(nil, body)
			require.NoError(t, err)
			var r prompb.WriteRequest
			require.NoError(t, r.Unmarshal(body))
			want, _, wantNotes := expected1(&r)
			require.NotZero(t, len(want)+len(wantNotes))

			var b ingest.Batch
			var notes []metric.Metadata
			d := decoder{Note: func(m metric.Metadata) { notes = append(notes, m) }}
			require.NoError(t, d.v1(body, &b))
			require.Zero(t, b.Rejected())
			require.Equal(t, want, referencesOf(&b))
			require.Equal(t, wantNotes, notes)
		})
	}
}
