package pebble

import (
	"fmt"
	"iter"
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

// putDocuments puts two documents: one with a history, of which the first version is gone, and a deleted one.
func putDocuments(t *testing.T, st *Store, nowMs int64) {
	t.Helper()
	put := func(kind, id string, version int64, deleted bool, body string) {
		t.Helper()
		require.NoError(t, st.PutDocument(t.Context(), storage.Document{DocumentHead: storage.DocumentHead{
			DocumentKey: storage.DocumentKey{Kind: kind, ID: id}, Version: version, Deleted: deleted,
			UpdatedMs: nowMs + version, Author: "ann", Title: fmt.Sprint("Hosts ", version),
		}, Body: []byte(body)}, 2))
	}
	put("dashboard", "hosts", 1, false, "{}")
	put("dashboard", "hosts", 2, false, `{"rows":1}`)
	put("dashboard", "hosts", 3, false, `{"rows":2}`)
	put("token", "t-1", 1, false, "secret")
	put("token", "t-1", 2, true, "")
}

// putAnnotations puts one annotation of each span. The first one expires.
func putAnnotations(t *testing.T, st *Store, nowMs int64) {
	t.Helper()
	for span, length := range []int64{0, 2 * dayMs, 31 * dayMs, 366 * dayMs} {
		a := storage.Annotation{
			ID: fmt.Sprint("span ", span), StartMs: nowMs, EndMs: nowMs + length, Text: "deployed", Tags: []string{"release", "team=web"}[:span%3],
			Selector: `up{job="x"}`, Author: "ann", UpdatedMs: nowMs - 1,
		}
		ttl := time.Duration(0)
		if span == 0 {
			ttl = 100 * 365 * 24 * time.Hour
		}
		require.NoError(t, st.PutAnnotations(t.Context(), []storage.Annotation{a}, ttl))
	}
}

func keptDocument(n int, version int64) storage.Document {
	rng := rand.New(rand.NewPCG(uint64(n), uint64(version)))
	d := storage.Document{DocumentHead: storage.DocumentHead{
		DocumentKey: storage.DocumentKey{Kind: "kind", ID: fmt.Sprint(n)}, Version: version, Deleted: version%5 == 0, Title: fmt.Sprint(version),
	}}
	if !d.Deleted {
		for range rng.IntN(3000) {
			d.Body = append(d.Body, byte(rng.Uint32()))
		}
	}
	d.Bytes = len(d.Body)
	return d
}

// TestPowerLossOfDocuments: what was acknowledged of documents and annotations is there after a power loss.
func TestPowerLossOfDocuments(t *testing.T) {
	noLeaks(t)
	ctx, fs := t.Context(), vfs.NewCrashableMem()
	st := mustOpen(t, "/data", crashOptions(fs))
	long := storage.Annotation{ID: "a", StartMs: crashStart, EndMs: crashStart + 40*dayMs}
	deletion := storage.Document{DocumentHead: storage.DocumentHead{DocumentKey: keptDocument(0, 3).DocumentKey, Version: 3, Deleted: true}}
	before := ""
	for step, do := range slices.All([]func() error{
		func() error { return st.PutDocument(ctx, keptDocument(0, 1), 1) },
		func() error { return st.PutDocument(ctx, keptDocument(0, 2), 1) },
		func() error { return st.PutDocument(ctx, deletion, 1) },
		func() error { return st.ForgetDocument(ctx, deletion.DocumentKey, 3) },
		func() error { return st.PutAnnotations(ctx, []storage.Annotation{long}, 0) },
		func() error { return st.DeleteAnnotations(ctx, []storage.AnnotationKey{long.Key()}) },
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

// A document or annotation whose stored bytes are not what this program writes costs itself, and is named.
func TestForeignDocumentsAndAnnotations(t *testing.T) {
	noLeaks(t)
	var said []string
	opts := Options{Settings: storagetest.TestSettings(), FS: vfs.NewMem(), Clock: newClock(), Logger: quiet(), OnLost: func(what string) { said = append(said, what) }}
	st := mustOpen(t, "/data", opts)
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	ctx := t.Context()
	doc := func(n int) storage.Document { return keptDocument(n, 1) }
	var notes []storage.Annotation
	for n := range 3 {
		require.NoError(t, st.PutDocument(ctx, doc(n), 5))
		notes = append(notes, storage.Annotation{ID: fmt.Sprint(n), StartMs: crashStart, EndMs: crashStart + 40*dayMs})
	}
	require.NoError(t, st.PutAnnotations(ctx, notes, 0))
	set := func(k, v []byte) { require.NoError(t, st.db.Set(k, v, nil)) }
	head := appendHead(nil, &storage.DocumentHead{Title: "t", Bytes: 1})
	foreignHeads := [][]byte{{}, {documentVersion}, append([]byte{77}, head[1:]...), {1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, head[:len(head)-1]}
	list := func() (heads []storage.DocumentHead) {
		for h, err := range st.Documents(ctx, "kind") {
			require.NoError(t, err)
			heads = append(heads, h)
		}
		return heads
	}
	for _, bad := range foreignHeads {
		set(versionKey(tableDocuments, doc(1).DocumentKey, 1), bad)
		require.Equal(t, []storage.DocumentHead{
			doc(0).DocumentHead, {DocumentKey: doc(1).DocumentKey, Version: 1, Damaged: true}, doc(2).DocumentHead,
		}, list())
	}
	for _, bad := range append(foreignHeads, head, append(slices.Clone(head), "xx"...)) {
		set(versionKey(tableVersions, doc(1).DocumentKey, 1), bad)
		_, err := st.Document(ctx, doc(1).DocumentKey, 0)
		require.ErrorIs(t, err, storage.ErrCorrupt)
		require.ErrorContains(t, err, `document kind "1", version 1`)
	}
	require.ErrorIs(t, st.PutDocument(ctx, doc(1), 5), storage.ErrConflict, "nobody knows that it is the same")
	require.NoError(t, st.db.Delete(versionKey(tableVersions, doc(1).DocumentKey, 1), nil))
	_, err := st.Document(ctx, doc(1).DocumentKey, 0)
	require.ErrorIs(t, err, storage.ErrCorrupt)
	require.ErrorContains(t, err, "its body is missing")
	require.NoError(t, st.PutDocument(ctx, keptDocument(1, 2), 5))
	require.Equal(t, keptDocument(1, 2).DocumentHead, list()[1])
	set([]byte{tableDocuments, 'k', 'i', 'n', 'd', 0, 'x'}, nil) // no key of a document
	require.Len(t, list(), 3)
	require.Contains(t, said[len(said)-1], "a document with the key 6f6b696e640078")

	good := appendAnnotation(nil, &notes[1], 0)
	read := func(atMs int64) (n int, err error) {
		for _, err = range st.Annotations(ctx, atMs, atMs) {
			n++
		}
		return n, err
	}
	for _, bad := range [][]byte{{}, {annotationVersion}, append([]byte{77}, good[1:]...), append(slices.Clone(good), 9), good[:len(good)-1]} {
		set(annotationKey(crashStart, "1"), bad)
		for _, atMs := range []int64{crashStart, crashStart + 39*dayMs} {
			_, err := read(atMs)
			require.ErrorIs(t, err, storage.ErrCorrupt)
			require.ErrorContains(t, err, `annotation "1" that starts at 2025-11-21T00:00:00Z, which a put or a delete replaces`)
		}
	}
	require.NoError(t, st.Expire(ctx))
	notes[1].EndMs = crashStart
	require.NoError(t, st.PutAnnotations(ctx, notes[1:2], 0), "what is damaged is replaced")
	p, err := st.readPage([]byte{tableSpans}, []byte{tableSpans + 1}, math.MaxInt, nil)
	require.NoError(t, err)
	require.Len(t, p.rows, 2)
	n, err := read(crashStart)
	require.NoError(t, err)
	require.Equal(t, 3, n)
}

// Damaged blocks of the documents' tables cost what lies in them. The messages say what is lost.
func TestDamagedBlocksOfDocuments(t *testing.T) {
	const documents = 100
	doc := func(n int) storage.Document {
		rng := rand.New(rand.NewPCG(uint64(n), 3))
		d := keptDocument(n, 1)
		d.ID = fmt.Sprintf("%04d", n)
		for i := range 6000 { // data that does not compress
			d.Body = append(d.Body, byte(rng.Uint32()), byte(i))
		}
		d.Title = fmt.Sprintf("%x", rng.Uint64())
		d.Bytes = len(d.Body)
		return d
	}
	for name, table := range map[string]byte{"heads": tableDocuments, "versions": tableVersions} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			fs := vfs.NewMem()
			st := mustOpen(t, "/data", damagedOptions(fs))
			for n := range documents {
				require.NoError(t, st.PutDocument(t.Context(), doc(n), 5))
				require.NoError(t, st.Write(t.Context(), crashBatch(n))) // raw chunks lie between the two tables
			}
			for n := range int64(1000) { // so that the settings lie in another block
				require.NoError(t, st.RecordRun(t.Context(), storage.Run{Worker: "w", StartedMs: crashStart + n}))
			}
			damageBlocks(t, st, fs, versionKey(table, doc(documents/2).DocumentKey, 1))
			var said []string
			opts := damagedOptions(fs)
			opts.OnLost = func(what string) { said = append(said, what) }
			st = mustOpen(t, "/data", opts)
			listed := map[string]bool{}
			for h, err := range st.Documents(t.Context(), "kind") {
				require.NoError(t, err)
				require.False(t, h.Damaged || listed[h.ID], h.ID)
				listed[h.ID] = true
			}
			readable := 0
			for n := range documents {
				_, err := st.Document(t.Context(), doc(n).DocumentKey, 1)
				if err == nil {
					readable++
					continue
				}
				require.ErrorIs(t, err, storage.ErrCorrupt)
				require.ErrorContains(t, err, doc(n).String())
			}
			switch name {
			case "heads":
				require.Equal(t, documents, readable)
				require.Less(t, len(listed), documents)
				require.Equal(t, []string{"some documents of the kind kind"}, said)
			case "versions":
				require.Len(t, listed, documents)
				require.Less(t, readable, documents)
				require.Greater(t, readable, documents-8)
				require.Empty(t, said)
			}
			// What is listed can be changed.
			for n := range documents {
				next := doc(n)
				next.Version = 2
				err := st.PutDocument(t.Context(), next, 1)
				if !listed[next.ID] && err != nil {
					require.ErrorIs(t, err, storage.ErrCorrupt)
					require.ErrorContains(t, err, next.String())
					continue
				}
				require.NoError(t, err)
				got, err := st.Document(t.Context(), next.DocumentKey, 0)
				require.NoError(t, err)
				require.True(t, next.Same(&got))
			}
			require.NoError(t, st.Close())
		})
	}
}

// A version of a document that is read behind a damaged block is not taken for the newest: a revoked token stays revoked.
func TestNewestVersionInADamagedBlock(t *testing.T) {
	noLeaks(t)
	st := mustOpen(t, "/data", damagedOptions(vfs.NewMem()))
	for n := range 2 {
		for version := range int64(3) {
			require.NoError(t, st.PutDocument(t.Context(), keptDocument(n, version+1), 5))
		}
	}
	key := keptDocument(0, 1).DocumentKey
	st.unreadable.add(documentsPrefix(tableDocuments, key.Kind), versionKey(tableDocuments, key, 2))
	heads := func(seq iter.Seq2[storage.DocumentHead, error]) (out []storage.DocumentHead) {
		for h, err := range seq {
			require.NoError(t, err)
			out = append(out, h)
		}
		return out
	}
	require.Equal(t, []storage.DocumentHead{{DocumentKey: key, Version: 2, Damaged: true}, keptDocument(1, 3).DocumentHead}, heads(st.Documents(t.Context(), key.Kind)))
	require.Equal(t, []storage.DocumentHead{keptDocument(0, 2).DocumentHead, keptDocument(0, 1).DocumentHead}, heads(st.Versions(t.Context(), key)))
	_, err := st.Document(t.Context(), key, 0)
	require.ErrorIs(t, err, storage.ErrCorrupt)
	require.ErrorContains(t, err, "the newest version of "+key.String()+" may lie in a damaged block")
	require.ErrorIs(t, st.PutDocument(t.Context(), keptDocument(0, 4), 5), storage.ErrCorrupt)
	require.NoError(t, st.Close())
}

// Annotations in a damaged block are not passed over: a read or a change that meets the block fails, and names the file. Others
// go on, and rows expire.
func TestDamagedBlocksOfAnnotations(t *testing.T) {
	const count = 4000
	note := func(n int) storage.Annotation {
		return storage.Annotation{
			ID: fmt.Sprintf("%04d", n), StartMs: crashStart + int64(n), EndMs: crashStart + 40*dayMs, Text: fmt.Sprintf("%x%x%x%x", rand.Uint64(), rand.Uint64(), rand.Uint64(), rand.Uint64()),
		}
	}
	for name, key := range map[string][]byte{
		"annotations": annotationKey(crashStart+count/2, note(count/2).ID), "spans": spanKey(storage.SpanYear, crashStart+count/2, note(count/2).ID),
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			fs := vfs.NewMem()
			st := mustOpen(t, "/data", damagedOptions(fs))
			var all []storage.Annotation
			for n := range count {
				all = append(all, note(n))
			}
			require.NoError(t, st.PutAnnotations(t.Context(), all, 0))
			for n := range int64(1000) { // so that the settings lie in another block
				require.NoError(t, st.RecordRun(t.Context(), storage.Run{Worker: "w", StartedMs: crashStart + n}))
			}
			damageBlocks(t, st, fs, key)
			st = mustOpen(t, "/data", damagedOptions(fs))
			read := func(fromMs int64) (err error) {
				for _, err = range st.Annotations(t.Context(), fromMs, fromMs) {
					if err != nil {
						require.ErrorIs(t, err, storage.ErrCorrupt)
						require.ErrorContains(t, err, tableSuffix+" is damaged")
					}
				}
				return err
			}
			require.Error(t, read(crashStart+39*dayMs))
			require.Equal(t, name == "annotations", read(crashStart+count) != nil)
			require.NoError(t, read(crashStart-40*dayMs))
			require.NoError(t, st.Expire(t.Context()))
			require.NoError(t, st.PutAnnotations(t.Context(), all[:1], 0))
			if name == "annotations" {
				require.ErrorIs(t, st.PutAnnotations(t.Context(), all[count/2:count/2+1], 0), storage.ErrCorrupt)
			}
			require.NoError(t, st.Close())
		})
	}
}

