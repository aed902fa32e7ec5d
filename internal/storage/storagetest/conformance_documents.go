package storagetest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/storage"
)

// documentCases test storage.Documents.
var documentCases = []conformanceCase{
	{"Documents", (*suite).documents, nil},
	{"DocumentVersions", (*suite).documentVersions, nil},
	{"DocumentsAreRepeated", (*suite).documentsAreRepeated, nil},
	{"DocumentsAreDeleted", (*suite).documentsAreDeleted, nil},
	{"DocumentsAreForgotten", (*suite).documentsAreForgotten, nil},
	{"DocumentLimits", (*suite).documentLimits, nil},
	{"DocumentsInOrder", (*suite).documentsInOrder, nil},
	{"DocumentClocks", (*suite).documentClocks, nil},
}

var docKey = storage.DocumentKey{Kind: "dashboard", ID: "hosts"}

// document returns a version of docKey.
func document(version int64, body string) storage.Document {
	return storage.Document{DocumentHead: storage.DocumentHead{
		DocumentKey: docKey, Version: version, UpdatedMs: at(0) + version, Author: "ann", Title: fmt.Sprint("Hosts ", version), Bytes: len(body),
	}, Body: []byte(body)}
}

func deletion(version int64) storage.Document {
	d := document(version, "")
	d.Deleted, d.Body = true, nil
	return d
}

func (s *suite) put(d storage.Document, keep int) {
	s.Helper()
	require.NoError(s, s.store.PutDocument(s.ctx, d, keep))
}

// conflicts requires that a put is refused, and which version it names as the newest.
func (s *suite) conflicts(d storage.Document, newest int64) {
	s.Helper()
	err := s.store.PutDocument(s.ctx, d, 20)
	require.ErrorIs(s, err, storage.ErrConflict)
	var conflict *storage.ConflictError
	require.ErrorAs(s, err, &conflict)
	require.Equal(s, storage.ConflictError{Key: d.DocumentKey, Newest: newest}, *conflict)
}

// holds requires that docKey has exactly these versions, oldest first, and nothing else of its kind.
func (s *suite) holds(want ...storage.Document) {
	s.Helper()
	var heads, newest []storage.DocumentHead
	for _, d := range slices.Backward(want) {
		heads = append(heads, d.DocumentHead)
		got, err := s.store.Document(s.ctx, docKey, d.Version)
		require.NoError(s, err)
		equal(s, d, got)
	}
	if len(want) > 0 {
		newest = heads[:1]
		got, err := s.store.Document(s.ctx, docKey, 0)
		require.NoError(s, err)
		equal(s, want[len(want)-1], got)
		s.lacks(heads[0].Version + 1)
		if removed := want[0].Version - 1; removed > 0 {
			s.lacks(removed)
		}
	} else {
		s.lacks(0)
	}
	equal(s, heads, all(s, s.store.Versions(s.ctx, docKey)))
	equal(s, newest, all(s, s.store.Documents(s.ctx, docKey.Kind)))
}

// lacks requires that docKey does not have a version.
func (s *suite) lacks(version int64) {
	s.Helper()
	_, err := s.store.Document(s.ctx, docKey, version)
	require.ErrorIs(s, err, storage.ErrNoDocument)
}

func (s *suite) documents() {
	s.holds()
	s.lacks(-1)
	first := document(1, "{}")
	body := []byte("{}")
	d := first
	d.Body, d.Bytes = body, 77 // the store counts by itself
	s.put(d, 20)
	copy(body, "!!")
	for range 2 {
		s.holds(first)
		got, err := s.store.Document(s.ctx, docKey, 0)
		require.NoError(s, err)
		copy(got.Body, "!!")
		_ = append(got.Body, "more"...)
	}
	// Any bytes, and none.
	odd := document(2, "\x00\xff\xfe "+string(bytes.Repeat([]byte{0, 1, 254}, 1000)))
	odd.Title, odd.Author, odd.UpdatedMs = "näme \x00 ⏱ <script>", "", -5
	none := document(3, "")
	none.Title = ""
	s.put(odd, 20)
	s.put(none, 20)
	s.reopen()
	s.holds(first, odd, none)
	// Names that are alike.
	for _, key := range []storage.DocumentKey{
		{Kind: "dashboards", ID: "hosts"}, {Kind: "dash", ID: "boardhosts"}, {Kind: "dashboard.", ID: "hosts"}, {Kind: "dashboar", ID: "dhosts"},
	} {
		other := document(1, "other")
		other.DocumentKey = key
		s.put(other, 20)
		equal(s, []storage.DocumentHead{other.DocumentHead}, all(s, s.store.Documents(s.ctx, key.Kind)))
	}
	s.holds(first, odd, none)
	require.Empty(s, all(s, s.store.Documents(s.ctx, "d")))
	require.Empty(s, all(s, s.store.Documents(s.ctx, "")))
	require.Empty(s, all(s, s.store.Documents(s.ctx, "not\xffvalid")))
	require.Empty(s, all(s, s.store.Documents(s.ctx, "dashboard\x00hosts")))
	require.Empty(s, all(s, s.store.Versions(s.ctx, storage.DocumentKey{Kind: "dashboard\x00hosts", ID: "x"})))
	require.Empty(s, all(s, s.store.Versions(s.ctx, storage.DocumentKey{Kind: "dashboard"})))
	_, err := s.store.Document(s.ctx, storage.DocumentKey{Kind: "dashboard", ID: "not\xffvalid"}, 0)
	require.ErrorIs(s, err, storage.ErrNoDocument)
}

