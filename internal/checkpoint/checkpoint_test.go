package checkpoint

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/wholefile"
)

var rewriteGolden = flag.Bool("rewrite", false, "rewrite the golden files")

func options(fs vfs.FS) Options {
	return Options{FS: fs, Clock: clock.NewSimulated(time.UnixMilli(0))}
}

func open(t *testing.T, dir string, opts Options) *File {
	t.Helper()
	f, warning, err := Open(dir, opts)
	require.NoError(t, err)
	require.NoError(t, warning)
	return f
}

func entry(stream string, offset uint64) Entry {
	return Entry{Stream: stream, Adaptor: "file", Datatype: "lines", Params: json.RawMessage(`{"path":"/var/log/x"}`), Offset: offset}
}

func TestEntriesComeBack(t *testing.T) {
	opts := options(vfs.NewCrashableMem())
	f := open(t, "/agent", opts)
	require.Empty(t, f.Entries())
	require.NoError(t, f.Put(entry("b", 100)))
	require.NoError(t, f.Put(Entry{Stream: "a", Adaptor: "udp", Datatype: "graphite"}))
	require.NoError(t, f.Put(entry("gone", 1)))
	f.Remove("gone")
	require.True(t, f.Advance("b", 300))
	require.True(t, f.Advance("b", 200), "acknowledgements come in any order")
	require.False(t, f.Advance("nobody", 1))
	require.Error(t, f.Put(Entry{Stream: "x", Params: json.RawMessage("{")}))
	require.Error(t, f.Put(Entry{}))
	require.NoError(t, f.Save())

	f = open(t, "/agent", opts)
	got := f.Entries()
	require.Len(t, got, 2)
	require.Equal(t, Entry{Stream: "a", Adaptor: "udp", Datatype: "graphite"}, got[0])
	require.JSONEq(t, `{"path":"/var/log/x"}`, string(got[1].Params))
	e, ok := f.Get("b")
	require.True(t, ok)
	require.Equal(t, uint64(300), e.Offset)
}

// TestGolden fixes the bytes of the file.
func TestGolden(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir, options(vfs.Default))
	require.NoError(t, f.Put(entry("file /var/log/x", 300)))
	require.NoError(t, f.Put(Entry{Stream: "udp", Adaptor: "udp", Datatype: "graphite"}))
	require.NoError(t, f.Save())
	got, err := os.ReadFile(filepath.Join(dir, name))
	require.NoError(t, err)
	const path = "testdata/checkpoints.golden"
	if *rewriteGolden {
		require.NoError(t, os.WriteFile(path, got, 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "a change of a stored format needs a new version")
}

// TestTheLowerOfTwo decodes a file with several entries for a stream.
func TestTheLowerOfTwo(t *testing.T) {
	for _, offsets := range [][]uint64{{5, 9, 7}, {9, 5, 7}, {7, 9, 5}} {
		entries := []Entry{}
		for _, o := range offsets {
			entries = append(entries, entry("a", o))
		}
		data, err := encode(entries)
		require.NoError(t, err)
		got, err := decode(data)
		require.NoError(t, err)
		require.Len(t, got, 1)
		require.Equal(t, uint64(5), got["a"].Offset)
	}
}

// saved writes two generations, with the offsets 1 and 2.
func saved(t *testing.T) (dir, path string) {
	t.Helper()
	dir = t.TempDir()
	f := open(t, dir, options(vfs.Default))
	for offset := range uint64(2) {
		require.NoError(t, f.Put(entry("a", offset+1)))
		require.NoError(t, f.Save())
	}
	return dir, filepath.Join(dir, name)
}

// TestDamage damages each byte of the file.
func TestDamage(t *testing.T) {
	dir, path := saved(t)
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	for at := range whole {
		damaged := append([]byte(nil), whole...)
		damaged[at] ^= 0x15
		require.NoError(t, os.WriteFile(path, damaged, 0o600))
		f, warning, err := Open(dir, options(vfs.Default))
		if at == len(kind)+2 { // behind the version: now it has two digits
			require.ErrorIs(t, err, wholefile.ErrVersion)
			continue
		}
		require.NoError(t, err, "byte %d", at)
		require.ErrorContains(t, warning, path)
		require.ErrorContains(t, warning, path+".old")
		e, _ := f.Get("a")
		require.Equal(t, uint64(1), e.Offset)
	}
	// Half of a file, none, and both generations damaged.
	require.NoError(t, os.WriteFile(path, whole[:len(whole)/2], 0o600))
	_, warning, err := Open(dir, options(vfs.Default))
	require.NoError(t, err)
	require.ErrorIs(t, warning, wholefile.ErrDamaged)
	require.NoError(t, os.WriteFile(path+".old", nil, 0o600))
	_, _, err = Open(dir, options(vfs.Default))
	require.ErrorIs(t, err, wholefile.ErrDamaged)
	require.ErrorContains(t, err, path)
	require.ErrorContains(t, err, "move it and its .old away")
	require.NoError(t, os.Remove(path+".old"))
	_, _, err = Open(dir, options(vfs.Default))
	require.ErrorIs(t, err, wholefile.ErrDamaged)
}

// TestTheWholeGenerationStays damages the file, saves, and stops in the middle of it.
func TestTheWholeGenerationStays(t *testing.T) {
	dir, path := saved(t)
	require.NoError(t, os.WriteFile(path, []byte("?"), 0o600))
	failing := errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpRename && op.Path == path+".new" {
			return errorfs.ErrInjected
		}
		return nil
	}))
	f, warning, err := Open(dir, options(failing))
	require.NoError(t, err)
	require.Error(t, warning)
	require.NoError(t, f.Put(entry("a", 3)))
	require.ErrorIs(t, f.Save(), errorfs.ErrInjected)
	f, warning, err = Open(dir, options(vfs.Default))
	require.NoError(t, err)
	require.Error(t, warning)
	e, _ := f.Get("a")
	require.Equal(t, uint64(1), e.Offset)
	require.NoError(t, f.Put(entry("a", 4)))
	require.NoError(t, f.Save())
	f = open(t, dir, options(vfs.Default))
	e, _ = f.Get("a")
	require.Equal(t, uint64(4), e.Offset)
}