// Annotations do not expire by a clock that has jumped ahead, and a clock that is behind when they are put does not
// shorten their time.
func TestAnnotationsOfAWrongClock(t *testing.T) {
	noLeaks(t)
	const day = 24 * time.Hour
	clk, fs := newClock(), vfs.NewMem()
	open := func() *Store {
		return mustOpen(t, "/data", Options{Settings: storagetest.TestSettings(), Clock: clk, FS: fs, Logger: quiet()})
	}
	st := open()
	put := func(id string, ttl time.Duration) {
		require.NoError(t, st.PutAnnotations(t.Context(), []storage.Annotation{{ID: id, StartMs: crashStart, EndMs: crashStart + 2*dayMs}}, ttl))
	}
	check := func(want ...string) {
		t.Helper()
		for _, expire := range []bool{false, true} {
			if expire {
				require.NoError(t, st.Expire(t.Context()))
			}
			for _, atMs := range []int64{crashStart, crashStart + 2*dayMs} {
				var got []string
				for a, err := range st.Annotations(t.Context(), atMs, atMs) {
					require.NoError(t, err)
					got = append(got, a.ID)
				}
				require.Equal(t, want, got)
			}
		}
	}
	put("a", 2*day)
	require.NoError(t, st.ClockRefused())
	for _, restart := range []bool{false, true} {
		clk.Jump(9 * day)
		if restart {
			require.NoError(t, st.Close())
			st = open()
		}
		require.Error(t, st.ClockRefused())
		check("a")
		clk.Jump(-9 * day)
		check("a")
	}
	clk.Set(clk.Now().Add(2*day - time.Second))
	check("a")
	clk.Set(clk.Now().Add(time.Second))
	check()
	require.NoError(t, st.Close())
}

