package shelf_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/documents/shelf"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

var start = time.Date(2025, 11, 21, 12, 0, 0, 0, time.UTC)

const maxBytes = 100

// newShelf returns a shelf that keeps three versions of each of up to three notes, and the store that they are kept in.
func newShelf() (*shelf.Shelf, *storagetest.Faulty, *clock.Simulated) {
	clk := clock.NewSimulated(start)
	store := storagetest.NewFaulty(storagetest.NewModel(storage.Settings{}, nil, clk))
	return shelf.New(shelf.Options{Documents: store, Archive: store, Clock: clk, Kind: "note", MaxBytes: maxBytes, Kept: 3, Most: 3}), store, clk
}

func change(id string, base int64) shelf.Change {
	return shelf.Change{ID: id, Base: base, Author: "ann"}
}

func put(t *testing.T, s *shelf.Shelf, id string, base int64, body string) {
	t.Helper()
	n, err := s.Put(t.Context(), change(id, base), "Title of "+body, []byte(body))
	require.NoError(t, err)
	require.Equal(t, base+1, n)
}

// heads returns a list of heads as id version title, where - stands for a deletion.
func heads(t *testing.T, all iter.Seq2[storage.DocumentHead, error]) (out []string) {
	t.Helper()
	for head, err := range all {
		require.NoError(t, err)
		deleted := ""
		if head.Deleted {
			deleted = " -"
		}
		out = append(out, fmt.Sprintf("%s %d %s%s", head.ID, head.Version, head.Title, deleted))
	}
	return out
}

func requireConflict(t *testing.T, err error, newest int64) {
	t.Helper()
	var conflict *storage.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, newest, conflict.Newest)
}

func requireMissing(t *testing.T, err error, message string) {
	t.Helper()
	var missing *shelf.MissingError
	require.ErrorAs(t, err, &missing)
	require.Equal(t, message, missing.Message)
}

// TestVersions: a document has its last versions, each as it was stored.
func TestVersions(t *testing.T) {
	s, _, clk := newShelf()
	_, err := s.Get(t.Context(), "a", 0)
	requireMissing(t, err, `there is no note "a"`)
	require.Empty(t, heads(t, s.Versions(t.Context(), "a")))
	for v := range int64(5) {
		clk.Set(start.Add(time.Duration(v) * time.Minute))
		put(t, s, "a", v, fmt.Sprint(v+1))
	}
	put(t, s, "b", 0, `"b"`)
	require.Equal(t, []string{"a 5 Title of 5", "a 4 Title of 4", "a 3 Title of 3"}, heads(t, s.Versions(t.Context(), "a")))
	require.Equal(t, []string{"a 5 Title of 5", `b 1 Title of "b"`}, heads(t, s.List(t.Context())))

	for version, want := range map[int64]int64{0: 5, 5: 5, 4: 4, 3: 3} {
		doc, err := s.Get(t.Context(), "a", version)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(want), string(doc.Body))
		require.Equal(t, want, doc.Version)
		require.Equal(t, "ann", doc.Author)
		require.Equal(t, start.Add(time.Duration(want-1)*time.Minute).UnixMilli(), doc.UpdatedMs)
	}
	for _, version := range []int64{2, 6} {
		_, err = s.Get(t.Context(), "a", version)
		requireMissing(t, err, fmt.Sprintf(`the note "a" has no version %d; these versions are kept: 3, 4, 5`, version))
	}
}

// TestRepeated: what is there already is not stored again, whatever version was changed.
func TestRepeated(t *testing.T) {
	s, _, _ := newShelf()
	put(t, s, "a", 0, "1")
	put(t, s, "a", 1, "2")
	for _, base := range []int64{0, 1, 2, 7} {
		n, err := s.Put(t.Context(), change("a", base), "another title", []byte("2"))
		require.NoError(t, err)
		require.EqualValues(t, 2, n)
	}
	require.Equal(t, []string{"a 2 Title of 2", "a 1 Title of 1"}, heads(t, s.Versions(t.Context(), "a")))
	put(t, s, "a", 2, "1") // an earlier version, again
}

