package storagetest

import (
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/storage"
)

// entryCases test storage.Entries.
var entryCases = []conformanceCase{
	{"Entries", (*suite).entries, nil},
	{"EntryRanges", (*suite).entryRanges, nil},
	{"EntryLimits", (*suite).entryLimits, nil},
	{"ManyEntries", (*suite).manyEntries, nil},
	{"EntriesExpire", (*suite).entriesExpire, []Missing{MissingTTL, MissingExpire}},
}

const entryKind = "metric"

func entry(id, value string) storage.Entry {
	return storage.Entry{EntryKey: storage.EntryKey{Kind: entryKind, ID: id}, Value: []byte(value)}
}

func (s *suite) enter(es ...storage.Entry) {
	s.Helper()
	require.NoError(s, s.store.PutEntries(s.ctx, es))
}

// lists requires that exactly these entries are of a kind.
func (s *suite) lists(kind string, want ...storage.Entry) {
	s.Helper()
	equal(s, want, all(s, s.store.Entries(s.ctx, kind, "", "")))
}

func (s *suite) entries() {
	s.enter()
	s.lists(entryKind)
	require.NoError(s, s.store.DeleteEntries(s.ctx, nil))
	empty, odd, full := entry("a", ""), entry("b \x00 ⏱ é", "\x00\xff"), entry("c", strings.Repeat("\xfe", 1000))
	value := []byte("c")
	s.enter(odd, storage.Entry{EntryKey: full.EntryKey, Value: value}, empty)
	copy(value, "!")
	s.lists(entryKind, empty, odd, entry("c", "c"))
	// The last one counts, also within a call. Other kinds are others.
	s.enter(entry("c", "before"), full)
	var others []storage.Entry
	for _, kind := range []string{"m", "metric2", "metric ", "Métrique/a"} {
		other := entry("c", kind)
		other.Kind = kind
		others = append(others, other)
	}
	s.enter(others...)
	for range 2 {
		s.lists(entryKind, empty, odd, full)
		for _, other := range others {
			s.lists(other.Kind, other)
		}
		require.NoError(s, s.store.Expire(s.ctx))
		s.reopen()
	}
	for range 2 {
		require.NoError(s, s.store.DeleteEntries(s.ctx, []storage.EntryKey{odd.EntryKey, others[0].EntryKey, {Kind: "nobody's", ID: "x"}, {}}))
		s.lists(entryKind, empty, full)
		s.lists("m")
		s.reopen()
	}
	s.enter(odd)
	s.lists(entryKind, empty, odd, full)
	s.lists("")
	s.lists("metric\x00a")
}

// entryRanges: from is included, to is not, and ids order as bytes.
func (s *suite) entryRanges() {
	ids := []string{"\t", "0", "00", "a", "a\x00", "a.", "aa", "b", "é", "⏱"}
	var es []storage.Entry
	for _, id := range ids {
		es = append(es, entry(id, id))
	}
	s.enter(es...)
	for i, from := range append([]string{""}, ids...) {
		first := max(0, i-1)
		equal(s, es[first:], all(s, s.store.Entries(s.ctx, entryKind, from, "")), from)
		for j, to := range ids {
			var want []storage.Entry
			if j > first {
				want = es[first:j]
			}
			equal(s, want, all(s, s.store.Entries(s.ctx, entryKind, from, to)), from, " to ", to)
		}
		if from != "" {
			equal(s, es[first:i], all(s, s.store.Entries(s.ctx, entryKind, from, from+"\x00")), "only ", from)
		}
	}
}

func (s *suite) entryLimits() {
	largest := entry(strings.Repeat("é", storage.MaxEntryID/2), strings.Repeat("\xff", storage.MaxEntryValue))
	largest.Kind = strings.Repeat("é", storage.MaxEntryKind/2)
	s.enter(largest)
	s.lists(largest.Kind, largest)
	for name, change := range map[string]func(e *storage.Entry){
		"no kind":      func(e *storage.Entry) { e.Kind = "" },
		"no id":        func(e *storage.Entry) { e.ID = "" },
		"long kind":    func(e *storage.Entry) { e.Kind = strings.Repeat("x", storage.MaxEntryKind+1) },
		"long id":      func(e *storage.Entry) { e.ID = strings.Repeat("x", storage.MaxEntryID+1) },
		"kind: NUL":    func(e *storage.Entry) { e.Kind = "a\x00" },
		"kind: UTF-8":  func(e *storage.Entry) { e.Kind = "\xff" },
		"id: UTF-8":    func(e *storage.Entry) { e.ID = "\xff" },
		"long value":   func(e *storage.Entry) { e.Value = make([]byte, storage.MaxEntryValue+1) },
		"negative TTL": func(e *storage.Entry) { e.TTL = -1 },
	} {
		bad := entry("bad", "")
		change(&bad)
		require.ErrorIs(s, s.store.PutEntries(s.ctx, []storage.Entry{entry("good", ""), bad}), storage.ErrRefused, name)
	}
	s.lists(entryKind)
}

// manyEntries are more than a page or a batch holds.
func (s *suite) manyEntries() {
	var many []storage.Entry
	for i := range 2500 {
		many = append(many, entry(fmt.Sprintf("http_seconds_%04d", i), strings.Repeat("x", 900)))
	}
	s.enter(many...)
	s.lists(entryKind, many...)
	s.expireAt(at(1000 * 24))
	s.reopen()
	s.lists(entryKind, many...)
}

func (s *suite) entriesExpire() {
	lasting := func(id string, ttl time.Duration) storage.Entry {
		e := entry(id, id)
		e.TTL = ttl
		return e
	}
	long, middle, short := entry("a", "a"), entry("b", "b"), entry("c", "c")
	s.enter(long, lasting("b", 2*time.Hour), lasting("c", time.Hour))
	s.advance(time.Hour - time.Millisecond)
	require.NoError(s, s.store.Expire(s.ctx))
	s.lists(entryKind, long, middle, short)
	s.advance(time.Millisecond)
	for range 2 {
		s.lists(entryKind, long, middle)
		require.NoError(s, s.store.Expire(s.ctx))
	}
	// A later put has a TTL of its own.
	s.enter(short, lasting("b", 3*time.Hour), lasting("a", time.Minute))
	s.advance(2 * time.Hour)
	s.reopen()
	require.NoError(s, s.store.Expire(s.ctx))
	s.lists(entryKind, middle, short)
	s.advance(time.Hour)
	require.NoError(s, s.store.Expire(s.ctx))
	s.lists(entryKind, short)
	s.clk.Set(s.clk.Now().Add(-2 * time.Hour)) // what is gone is gone
	s.lists(entryKind, short)
}