// An annotation that is put again after Expire has found it expired, and before it deletes it, stays.
func TestAnnotationPutAgainWhileItExpires(t *testing.T) {
	noLeaks(t)
	clk := newClock()
	st := mustOpen(t, "/data", Options{Settings: storagetest.TestSettings(), Clock: clk, FS: vfs.NewMem()})
	a := storage.Annotation{ID: "a", StartMs: crashStart, EndMs: crashStart + 2*dayMs}
	found := func() (n int) {
		for _, err := range st.Annotations(t.Context(), a.EndMs, a.EndMs) {
			require.NoError(t, err)
			n++
		}
		return n
	}
	require.NoError(t, st.PutAnnotations(t.Context(), []storage.Annotation{a}, time.Minute))
	clk.Set(clk.Now().Add(time.Minute))
	require.Zero(t, found())
	require.NoError(t, st.PutAnnotations(t.Context(), []storage.Annotation{a}, time.Hour))
	keys := []storage.AnnotationKey{a.Key()}
	require.NoError(t, st.dropExpired(t.Context(), "expire", keys, clk.Now().UnixMilli()))
	require.Equal(t, 1, found())
	clk.Set(clk.Now().Add(time.Hour))
	require.NoError(t, st.dropExpired(t.Context(), "expire", keys, clk.Now().UnixMilli()))
	p, err := st.readPage([]byte{tableAnnotations}, []byte{tableAnnotations + 1}, math.MaxInt, nil)
	require.NoError(t, err)
	require.Empty(t, p.rows)
	require.NoError(t, st.Close())
}