// TestOfAnotherVersion: a change of a version that is not the newest stores nothing.
func TestOfAnotherVersion(t *testing.T) {
	s, _, _ := newShelf()
	_, err := s.Put(t.Context(), change("a", 1), "", []byte("1"))
	requireConflict(t, err, 0)
	put(t, s, "a", 0, "1")
	put(t, s, "a", 1, "2")
	for _, base := range []int64{0, 1, 3} {
		_, err := s.Put(t.Context(), change("a", base), "", []byte("3"))
		requireConflict(t, err, 2)
		_, err = s.Delete(t.Context(), change("a", base))
		requireConflict(t, err, 2)
	}
	require.Equal(t, []string{"a 2 Title of 2", "a 1 Title of 1"}, heads(t, s.Versions(t.Context(), "a")))
}

// TestTwoAtOnce: of two people who save the same version, both after it was checked, one learns that the other was first.
func TestTwoAtOnce(t *testing.T) {
	s, store, _ := newShelf()
	for base, second := range []func(c shelf.Change) (int64, error){
		func(c shelf.Change) (int64, error) { return s.Put(t.Context(), c, "", []byte(`"bob's"`)) }, // a new document
		func(c shelf.Change) (int64, error) { return s.Put(t.Context(), c, "", []byte(`"bob's"`)) },
		func(c shelf.Change) (int64, error) { return s.Delete(t.Context(), c) },
	} {
		body := fmt.Sprintf(`"ann's %d"`, base)
		store.Add(storagetest.Rule{Op: "PutDocument", Times: 1, Before: func() error {
			put(t, s, "a", int64(base), body)
			return nil
		}})
		_, err := second(shelf.Change{ID: "a", Base: int64(base), Author: "bob"})
		requireConflict(t, err, int64(base)+1)
		doc, err := s.Get(t.Context(), "a", 0)
		require.NoError(t, err)
		require.Equal(t, body, string(doc.Body))
		require.Equal(t, "ann", doc.Author)
	}

	const people = 8
	var wg sync.WaitGroup
	errs := make([]error, people)
	for i := range people {
		wg.Go(func() {
			_, errs[i] = s.Put(t.Context(), shelf.Change{ID: "many", Author: fmt.Sprint(i)}, "", fmt.Append(nil, i))
		})
	}
	wg.Wait()
	winner := -1
	for i, err := range errs {
		if err == nil {
			require.Equal(t, -1, winner, "two have won")
			winner = i
			continue
		}
		requireConflict(t, err, 1)
	}
	doc, err := s.Get(t.Context(), "many", 0)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint(winner), string(doc.Body))
}

// TestDelete: a deletion is a version. What was before it stays, may be read, and stored again.
func TestDelete(t *testing.T) {
	s, _, _ := newShelf()
	_, err := s.Delete(t.Context(), change("a", 0))
	requireMissing(t, err, `there is no note "a"`)
	put(t, s, "a", 0, "1")
	put(t, s, "a", 1, "2")
	for range 2 { // the second one is repeated
		n, err := s.Delete(t.Context(), change("a", 2))
		require.NoError(t, err)
		require.EqualValues(t, 3, n)
	}
	_, err = s.Delete(t.Context(), change("a", 3))
	requireMissing(t, err, `the note "a" was deleted; these versions are kept: 1, 2`)
	for _, version := range []int64{0, 3} {
		_, err = s.Get(t.Context(), "a", version)
		require.Error(t, err)
	}
	_, err = s.Get(t.Context(), "a", 0)
	requireMissing(t, err, `the note "a" was deleted; these versions are kept: 1, 2`)
	doc, err := s.Get(t.Context(), "a", 2)
	require.NoError(t, err)
	require.Equal(t, "2", string(doc.Body))
	require.Equal(t, []string{"a 3 Title of 2 -", "a 2 Title of 2", "a 1 Title of 1"}, heads(t, s.Versions(t.Context(), "a")))
	require.Equal(t, []string{"a 3 Title of 2 -"}, heads(t, s.List(t.Context())))

	_, err = s.Put(t.Context(), change("a", 0), "", []byte("2"))
	requireConflict(t, err, 3)
	put(t, s, "a", 3, "2") // it is not there, so it is stored, though the version before the deletion is the same
	for v := int64(4); v < 7; v++ {
		if v == 4 {
			_, err = s.Delete(t.Context(), change("a", v))
			require.NoError(t, err)
			continue
		}
		put(t, s, "a", v, fmt.Sprint(v+1))
	}
	require.Equal(t, []string{"a 7 Title of 7", "a 6 Title of 6", "a 5 Title of 2 -"}, heads(t, s.Versions(t.Context(), "a")))
}