// documentVersions: the newest versions are kept, as many as the last put says.
func (s *suite) documentVersions() {
	s.conflicts(document(2, "x"), 0)
	s.conflicts(document(3, "x"), 0)
	var docs []storage.Document
	for v := int64(1); v <= 7; v++ {
		docs = append(docs, document(v, strings.Repeat("x", int(v))))
		s.put(docs[v-1], 4)
		s.holds(docs[max(0, v-4):v]...)
	}
	s.conflicts(document(9, "x"), 7)
	s.conflicts(document(7, "another"), 7)
	s.conflicts(document(1, "x"), 7) // it was like this, and is no longer kept
	s.put(document(8, "x"), 2)
	s.holds(docs[6], document(8, "x"))
	s.put(document(9, "x"), storage.MaxDocumentVersions)
	s.holds(docs[6], document(8, "x"), document(9, "x"))
	s.put(document(10, "x"), 1)
	s.holds(document(10, "x"))
	s.reopen()
	s.holds(document(10, "x"))
	s.conflicts(document(1, "x"), 10)
}

// documentsAreRepeated: whoever has put a version may put it again, and nobody else.
func (s *suite) documentsAreRepeated() {
	first, second := document(1, "one"), document(2, "two")
	for range 3 {
		s.put(first, 3)
	}
	s.put(second, 3)
	s.put(first, 3) // although there is a newer one
	s.holds(first, second)
	for name, change := range map[string]func(d *storage.Document){
		"body":    func(d *storage.Document) { d.Body = []byte("Two") },
		"title":   func(d *storage.Document) { d.Title = "x" },
		"author":  func(d *storage.Document) { d.Author = "bob" },
		"time":    func(d *storage.Document) { d.UpdatedMs++ },
		"deleted": func(d *storage.Document) { d.Deleted, d.Body = true, nil },
	} {
		for _, d := range []storage.Document{first, second} {
			change(&d)
			err := s.store.PutDocument(s.ctx, d, 3)
			require.ErrorIs(s, err, storage.ErrConflict, name)
		}
	}
	s.reopen()
	s.put(second, 3)
	s.holds(first, second)
}

// documentsAreDeleted: a deletion is a version. The document may come back as a later one.
func (s *suite) documentsAreDeleted() {
	s.put(document(1, "one"), 3)
	for range 2 {
		s.put(deletion(2), 3)
		s.holds(document(1, "one"), deletion(2))
	}
	s.conflicts(document(1, "new"), 2)
	s.put(deletion(3), 3) // deleted once more
	s.put(document(4, "back"), 3)
	s.holds(deletion(2), deletion(3), document(4, "back"))
	s.put(deletion(5), 1)
	s.reopen()
	s.expireAt(at(24 * 20))
	s.holds(deletion(5))
	s.conflicts(document(1, "new"), 5)
	s.put(document(6, "new"), 20)
	s.holds(deletion(5), document(6, "new"))
}

// documentsAreForgotten as a whole, and only while the newest version is the deletion that is named.
func (s *suite) documentsAreForgotten() {
	other := document(1, "other")
	other.ID = "other"
	s.put(other, 20)
	require.NoError(s, s.store.ForgetDocument(s.ctx, docKey, 1), "there is none")
	for _, v := range []int64{1, 2} {
		s.put(document(v, "x"), 20)
	}
	require.ErrorIs(s, s.store.ForgetDocument(s.ctx, docKey, 2), storage.ErrRefused)
	s.put(deletion(3), 20)
	for _, v := range []int64{2, 4} {
		var conflict *storage.ConflictError
		require.ErrorAs(s, s.store.ForgetDocument(s.ctx, docKey, v), &conflict)
		require.Equal(s, storage.ConflictError{Key: docKey, Newest: 3}, *conflict)
	}
	for range 2 {
		require.NoError(s, s.store.ForgetDocument(s.ctx, docKey, 3))
	}
	for range 2 {
		require.Equal(s, []storage.DocumentHead{other.DocumentHead}, all(s, s.store.Documents(s.ctx, docKey.Kind)))
		require.Empty(s, all(s, s.store.Versions(s.ctx, docKey)))
		for v := range int64(5) {
			_, err := s.store.Document(s.ctx, docKey, v)
			require.ErrorIs(s, err, storage.ErrNoDocument)
		}
		s.conflicts(document(4, "x"), 0)
		s.reopen()
	}
	again := document(1, "again")
	s.put(again, 20)
	got, err := s.store.Document(s.ctx, docKey, 0)
	require.NoError(s, err)
	equal(s, again, got)
	require.Len(s, all(s, s.store.Versions(s.ctx, docKey)), 1)
	require.ErrorIs(s, s.store.ForgetDocument(s.ctx, docKey, 3), storage.ErrConflict)
}