func TestAnotherVersion(t *testing.T) {
	dir, path := saved(t)
	require.NoError(t, os.WriteFile(path, []byte(kind+" 2 of the future\n"), 0o600))
	_, _, err := Open(dir, options(vfs.Default))
	require.ErrorIs(t, err, wholefile.ErrVersion)
	require.ErrorContains(t, err, path)
	require.ErrorContains(t, err, "use the program that wrote it")
}

func TestWritesAreCoalesced(t *testing.T) {
	var mu sync.Mutex
	writes := 0
	fail := false
	fs := errorfs.Wrap(vfs.NewCrashableMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		if op.Kind == errorfs.OpCreate {
			writes++
			if fail {
				return errorfs.ErrInjected
			}
		}
		return nil
	}))
	clk := clock.NewSimulated(time.UnixMilli(0))
	f := open(t, "/agent", Options{FS: fs, Clock: clk, Interval: time.Second})
	require.NoError(t, f.SaveIfDue())
	require.Zero(t, writes, "there are no changes")
	require.NoError(t, f.Put(entry("a", 1)))
	for n := range uint64(10) {
		f.Advance("a", n+2)
		require.NoError(t, f.SaveIfDue())
	}
	require.Equal(t, 1, writes)
	clk.Set(clk.Now().Add(time.Second))
	fail = true
	require.ErrorIs(t, f.SaveIfDue(), errorfs.ErrInjected)
	require.NoError(t, f.SaveIfDue(), "not due")
	require.Equal(t, 2, writes)
	fail = false
	clk.Set(clk.Now().Add(time.Second))
	require.NoError(t, f.SaveIfDue())
	clk.Set(clk.Now().Add(time.Second))
	require.NoError(t, f.SaveIfDue(), "there are no changes")
	require.Equal(t, 3, writes)
	e, _ := open(t, "/agent", Options{FS: fs, Clock: clk}).Get("a")
	require.Equal(t, uint64(11), e.Offset)
}

// TestCrashAfterEachOperation saves some generations and copies the file system, as after a power loss, before each
// operation that changes it. The offset on a copy is at least the one that was saved, and at most the one that
// was being saved.
func TestCrashAfterEachOperation(t *testing.T) {
	mem := vfs.NewCrashableMem()
	type moment struct {
		name         string
		fs           *vfs.MemFS
		saved, tried uint64
	}
	var (
		moments      []moment
		saved, tried uint64
		rng          = rand.New(rand.NewPCG(1, 2))
	)
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			for i := range 20 {
				moments = append(moments, moment{
					fmt.Sprintf("%v %s", op.Kind, op.Path),
					mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: i * 5, RNG: rng}), saved, tried,
				})
			}
		}
		return nil
	}))
	f := open(t, "/agent", options(fs))
	for n := uint64(1); n < 5; n++ {
		tried = n
		require.NoError(t, f.Put(entry("a", n)))
		require.NoError(t, f.Save())
		saved = n
	}
	require.Greater(t, len(moments), 400)
	for _, m := range moments {
		f, _, err := Open("/agent", options(m.fs))
		require.NoError(t, err, m.name)
		e, _ := f.Get("a")
		require.LessOrEqual(t, m.saved, e.Offset, m.name)
		require.GreaterOrEqual(t, m.tried, e.Offset, m.name)
		require.NoError(t, f.Put(entry("a", 10)))
		require.NoError(t, f.Save())
		e, _ = open(t, "/agent", options(m.fs)).Get("a")
		require.Equal(t, uint64(10), e.Offset)
	}
}