// TestBadInput: what cannot be stored is refused with the reason, before the store is asked.
func TestBadInput(t *testing.T) {
	s, store, _ := newShelf()
	for _, id := range []string{"", "A", "a b", "a/b", "ä", "a\n", strings.Repeat("a", storage.MaxDocumentName+1)} {
		_, err := s.Put(t.Context(), change(id, 0), "", []byte("1"))
		var invalid *shelf.InvalidError
		require.ErrorAs(t, err, &invalid, id)
		require.Contains(t, invalid.Message, "an id has 1 to 128 of the characters")
	}
	_, err := s.Put(t.Context(), change("a", 0), "", make([]byte, maxBytes+1))
	require.ErrorIs(t, err, storage.ErrTooLarge)
	require.ErrorContains(t, err, "the note has 101 bytes with all of its fields, at most 100 are allowed")

	require.Empty(t, store.Log())

	put(t, s, strings.Repeat("a", storage.MaxDocumentName), 0, strings.Repeat("1", maxBytes))
	long := strings.Repeat("a", storage.MaxDocumentAuthor-1) + "ä" // the last letter is cut in half
	_, err = s.Put(t.Context(), shelf.Change{ID: "b", Author: long}, "", []byte("1"))
	require.NoError(t, err)
	doc, err := s.Get(t.Context(), "b", 0)
	require.NoError(t, err)
	require.Equal(t, long[:storage.MaxDocumentAuthor-1], doc.Author)
	require.True(t, utf8.ValidString(doc.Author))
}

// TestMay: nothing is changed that must not be changed, and who asks sees the newest version.
func TestMay(t *testing.T) {
	s, _, _ := newShelf()
	put(t, s, "a", 0, "1")
	forbidden := errors.New("not by you")
	var seen []int64
	c := change("a", 1)
	c.May = func(newest storage.Document) error {
		seen = append(seen, newest.Version)
		return forbidden
	}
	_, err := s.Put(t.Context(), c, "", []byte("2"))
	require.ErrorIs(t, err, forbidden)
	_, err = s.Put(t.Context(), c, "", []byte("1"))
	require.ErrorIs(t, err, forbidden, "nor does one learn that it is the same")
	_, err = s.Delete(t.Context(), c)
	require.ErrorIs(t, err, forbidden)
	c.ID, c.Base = "new", 0
	_, err = s.Put(t.Context(), c, "", []byte("2"))
	require.ErrorIs(t, err, forbidden)
	require.Equal(t, []int64{1, 1, 1, 0}, seen)
	require.Equal(t, []string{"a 1 Title of 1"}, heads(t, s.List(t.Context())))
	c.May = func(storage.Document) error { return nil }
	put(t, s, "a", 1, "2")
}

