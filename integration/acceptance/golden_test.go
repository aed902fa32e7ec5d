package acceptance

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"flag"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// golden is the store of the newest format. -rewrite makes it if it is not there. Those of released formats are never made
// anew: a format that changes gets a file of its own, named after the first version that has it.
const golden = "golden/store-v0.1.0.tar.gz"

// goldenDocument is in each golden store.
var goldenDocument = storage.Document{
	DocumentHead: storage.DocumentHead{DocumentKey: storage.DocumentKey{Kind: "dashboard", ID: "shop"}, Version: 1, UpdatedMs: 1, Author: "ann", Title: "Shop", Bytes: 2},
	Body:         []byte("{}"),
}

// goldenItem is in each golden store.
var goldenItem = storage.Item{ItemKey: storage.ItemKey{Kind: "metadata", ID: "A"}, Value: []byte(`{"unit":"s"}`)}

// goldenEnd is when a golden store was closed.
var goldenEnd = defaultStart.Truncate(24 * time.Hour).Add(26*time.Hour + 31*time.Minute)

// live has a system take 26 hours of samples, grind and pack them, and leaves the hour after them open. told is called with
// each sample.
func (s *System) live(told func(Point)) {
	report := func(points ...Point) {
		s.MustReport(points...)
		for _, p := range points {
			told(p)
		}
	}
	for hour := range 27 {
		for minute := 5; minute < 60 && (hour < 26 || minute < 30); minute += 25 {
			s.setClock(hour, minute)
			report(s.point("A", hour, minute, float64(hour)), s.point("B", hour, minute, -1/float64(minute)), s.point("C", hour/2, minute, 3))
		}
		if hour < 26 {
			s.setClock(hour+1, 3)
			s.MustRun()
			require.NoError(s.t, s.pack())
		}
	}
	report(s.point("A", 20, 1, 7)) // its row waits for the next run
}

// TestGoldenStores: of a store of each format that was released all is read, and the store goes on.
func TestGoldenStores(t *testing.T) {
	if _, err := os.Stat(golden); flag.Lookup("rewrite").Value.String() == "true" && errors.Is(err, fs.ErrNotExist) {
		makeGolden(t)
	}
	archives, err := filepath.Glob("golden/*.tar.gz")
	require.NoError(t, err)
	require.Contains(t, archives, golden)
	for _, archive := range archives {
		t.Run(filepath.Base(archive), func(t *testing.T) {
			dir := t.TempDir()
			unpackGolden(t, archive, dir)
			s := Start(t, Backend{Open: openGolden(dir)}, Config{Start: goldenEnd})
			s.Restart() // as another writer

			sent := Start(t, Backend{Open: openPebble}, Config{Start: goldenEnd.Truncate(24*time.Hour).AddDate(0, 0, -1)})
			sent.live(s.Oracle.Acknowledged)
			require.Equal(t, sent.IDs(), s.IDs())
			require.Len(t, s.IDs(), 3)
			require.Equal(t, sent.schedules(), s.schedules())
			for level := metric.Raw + 1; level <= s.cfg.Ladder.Top(); level++ {
				require.NotEmpty(t, s.Rows(level))
				require.Equal(t, sent.Rows(level), s.Rows(level))
				require.NotEmpty(t, s.slices(level-1))
				require.Equal(t, sent.slices(level-1), s.slices(level-1))
			}
			require.Equal(t, sent.chunks(), s.chunks())
			require.NotZero(t, s.chunks()[true], "packed")
			require.NotZero(t, s.chunks()[false], "as they were written")
			d, err := s.inspect().Document(t.Context(), goldenDocument.DocumentKey)
			require.NoError(t, err)
			require.Equal(t, goldenDocument, d)
			var items []storage.Item
			for item, err := range s.inspect().Items(t.Context(), goldenItem.Kind, "", "") {
				require.NoError(t, err)
				items = append(items, item)
			}
			require.Equal(t, []storage.Item{goldenItem}, items)

			s.MustReport(s.point("A", 2, 40, 1), s.point("D", 2, 40, 1))
			s.DrainAndCheck()
			require.Len(t, s.IDs(), 4)
		})
	}
}

func (s *System) schedules() (all []storage.Schedule) {
	for schedule, err := range s.inspect().Schedules(s.t.Context(), s.allIDs()) {
		require.NoError(s.t, err)
		all = append(all, schedule)
	}
	return all
}

func (s *System) slices(b metric.Bucket) []storage.SliceState {
	from, to := s.timesMs()
	states, err := s.inspect().Slices(s.t.Context(), b, from, to)
	require.NoError(s.t, err)
	return states
}

// chunks counts the raw chunks that are packed (true) and that are as they were written.
func (s *System) chunks() map[bool]int {
	from, to := s.timesMs()
	n := map[bool]int{}
	for c, err := range s.inspect().RawChunks(s.t.Context(), s.allIDs(), from, to) {
		require.NoError(s.t, err)
		n[c.ID.Packed()]++
	}
	return n
}

func openGolden(dir string) OpenFunc {
	return func(t testing.TB, s storage.Settings, r storage.Retention, clk clock.Clock) func() storage.Store {
		return openPebbleAt(t, vfs.Default, dir, s, r, clk)
	}
}

func makeGolden(t *testing.T) {
	dir := t.TempDir()
	s := Start(t, Backend{Open: openGolden(dir)}, Config{Start: goldenEnd.Truncate(24*time.Hour).AddDate(0, 0, -1)})
	s.live(func(Point) {})
	require.NoError(t, s.inspect().PutDocument(t.Context(), goldenDocument))
	require.NoError(t, s.inspect().PutItems(t.Context(), []storage.Item{goldenItem}))
	s.Stop()
	require.NoError(t, os.MkdirAll(filepath.Dir(golden), 0o755))
	f, err := os.Create(golden)
	require.NoError(t, err)
	zw, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	require.NoError(t, err)
	tw := tar.NewWriter(zw)
	require.NoError(t, tw.AddFS(os.DirFS(dir)))
	for _, c := range []io.Closer{tw, zw, f} {
		require.NoError(t, c.Close())
	}
}

func unpackGolden(t *testing.T, archive, dir string) {
	f, err := os.Open(archive)
	require.NoError(t, err)
	defer f.Close()
	zr, err := gzip.NewReader(f)
	require.NoError(t, err)
	for tr := tar.NewReader(zr); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		if h.Typeflag != tar.TypeReg {
			continue
		}
		text, err := io.ReadAll(tr)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(h.Name)), text, 0o600))
	}
}
