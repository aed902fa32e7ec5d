package commands

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/pebble"
	"github.com/quern/quern/internal/storage/storagetest"
)

// TestSalvageOfManySeries: a store with more series than most requests may match is saved as a whole.
func TestSalvageOfManySeries(t *testing.T) {
	ctx := t.Context()
	dir := filepath.Join(t.TempDir(), "data")
	st, err := pebble.Open(dir, pebble.Options{Settings: storagetest.TestSettings(), ReserveBytes: 1, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	const most = 300_000 // of requests that are no exports
	ids, err := st.LeaseIDs(ctx, most+1)
	require.NoError(t, err)
	var series []storage.Schedule
	for id := ids.Start; id <= ids.Start+most; id++ {
		labels, err := metric.NewLabels(metric.Label{Name: metric.NameLabel, Value: "m"},
			metric.Label{Name: metric.SourceLabel, Value: "a"}, metric.Label{Name: "i", Value: fmt.Sprint(id)})
		require.NoError(t, err)
		series = append(series, storage.Schedule{ID: id, Labels: labels})
	}
	_, err = st.ClaimSchedules(ctx, storagetest.ClaimsOf("a", series))
	require.NoError(t, err)
	slice := time.Now().Add(-48 * time.Hour).Truncate(24 * time.Hour).UnixMilli()
	require.NoError(t, st.Write(ctx, &storage.Batch{Raw: []storage.RawChunk{{
		Group: 0, SliceMs: slice,
		Chunk: storage.Chunk{ID: blocks.NewIDs(1).Next(slice), Data: blocks.AppendSamples(nil, []metric.Sample{{Schedule: ids.Start, TimeMs: slice, Value: 1}})},
	}}}))
	require.NoError(t, st.Close())

	var stderr bytes.Buffer
	require.NoError(t, Salvage(ctx, config.Salvage{Dir: dir, Output: filepath.Join(t.TempDir(), "all.ndjson")}, &stderr, &stderr))
	require.Contains(t, stderr.String(), fmt.Sprintf("1 sample of %d series", most+1))
}

// TestSalvage: of a whole store everything is saved. Of a store with a damaged block everything
// else is saved, and the lost part is named. The directory does not change.
func TestSalvage(t *testing.T) {
	ctx := t.Context()
	dir := filepath.Join(t.TempDir(), "data")
	opts := pebble.Options{
		Settings: storagetest.TestSettings(), ReserveBytes: 1, MemTableBytes: 256 << 10, Logger: slog.New(slog.DiscardHandler),
	}
	st, err := pebble.Open(dir, opts)
	require.NoError(t, err)
	ids, err := st.LeaseIDs(ctx, 64)
	require.NoError(t, err)
	var series []storage.Schedule
	for id := ids.Start; id < ids.End; id++ {
		labels, err := metric.NewLabels(metric.Label{Name: metric.NameLabel, Value: "cpu"},
			metric.Label{Name: metric.SourceLabel, Value: "web-1"}, metric.Label{Name: "core", Value: fmt.Sprint(id)})
		require.NoError(t, err)
		series = append(series, storage.Schedule{ID: id, Labels: labels})
	}
	_, err = st.ClaimSchedules(ctx, storagetest.ClaimsOf("web-1", series))
	require.NoError(t, err)
	start := time.Now().Add(-48 * time.Hour).Truncate(24 * time.Hour).UnixMilli()
	rng, chunkIDs := rand.New(rand.NewPCG(1, 2)), blocks.NewIDs(1)
	const hours, each = 30, 60
	for h := range int64(hours) {
		slice := start + h*3600_000
		var samples []metric.Sample
		for id := ids.Start; id < ids.End; id++ {
			for n := range int64(each) {
				samples = append(samples, metric.Sample{Schedule: id, TimeMs: slice + n*60_000, Value: rng.Float64()})
			}
		}
		require.NoError(t, st.Write(ctx, &storage.Batch{Raw: []storage.RawChunk{{
			Group: 0, SliceMs: slice, Chunk: storage.Chunk{ID: chunkIDs.Next(slice), Data: blocks.AppendSamples(nil, samples)},
		}}}))
	}
	require.NoError(t, st.Close())
	st, err = pebble.Open(dir, opts) // the log's contents are in tables now
	require.NoError(t, err)
	require.NoError(t, st.Close())

	whole := filepath.Join(t.TempDir(), "whole.ndjson")
	var stderr bytes.Buffer
	require.NoError(t, Salvage(ctx, config.Salvage{Dir: dir, Output: whole}, &stderr, &stderr), stderr.String())
	require.Contains(t, stderr.String(), fmt.Sprintf("%d samples of 64 series", hours*each*64))
	require.Contains(t, stderr.String(), "not in the file: documents and annotations")
	all, err := os.ReadFile(whole)
	require.NoError(t, err)

	tables, err := filepath.Glob(filepath.Join(dir, "*.sst"))
	require.NoError(t, err)
	largest := tables[0]
	for _, table := range tables {
		if len(read(t, table)) > len(read(t, largest)) {
			largest = table
		}
	}
	spoilt := read(t, largest)
	spoilt[len(spoilt)/2] ^= 0x40
	require.NoError(t, os.WriteFile(largest, spoilt, 0o600))
	before := readAll(t, dir)
	rest := filepath.Join(t.TempDir(), "rest.ndjson")
	stderr.Reset()
	err = Salvage(ctx, config.Salvage{Dir: dir, Output: rest}, &stderr, &stderr)
	require.ErrorContains(t, err, "some data could not be read; the rest is in "+rest+": a sample that was written again may be there with its earlier value")
	require.Contains(t, stderr.String(), "skipped: raw chunks of the schedules 0 to 255 in the slices from 20")
	require.NotContains(t, stderr.String(), "carrier")
	require.Equal(t, before, readAll(t, dir))
	saved := read(t, rest)
	require.Greater(t, len(saved), len(all)*3/4)
	require.Less(t, len(saved), len(all))
	for line := range bytes.Lines(saved) { // a series' samples may be split differently
		require.True(t, bytes.HasPrefix(line, []byte(`{"metric":{"__name__":"cpu"`)), "%.80s", line)
	}

	require.ErrorContains(t, Salvage(ctx, config.Salvage{Dir: t.TempDir(), Output: rest}, &stderr, &stderr), "there is no store in")
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}

func readAll(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	all := map[string]string{}
	for _, e := range entries {
		all[e.Name()] = string(read(t, filepath.Join(dir, e.Name())))
	}
	return all
}