// TestRoom: a new document takes the place of the one that was deleted first, if there are too many, and otherwise none.
func TestRoom(t *testing.T) {
	s, store, clk := newShelf()
	for i, id := range []string{"a", "b", "c"} {
		put(t, s, id, 0, fmt.Sprint(i))
	}
	_, err := s.Put(t.Context(), change("d", 0), "", []byte("4"))
	var invalid *shelf.InvalidError
	require.ErrorAs(t, err, &invalid)
	require.Equal(t, "the store has 3 notes and takes no more: delete one, or replace one", invalid.Message)
	_, err = s.Put(t.Context(), change("a", 0), "", []byte("5"))
	requireConflict(t, err, 1) // it is no new one
	put(t, s, "a", 1, "5")     // to replace one needs no room

	for _, id := range []string{"c", "b"} {
		clk.Set(clk.Now().Add(time.Minute))
		_, err := s.Delete(t.Context(), change(id, 1))
		require.NoError(t, err)
	}
	put(t, s, "d", 0, "4")
	require.Equal(t, []string{"a 2 Title of 5", "b 2 Title of 1 -", "d 1 Title of 4"}, heads(t, s.List(t.Context())))

	// The one that is to be forgotten is put again.
	store.Add(storagetest.Rule{Op: "ForgetDocument", Times: 1, Before: func() error {
		put(t, s, "b", 2, "6")
		return nil
	}})
	put(t, s, "e", 0, "7")
	require.Equal(t, []string{"a 2 Title of 5", "b 3 Title of 6", "d 1 Title of 4", "e 1 Title of 7"}, heads(t, s.List(t.Context())))
}

// TestDamaged: a damaged version is not passed on. One that is not JSON can be replaced. A store that is away is not taken
// for an empty one.
func TestDamaged(t *testing.T) {
	s, store, _ := newShelf()
	put(t, s, "a", 0, `{"half`)
	_, err := s.Get(t.Context(), "a", 0)
	require.ErrorIs(t, err, storage.ErrCorrupt, "it is not JSON")
	put(t, s, "a", 1, "2")
	for _, why := range []error{storage.ErrCorrupt, storage.ErrUnavailable} {
		store.Fail("Document", blocks.Range{}, -1, why)
		_, err = s.Get(t.Context(), "a", 0)
		require.ErrorIs(t, err, why)
		_, err = s.Put(t.Context(), change("b", 0), "", []byte("1"))
		require.ErrorIs(t, err, why)
		_, err = s.Delete(t.Context(), change("a", 2))
		require.ErrorIs(t, err, why)
		require.ErrorIs(t, last(s.Versions(t.Context(), "a")), why)
		store.Heal()
	}
	require.Equal(t, []string{"a 2 Title of 2", `a 1 Title of {"half`}, heads(t, s.Versions(t.Context(), "a")))
	key := storage.ItemKey{Kind: "note.old/a", ID: fmt.Sprintf("%019d", 1)}
	require.NoError(t, store.PutItems(t.Context(), []storage.Item{{ItemKey: key, Value: []byte("by hand")}}))
	_, err = s.Get(t.Context(), "a", 1)
	require.ErrorIs(t, err, storage.ErrCorrupt)
	require.ErrorContains(t, err, `note "a", version 0000000000000000001`)
}