func (s *suite) documentLimits() {
	long := strings.Repeat("a-._09z", 19)[:storage.MaxDocumentName]
	largest := document(1, strings.Repeat("\xff", storage.MaxDocumentBody))
	largest.DocumentKey = storage.DocumentKey{Kind: long, ID: long}
	largest.Title, largest.Author = strings.Repeat("é", storage.MaxDocumentTitle/2), strings.Repeat("é", storage.MaxDocumentAuthor/2)
	s.put(largest, storage.MaxDocumentVersions)
	got, err := s.store.Document(s.ctx, largest.DocumentKey, 0)
	require.NoError(s, err)
	require.True(s, largest.Same(&got) && got.Bytes == storage.MaxDocumentBody)

	require.ErrorIs(s, s.store.PutDocument(s.ctx, document(1, strings.Repeat("x", storage.MaxDocumentBody+1)), 1), storage.ErrTooLarge)
	for name, change := range map[string]func(d *storage.Document){
		"no kind":         func(d *storage.Document) { d.Kind = "" },
		"no id":           func(d *storage.Document) { d.ID = "" },
		"long kind":       func(d *storage.Document) { d.Kind = long + "a" },
		"long id":         func(d *storage.Document) { d.ID = long + "a" },
		"upper case":      func(d *storage.Document) { d.ID = "A" },
		"a path":          func(d *storage.Document) { d.ID = "a/b" },
		"a NUL":           func(d *storage.Document) { d.ID = "a\x00" },
		"an accent":       func(d *storage.Document) { d.Kind = "é" },
		"version 0":       func(d *storage.Document) { d.Version = 0 },
		"version -1":      func(d *storage.Document) { d.Version = -1 },
		"a full deletion": func(d *storage.Document) { d.Deleted = true },
		"damaged":         func(d *storage.Document) { d.Damaged = true },
		"long title":      func(d *storage.Document) { d.Title = strings.Repeat("x", storage.MaxDocumentTitle+1) },
		"long author":     func(d *storage.Document) { d.Author = strings.Repeat("x", storage.MaxDocumentAuthor+1) },
		"title no UTF-8":  func(d *storage.Document) { d.Title = "\xff" },
		"author no UTF-8": func(d *storage.Document) { d.Author = "\xc3" },
	} {
		d := document(1, "x")
		change(&d)
		require.ErrorIs(s, s.store.PutDocument(s.ctx, d, 1), storage.ErrRefused, name)
	}
	for _, keep := range []int{-1, 0, storage.MaxDocumentVersions + 1} {
		require.ErrorIs(s, s.store.PutDocument(s.ctx, document(1, "x"), keep), storage.ErrRefused)
	}
	s.holds()
	for v := range int64(storage.MaxDocumentVersions + 5) {
		s.put(document(v+1, "x"), storage.MaxDocumentVersions)
	}
	require.Len(s, all(s, s.store.Versions(s.ctx, docKey)), storage.MaxDocumentVersions)
}

// documentsInOrder lists more documents than a page holds, each with several versions.
func (s *suite) documentsInOrder() {
	ids := []string{"-", ".", "0", "00", "a", "a-", "a.", "a0", "a_", "aa", "b", "z"}
	for i := range 60 {
		ids = append(ids, fmt.Sprintf("many-%03d", i))
	}
	slices.Sort(ids)
	var want []storage.DocumentHead
	for i, id := range slices.Backward(ids) {
		var d storage.Document
		for v := range int64(1 + i%3) {
			d = document(v+1, strings.Repeat("x", 20_000))
			d.ID, d.Title = id, strings.Repeat("t", 900)
			s.put(d, 5)
		}
		want = append(want, d.DocumentHead)
	}
	slices.Reverse(want)
	equal(s, want, all(s, s.store.Documents(s.ctx, docKey.Kind)))
}

// documentClocks: no clock decides about documents.
func (s *suite) documentClocks() {
	s.put(document(1, "one"), 2)
	s.clk.Jump(-9 * 24 * time.Hour)
	s.put(document(2, "two"), 2)
	s.reopen()
	s.put(document(3, "three"), 2)
	s.clk.Jump(1000 * 24 * time.Hour)
	s.holds(document(2, "two"), document(3, "three"))
	s.put(document(4, "four"), 2)
	require.NoError(s, s.store.Expire(s.ctx))
	s.reopen()
	s.clk.Jump(-991 * 24 * time.Hour)
	s.holds(document(3, "three"), document(4, "four"))
}
