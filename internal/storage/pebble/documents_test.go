package pebble

import (
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// putDocuments puts two documents, one of which is deleted, and three items, one of which expires.
func putDocuments(t *testing.T, st *Store, nowMs int64) {
	t.Helper()
	for _, d := range []storage.Document{keptDocument(1, 1), keptDocument(1, 2), keptDocument(2, 1), keptDocument(2, 2)} {
		d.Author, d.Title, d.UpdatedMs, d.Body = "ann", fmt.Sprint("Hosts ", d.Version), nowMs+d.Version, []byte(`{"rows":1}`)
		if d.Deleted = d.ID == "2" && d.Version == 2; d.Deleted {
			d.Body = nil
		}
		require.NoError(t, st.PutDocument(t.Context(), d))
	}
	require.NoError(t, st.PutItems(t.Context(), []storage.Item{
		keptItem("cpu", `{"type":"gauge"}`, 0), keptItem("empty", "", 0), keptItem("expires", "soon", 100*365*24*time.Hour),
	}))
}

func keptDocument(n int, version int64) storage.Document {
	rng := rand.New(rand.NewPCG(uint64(n), uint64(version)))
	d := storage.Document{DocumentHead: storage.DocumentHead{
		DocumentKey: storage.DocumentKey{Kind: "kind", ID: fmt.Sprint(n)}, Version: version, Title: fmt.Sprint(version),
	}}
	for range rng.IntN(3000) {
		d.Body = append(d.Body, byte(rng.Uint32()))
	}
	d.Bytes = len(d.Body)
	return d
}

func keptItem(id, value string, ttl time.Duration) storage.Item {
	return storage.Item{ItemKey: storage.ItemKey{Kind: "kind", ID: id}, Value: []byte(value), TTL: ttl}
}

// itemIDs returns the ids of the items of keptItem that can be read, and the error of the read.
func itemIDs(t *testing.T, st *Store) (ids []string, err error) {
	for e, err := range st.Items(t.Context(), "kind", "", "") {
		if err != nil {
			return ids, err
		}
		ids = append(ids, e.ID)
	}
	return ids, nil
}

// TestPowerLossOfDocuments: what was acknowledged of documents and items is there after a power loss.
func TestPowerLossOfDocuments(t *testing.T) {
	noLeaks(t)
	ctx, fs := t.Context(), vfs.NewCrashableMem()
	st := mustOpen(t, "/data", crashOptions(fs))
	deletion := storage.Document{DocumentHead: storage.DocumentHead{DocumentKey: keptDocument(0, 3).DocumentKey, Version: 3, Deleted: true}}
	before := ""
	for step, do := range slices.All([]func() error{
		func() error { return st.PutDocument(ctx, keptDocument(0, 1)) },
		func() error { return st.PutDocument(ctx, keptDocument(0, 2)) },
		func() error { return st.PutDocument(ctx, deletion) },
		func() error { return st.ForgetDocument(ctx, deletion.DocumentKey, 3) },
		func() error { return st.PutItems(ctx, []storage.Item{keptItem("a", "a", time.Hour)}) },
		func() error { return st.DeleteItems(ctx, []storage.ItemKey{keptItem("a", "", 0).ItemKey}) },
	}) {
		require.NoError(t, do())
		rows := everything(t, st)
		require.NotEqual(t, before, rows, "step %d", step)
		before = rows
		then := mustOpen(t, "/data", crashOptions(fs.CrashClone(vfs.CrashCloneCfg{})))
		require.Equal(t, rows, everything(t, then), "step %d", step)
		require.NoError(t, then.Close())
	}
	require.NoError(t, st.Close())
}

// A document or an item whose stored bytes are not what this program writes costs itself, and is named. An item can be
// replaced. Of a document nobody knows the version.
func TestForeignDocumentsAndItems(t *testing.T) {
	noLeaks(t)
	clk, lost := newClock(), &lostLog{}
	opts := Options{Settings: storagetest.TestSettings(), FS: vfs.NewMem(), Clock: clk, Logger: slog.New(lost)}
	st := mustOpen(t, "/data", opts)
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	ctx := t.Context()
	for n := range 3 {
		require.NoError(t, st.PutDocument(ctx, keptDocument(n, 1)))
		require.NoError(t, st.PutItems(ctx, []storage.Item{keptItem(fmt.Sprint(n), "x", time.Hour)}))
	}
	set := func(k, v []byte) { require.NoError(t, st.db.Set(k, v, nil)) }
	good := appendDocument(nil, &storage.Document{DocumentHead: storage.DocumentHead{Version: 1, Title: "t"}})
	key := keptDocument(1, 1).DocumentKey
	for _, bad := range [][]byte{{}, {documentVersion}, append([]byte{77}, good[1:]...), append([]byte{1, 2}, good[2:]...), good[:len(good)-1]} {
		set(documentKey(key), bad)
		var heads []storage.DocumentHead
		for h, err := range st.Documents(ctx, "kind") {
			require.NoError(t, err)
			heads = append(heads, h)
		}
		require.Equal(t, []storage.DocumentHead{keptDocument(0, 1).DocumentHead, keptDocument(2, 1).DocumentHead}, heads)
		require.Contains(t, lost.what[len(lost.what)-1], `kind "1"`)
		clk.Jump(time.Minute) // the log says it again
		_, err := st.Document(ctx, key)
		for _, err := range []error{err, st.PutDocument(ctx, keptDocument(1, 2)), st.ForgetDocument(ctx, key, 1)} {
			require.ErrorIs(t, err, storage.ErrCorrupt)
			require.ErrorContains(t, err, `document kind "1"`)
		}
	}
	row := itemKey(keptItem("1", "", 0).ItemKey)
	for _, bad := range [][]byte{{}, {itemVersion, 0}, append([]byte{77}, make([]byte, 20)...)} {
		set(row, bad)
		ids, err := itemIDs(t, st)
		require.Equal(t, []string{"0"}, ids)
		require.ErrorIs(t, err, storage.ErrCorrupt)
		require.ErrorContains(t, err, `item "1" of the kind "kind"`)
		require.NoError(t, st.Expire(ctx))
	}
	require.NoError(t, st.PutItems(ctx, []storage.Item{keptItem("1", "x", 0)}))
	ids, err := itemIDs(t, st)
	require.NoError(t, err)
	require.Equal(t, []string{"0", "1", "2"}, ids)
}

// Damaged blocks of the two tables cost what lies in them, and the errors name it. Documents in them are not listed;
// items are not passed over.
func TestDamagedBlocksOfDocuments(t *testing.T) {
	const count = 100
	name := func(n int) string { return fmt.Sprintf("%04d", n) }
	doc := func(n int) storage.Document {
		rng := rand.New(rand.NewPCG(uint64(n), 3))
		d := keptDocument(n, 1)
		d.ID = name(n)
		for i := range 6000 { // data that does not compress
			d.Body = append(d.Body, byte(rng.Uint32()), byte(i))
		}
		d.Bytes = len(d.Body)
		return d
	}
	for table, key := range map[string][]byte{"documents": documentKey(doc(count / 2).DocumentKey), "items": itemKey(keptItem(name(count/2), "", 0).ItemKey)} {
		t.Run(table, func(t *testing.T) {
			noLeaks(t)
			fs := vfs.NewMem()
			st := mustOpen(t, "/data", damagedOptions(fs))
			for n := range count {
				require.NoError(t, st.PutDocument(t.Context(), doc(n)))
				require.NoError(t, st.PutItems(t.Context(), []storage.Item{keptItem(name(n), string(doc(n).Body), time.Minute)}))
				require.NoError(t, st.Write(t.Context(), crashBatch(n))) // raw chunks lie between the two tables
			}
			damageBlocks(t, st, fs, key)
			opts, lost := damagedOptions(fs), &lostLog{}
			opts.Logger = slog.New(lost)
			st = mustOpen(t, "/data", opts)
			listed := map[string]bool{}
			for h, err := range st.Documents(t.Context(), "kind") {
				require.NoError(t, err)
				listed[h.ID] = true
			}
			ids, err := itemIDs(t, st)
			if table == "items" {
				require.Len(t, listed, count)
				require.Less(t, len(ids), count)
				require.ErrorIs(t, err, storage.ErrCorrupt)
				require.ErrorContains(t, err, tableSuffix+" is damaged")
				require.NoError(t, st.Expire(t.Context()))
				require.NoError(t, st.PutItems(t.Context(), []storage.Item{keptItem(name(count/2), "x", 0)}))
			} else {
				require.NoError(t, err)
				require.Len(t, ids, count)
				require.Less(t, len(listed), count)
				require.Greater(t, len(listed), count-8)
				require.Equal(t, []string{"some documents of the kind kind"}, lost.what)
			}
			for n := range count {
				next := doc(n)
				next.Version = 2
				_, err := st.Document(t.Context(), next.DocumentKey)
				if listed[next.ID] {
					require.NoError(t, err)
					require.NoError(t, st.PutDocument(t.Context(), next))
					continue
				}
				for _, err := range []error{err, st.PutDocument(t.Context(), next)} {
					require.ErrorIs(t, err, storage.ErrCorrupt)
					require.ErrorContains(t, err, next.String())
				}
			}
			require.NoError(t, st.Close())
		})
	}
}

// Items do not expire by a clock that is wrong: one that is put meanwhile is kept from the newest time that the store has seen.
func TestItemsOfAWrongClock(t *testing.T) {
	noLeaks(t)
	const day = 24 * time.Hour
	clk, fs := newClock(), vfs.NewMem()
	open := func() *Store {
		return mustOpen(t, "/data", Options{Settings: storagetest.TestSettings(), Clock: clk, FS: fs, Logger: quiet()})
	}
	st := open()
	check := func(want ...string) {
		t.Helper()
		for range 2 {
			ids, err := itemIDs(t, st)
			require.NoError(t, err)
			require.Equal(t, want, ids)
			require.NoError(t, st.Expire(t.Context()))
		}
	}
	require.NoError(t, st.PutItems(t.Context(), []storage.Item{keptItem("a", "", 2*day)}))
	require.NoError(t, st.ClockRefused())
	for _, restart := range []bool{false, true} {
		clk.Jump(9 * day)
		if restart {
			require.NoError(t, st.Close())
			st = open()
		}
		require.Error(t, st.ClockRefused())
		require.NoError(t, st.PutItems(t.Context(), []storage.Item{keptItem("b", "", 0), keptItem("c", "", day)}))
		check("a", "b", "c")
		require.NoError(t, st.DeleteItems(t.Context(), []storage.ItemKey{keptItem("b", "", 0).ItemKey}))
		clk.Jump(-9 * day)
		check("a", "c")
	}
	clk.Set(clk.Now().Add(day))
	check("a")
	clk.Set(clk.Now().Add(day - time.Second))
	check("a")
	clk.Set(clk.Now().Add(time.Second))
	check()
	require.NoError(t, st.Close())
}

// The heartbeats of an earlier process are gone, even those that cannot be read.
func TestHeartbeatsEndWithTheProcess(t *testing.T) {
	noLeaks(t)
	opts := Options{Settings: storagetest.TestSettings(), Clock: newClock(), FS: vfs.NewMem(), Logger: quiet()}
	st := mustOpen(t, "/data", opts)
	require.NoError(t, storage.Heartbeat(t.Context(), st, storage.Worker{ID: "a"}, time.Hour))
	require.NoError(t, storage.RecordRun(t.Context(), st, storage.Run{}))
	require.NoError(t, st.db.Set(itemKey(storage.ItemKey{Kind: storage.KindWorker, ID: "b"}), []byte{77}, nil))
	require.NoError(t, st.Close())
	st = mustOpen(t, "/data", opts)
	for left, err := range st.Items(t.Context(), storage.KindWorker, "", "") {
		require.Fail(t, "a heartbeat is left", "%v, %v", left, err)
	}
	runs, err := storage.RecentRuns(t.Context(), st, 9)
	require.NoError(t, err)
	require.Len(t, runs, 1)
	require.NoError(t, st.Expire(t.Context()))
	require.NoError(t, st.Close())
}

// Of an item that is put again, deleted or expired no row is left.
func TestItemsLeaveNothing(t *testing.T) {
	noLeaks(t)
	clk := newClock()
	st := mustOpen(t, "/data", Options{Settings: storagetest.TestSettings(), Clock: clk, FS: vfs.NewMem()})
	rows := func(table byte) int {
		p, err := st.readPage([]byte{table}, []byte{table + 1}, math.MaxInt, nil)
		require.NoError(t, err)
		return len(p.rows)
	}
	put := func(ttl time.Duration) {
		require.NoError(t, st.PutItems(t.Context(), []storage.Item{keptItem("a", "", ttl), keptItem("b", "", ttl)}))
	}
	for range 3 {
		put(time.Minute)
		clk.Set(clk.Now().Add(time.Second))
	}
	require.Equal(t, []int{2, 2}, []int{rows(tableItems), rows(tableExpiry)})
	require.NoError(t, st.DeleteItems(t.Context(), []storage.ItemKey{keptItem("b", "", 0).ItemKey}))
	require.Equal(t, []int{1, 1}, []int{rows(tableItems), rows(tableExpiry)})
	put(0)
	require.Equal(t, []int{2, 0}, []int{rows(tableItems), rows(tableExpiry)})
	put(time.Minute)
	// One that was put again since Expire has found it stays.
	require.NoError(t, st.db.Set(expiryKey(1, itemKey(keptItem("a", "", 0).ItemKey)), nil, nil))
	require.NoError(t, st.Expire(t.Context()))
	require.Equal(t, []int{2, 2}, []int{rows(tableItems), rows(tableExpiry)})
	clk.Set(clk.Now().Add(time.Minute))
	require.NoError(t, st.Expire(t.Context()))
	require.Equal(t, []int{0, 0}, []int{rows(tableItems), rows(tableExpiry)})
	require.NoError(t, st.Close())
}

// FuzzDocument decodes arbitrary bytes as a row of documents. The result is an error, or a document that survives another
// round.
func FuzzDocument(f *testing.F) {
	f.Add(appendDocument(nil, &storage.Document{DocumentHead: storage.DocumentHead{Version: 3, Author: "a", Title: "t", UpdatedMs: -1}, Body: []byte("body")}))
	f.Add(appendDocument(nil, &storage.Document{DocumentHead: storage.DocumentHead{Version: 1, Deleted: true}}))
	f.Add([]byte{documentVersion, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 9, 'x'})
	f.Fuzz(func(t *testing.T, b []byte) {
		key := documentKey(storage.DocumentKey{Kind: "kind", ID: "id"})
		d, err := parseDocument(key, b)
		if err != nil {
			require.ErrorIs(t, err, storage.ErrCorrupt)
			return
		}
		again, err := parseDocument(key, appendDocument(nil, &d))
		require.NoError(t, err)
		require.True(t, d.Same(&again) && d.Bytes == again.Bytes)
	})
}

// FuzzDocumentKey: a row under a key of any bytes is refused, or is what its parts make.
func FuzzDocumentKey(f *testing.F) {
	f.Add(documentKey(storage.DocumentKey{Kind: "kind", ID: "id"}))
	f.Add([]byte{tableDocuments})
	f.Fuzz(func(t *testing.T, k []byte) {
		if len(k) == 0 || k[0] != tableDocuments {
			return
		}
		d, err := parseDocument(k, appendDocument(nil, &storage.Document{DocumentHead: storage.DocumentHead{Version: 1}}))
		if err != nil {
			require.ErrorIs(t, err, storage.ErrCorrupt)
			return
		}
		require.Equal(t, k, documentKey(d.DocumentKey))
	})
}