// FuzzDocument decodes arbitrary bytes as a row of document_versions. The result is an error, or a document that
// survives another round.
func FuzzDocument(f *testing.F) {
	f.Add(append(appendHead(nil, &storage.DocumentHead{Author: "a", Title: "t", UpdatedMs: -1, Bytes: 4}), "body"...))
	f.Add(appendHead(nil, &storage.DocumentHead{Deleted: true}))
	f.Add([]byte{documentVersion, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 9, 'x'})
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := parseDocument(storage.DocumentHead{}, b)
		if err != nil {
			require.ErrorIs(t, err, storage.ErrCorrupt)
			return
		}
		again, err := parseDocument(storage.DocumentHead{}, append(appendHead(nil, &d.DocumentHead), d.Body...))
		require.NoError(t, err)
		require.True(t, d.Same(&again) && d.Bytes == again.Bytes)
	})
}

// FuzzVersionKey: a key of any bytes is refused, or is what its parts make.
func FuzzVersionKey(f *testing.F) {
	f.Add(versionKey(tableDocuments, storage.DocumentKey{Kind: "kind", ID: "id"}, 7))
	f.Add([]byte{tableVersions})
	f.Add(append([]byte{tableVersions, 'a', 0, 'b', 0}, make([]byte, 8)...))
	f.Fuzz(func(t *testing.T, k []byte) {
		if len(k) == 0 {
			return
		}
		h, err := parseVersionKey(k)
		if err != nil {
			require.ErrorIs(t, err, storage.ErrCorrupt)
			return
		}
		require.Equal(t, k, versionKey(k[0], h.DocumentKey, h.Version))
	})
}

// FuzzAnnotation decodes arbitrary bytes as an annotation. The result is an error, or one that survives another round.
func FuzzAnnotation(f *testing.F) {
	f.Add(appendAnnotation(nil, &storage.Annotation{Text: "t", Tags: []string{"a", "b"}, Selector: "s", Author: "x", UpdatedMs: 3, EndMs: 9}, 5))
	f.Add([]byte{annotationVersion, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var a, again storedAnnotation
		if err := parseAnnotation(b, &a); err != nil {
			require.ErrorIs(t, err, storage.ErrCorrupt)
			return
		}
		require.NoError(t, parseAnnotation(appendAnnotation(nil, &a.Annotation, a.expiresMs), &again))
		require.Equal(t, a, again)
	})
}
