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

func (s *suite) put(d storage.Document) {
	s.Helper()
	require.NoError(s, s.store.PutDocument(s.ctx, d))
}

// conflicts requires that a put is refused, and which version it names as the newest.
func (s *suite) conflicts(d storage.Document, newest int64) {
	s.Helper()
	err := s.store.PutDocument(s.ctx, d)
	require.ErrorIs(s, err, storage.ErrConflict)
	var conflict *storage.ConflictError
	require.ErrorAs(s, err, &conflict)
	require.Equal(s, storage.ConflictError{Key: d.DocumentKey, Newest: newest}, *conflict)
}

// holds requires that docKey is this, and that there is nothing else of its kind.
func (s *suite) holds(want storage.Document) {
	s.Helper()
	got, err := s.store.Document(s.ctx, docKey)
	require.NoError(s, err)
	equal(s, want, got)
	equal(s, []storage.DocumentHead{want.DocumentHead}, all(s, s.store.Documents(s.ctx, docKey.Kind)))
}

// lacks requires that there is no such document.
func (s *suite) lacks(key storage.DocumentKey) {
	s.Helper()
	_, err := s.store.Document(s.ctx, key)
	require.ErrorIs(s, err, storage.ErrNoDocument)
}

func (s *suite) documents() {
	s.lacks(docKey)
	require.Empty(s, all(s, s.store.Documents(s.ctx, docKey.Kind)))
	s.conflicts(document(2, "x"), 0)
	s.conflicts(document(3, "x"), 0)
	first := document(1, "{}")
	body := []byte("{}")
	d := first
	d.Body, d.Bytes = body, 77 // the store counts by itself
	s.put(d)
	copy(body, "!!")
	for range 2 {
		s.holds(first)
		got, err := s.store.Document(s.ctx, docKey)
		require.NoError(s, err)
		copy(got.Body, "!!")
		_ = append(got.Body, "more"...)
	}
	// Any bytes, and none.
	odd := document(2, "\x00\xff\xfe "+string(bytes.Repeat([]byte{0, 1, 254}, 1000)))
	odd.Title, odd.Author, odd.UpdatedMs = "näme \x00 ⏱ <script>", "", -5
	s.put(odd)
	s.holds(odd)
	none := document(3, "")
	none.Title = ""
	s.put(none)
	s.reopen()
	s.holds(none)
	s.conflicts(document(5, "x"), 3)
	// Names that are alike.
	for _, key := range []storage.DocumentKey{
		{Kind: "dashboards", ID: "hosts"}, {Kind: "dash", ID: "boardhosts"}, {Kind: "dashboard.", ID: "hosts"}, {Kind: "dashboar", ID: "dhosts"},
	} {
		other := document(1, "other")
		other.DocumentKey = key
		s.put(other)
		equal(s, []storage.DocumentHead{other.DocumentHead}, all(s, s.store.Documents(s.ctx, key.Kind)))
	}
	s.holds(none)
	for _, kind := range []string{"d", "", "not\xffvalid", "dashboard\x00hosts"} {
		require.Empty(s, all(s, s.store.Documents(s.ctx, kind)))
	}
	s.lacks(storage.DocumentKey{Kind: "dashboard", ID: "not\xffvalid"})
	s.lacks(storage.DocumentKey{Kind: "dashboard"})
}

// documentsAreRepeated: whoever has put the newest version may put it again, and nobody else.
func (s *suite) documentsAreRepeated() {
	first, second := document(1, "one"), document(2, "two")
	for range 3 {
		s.put(first)
	}
	s.put(second)
	s.conflicts(first, 2)
	for name, change := range map[string]func(d *storage.Document){
		"body":    func(d *storage.Document) { d.Body = []byte("Two") },
		"title":   func(d *storage.Document) { d.Title = "x" },
		"author":  func(d *storage.Document) { d.Author = "bob" },
		"time":    func(d *storage.Document) { d.UpdatedMs++ },
		"deleted": func(d *storage.Document) { d.Deleted, d.Body = true, nil },
	} {
		d := second
		change(&d)
		require.ErrorIs(s, s.store.PutDocument(s.ctx, d), storage.ErrConflict, name)
	}
	s.reopen()
	s.put(second)
	s.holds(second)
}