// TestArchive: nothing takes the place of a version that is not archived. What cannot be removed from the archive is not
// shown, and goes later. Of a document that is forgotten nothing stays, and of one with one version nothing is archived.
func TestArchive(t *testing.T) {
	s, store, _ := newShelf()
	archived := func(want int) {
		t.Helper()
		n := 0
		for _, err := range store.Items(t.Context(), "note.old/a", "", "") {
			require.NoError(t, err)
			n++
		}
		require.Equal(t, want, n)
	}
	put(t, s, "a", 0, "1")
	store.Fail("PutItems", blocks.Range{}, -1, storage.ErrUnavailable)
	_, err := s.Put(t.Context(), change("a", 1), "", []byte("2"))
	require.ErrorIs(t, err, storage.ErrUnavailable)
	require.Equal(t, []string{"a 1 Title of 1"}, heads(t, s.Versions(t.Context(), "a")))
	store.Heal()
	store.Fail("DeleteItems", blocks.Range{}, -1, storage.ErrTimeout)
	for base := range int64(4) {
		put(t, s, "a", base+1, fmt.Sprint(base+2))
	}
	archived(4)
	require.Equal(t, []string{"a 5 Title of 5", "a 4 Title of 4", "a 3 Title of 3"}, heads(t, s.Versions(t.Context(), "a")))
	_, err = s.Get(t.Context(), "a", 2)
	requireMissing(t, err, `the note "a" has no version 2; these versions are kept: 3, 4, 5`)
	store.Heal()
	put(t, s, "a", 5, "6")
	archived(2)

	_, err = s.Delete(t.Context(), change("a", 6))
	require.NoError(t, err)
	for _, id := range []string{"b", "c", "d"} {
		put(t, s, id, 0, "1")
	}
	archived(0)
	put(t, s, "b", 1, "2")
	_, err = s.Delete(t.Context(), change("b", 2))
	require.NoError(t, err)
	put(t, s, "a", 0, "new")
	require.Equal(t, []string{"a 1 Title of new"}, heads(t, s.Versions(t.Context(), "a")))

	one := shelf.New(shelf.Options{Documents: store, Clock: clock.NewSimulated(start), Kind: "note", MaxBytes: maxBytes, Kept: 1, Most: 3})
	put(t, one, "c", 1, "2")
	require.Equal(t, []string{"c 2 Title of 2"}, heads(t, one.Versions(t.Context(), "c")))
	_, err = one.Get(t.Context(), "c", 1)
	requireMissing(t, err, `the note "c" has no version 1; these versions are kept: 2`)
}

// TestCharged: what a request reads is charged to it, and a request without room reads and changes nothing.
func TestCharged(t *testing.T) {
	s, _, _ := newShelf()
	put(t, s, "a", 0, "1")
	put(t, s, "a", 1, "2")
	put(t, s, "b", 0, "3")
	with := func(bytes int64) (context.Context, *limits.Claim) {
		claim := limits.NewBudget(2*bytes, bytes).Claim(limits.NewClients(nil).ByAddress("192.0.2.1:1"))
		return limits.WithClaim(t.Context(), &claim), &claim
	}
	for name, read := range map[string]func(ctx context.Context) error{
		"list": func(ctx context.Context) error { return last(s.List(ctx)) },
		"versions": func(ctx context.Context) error {
			return last(s.Versions(ctx, "a"))
		},
	} {
		ctx, claim := with(2 * shelf.HeadBytes)
		require.NoError(t, read(ctx), name)
		require.EqualValues(t, 2*shelf.HeadBytes, claim.Held(), name)
		ctx, _ = with(2*shelf.HeadBytes - 1)
		require.ErrorIs(t, read(ctx), limits.ErrNoRoom, name)
	}
	for name, do := range map[string]func(ctx context.Context) error{
		"get": func(ctx context.Context) error { _, err := s.Get(ctx, "a", 0); return err },
		"put": func(ctx context.Context) error { _, err := s.Put(ctx, change("b", 1), "", []byte("4")); return err },
		"delete": func(ctx context.Context) error {
			_, err := s.Delete(ctx, change("a", 2))
			return err
		},
	} {
		ctx, _ := with(maxBytes - 1)
		require.ErrorIs(t, do(ctx), limits.ErrNoRoom, name)
		ctx, claim := with(maxBytes)
		if name == "get" {
			require.NoError(t, do(ctx))
			require.EqualValues(t, maxBytes, claim.Held())
		}
	}
	require.Equal(t, []string{"a 2 Title of 2", "b 1 Title of 3"}, heads(t, s.List(t.Context())))
}

func last(all iter.Seq2[storage.DocumentHead, error]) (err error) {
	for _, err = range all {
		_ = err
	}
	return err
}