// documentsAreDeleted: a deletion is a version. The document may come back as a later one.
func (s *suite) documentsAreDeleted() {
	s.put(document(1, "one"))
	for range 2 {
		s.put(deletion(2))
		s.holds(deletion(2))
	}
	s.conflicts(document(1, "new"), 2)
	s.put(deletion(3)) // deleted once more
	s.put(document(4, "back"))
	s.holds(document(4, "back"))
	s.put(deletion(5))
	s.reopen()
	s.expireAt(at(24 * 20))
	s.holds(deletion(5))
	s.conflicts(document(1, "new"), 5)
	s.put(document(6, "new"))
	s.holds(document(6, "new"))
}

// documentsAreForgotten only while the newest version is the deletion that is named.
func (s *suite) documentsAreForgotten() {
	require.NoError(s, s.store.ForgetDocument(s.ctx, docKey, 1), "there is none")
	for _, v := range []int64{1, 2} {
		s.put(document(v, "x"))
	}
	require.ErrorIs(s, s.store.ForgetDocument(s.ctx, docKey, 2), storage.ErrRefused)
	s.put(deletion(3))
	for _, v := range []int64{2, 4} {
		var conflict *storage.ConflictError
		require.ErrorAs(s, s.store.ForgetDocument(s.ctx, docKey, v), &conflict)
		require.Equal(s, storage.ConflictError{Key: docKey, Newest: 3}, *conflict)
	}
	other := document(1, "other")
	other.ID = "other"
	s.put(other)
	for range 2 {
		require.NoError(s, s.store.ForgetDocument(s.ctx, docKey, 3))
	}
	for range 2 {
		require.Equal(s, []storage.DocumentHead{other.DocumentHead}, all(s, s.store.Documents(s.ctx, docKey.Kind)))
		s.lacks(docKey)
		s.conflicts(document(4, "x"), 0)
		s.reopen()
	}
	again := document(1, "again")
	s.put(again)
	got, err := s.store.Document(s.ctx, docKey)
	require.NoError(s, err)
	equal(s, again, got)
	require.ErrorIs(s, s.store.ForgetDocument(s.ctx, docKey, 3), storage.ErrConflict)
}

func (s *suite) documentLimits() {
	long := strings.Repeat("a-._09z", 19)[:storage.MaxDocumentName]
	largest := document(1, strings.Repeat("\xff", storage.MaxDocumentBody))
	largest.DocumentKey = storage.DocumentKey{Kind: long, ID: long}
	largest.Title, largest.Author = strings.Repeat("é", storage.MaxDocumentTitle/2), strings.Repeat("é", storage.MaxDocumentAuthor/2)
	s.put(largest)
	got, err := s.store.Document(s.ctx, largest.DocumentKey)
	require.NoError(s, err)
	require.True(s, largest.Same(&got) && got.Bytes == storage.MaxDocumentBody)

	require.ErrorIs(s, s.store.PutDocument(s.ctx, document(1, strings.Repeat("x", storage.MaxDocumentBody+1))), storage.ErrTooLarge)
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
		"long title":      func(d *storage.Document) { d.Title = strings.Repeat("x", storage.MaxDocumentTitle+1) },
		"long author":     func(d *storage.Document) { d.Author = strings.Repeat("x", storage.MaxDocumentAuthor+1) },
		"title no UTF-8":  func(d *storage.Document) { d.Title = "\xff" },
		"author no UTF-8": func(d *storage.Document) { d.Author = "\xc3" },
	} {
		d := document(1, "x")
		change(&d)
		require.ErrorIs(s, s.store.PutDocument(s.ctx, d), storage.ErrRefused, name)
	}
	s.lacks(docKey)
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
			s.put(d)
		}
		want = append(want, d.DocumentHead)
	}
	slices.Reverse(want)
	equal(s, want, all(s, s.store.Documents(s.ctx, docKey.Kind)))
}

// documentClocks: no clock decides about documents.
func (s *suite) documentClocks() {
	s.put(document(1, "one"))
	s.clk.Jump(-9 * 24 * time.Hour)
	s.put(document(2, "two"))
	s.reopen()
	s.put(document(3, "three"))
	s.clk.Jump(1000 * 24 * time.Hour)
	s.holds(document(3, "three"))
	s.put(document(4, "four"))
	require.NoError(s, s.store.Expire(s.ctx))
	s.reopen()
	s.clk.Jump(-991 * 24 * time.Hour)
	s.holds(document(4, "four"))
}
