package storagetest

import (
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/storage"
)

// itemCases test storage.Items.
var itemCases = []conformanceCase{
	{"Items", (*suite).items, nil},
	{"ItemRanges", (*suite).itemRanges, nil},
	{"ItemLimits", (*suite).itemLimits, nil},
	{"ManyItems", (*suite).manyItems, nil},
	{"ItemsExpire", (*suite).itemsExpire, []Missing{MissingTTL, MissingExpire}},
}

const itemKind = "metric"

func item(id, value string) storage.Item {
	return storage.Item{ItemKey: storage.ItemKey{Kind: itemKind, ID: id}, Value: []byte(value)}
}

func (s *suite) enter(es ...storage.Item) {
	s.Helper()
	require.NoError(s, s.store.PutItems(s.ctx, es))
}

// lists requires that exactly these items are of a kind.
func (s *suite) lists(kind string, want ...storage.Item) {
	s.Helper()
	equal(s, want, all(s, s.store.Items(s.ctx, kind, "", "")))
}

func (s *suite) items() {
	s.enter()
	s.lists(itemKind)
	require.NoError(s, s.store.DeleteItems(s.ctx, nil))
	empty, odd, full := item("a", ""), item("b \x00 ⏱ é", "\x00\xff"), item("c", strings.Repeat("\xfe", 1000))
	value := []byte("c")
	s.enter(odd, storage.Item{ItemKey: full.ItemKey, Value: value}, empty)
	copy(value, "!")
	s.lists(itemKind, empty, odd, item("c", "c"))
	// The last one counts, also within a call. Other kinds are others.
	s.enter(item("c", "before"), full)
	var others []storage.Item
	for _, kind := range []string{"m", "metric2", "metric ", "Métrique/a"} {
		other := item("c", kind)
		other.Kind = kind
		others = append(others, other)
	}
	s.enter(others...)
	for range 2 {
		s.lists(itemKind, empty, odd, full)
		for _, other := range others {
			s.lists(other.Kind, other)
		}
		require.NoError(s, s.store.Expire(s.ctx))
		s.reopen()
	}
	for range 2 {
		require.NoError(s, s.store.DeleteItems(s.ctx, []storage.ItemKey{odd.ItemKey, others[0].ItemKey, {Kind: "nobody's", ID: "x"}, {}}))
		s.lists(itemKind, empty, full)
		s.lists("m")
		s.reopen()
	}
	s.enter(odd)
	s.lists(itemKind, empty, odd, full)
	s.lists("")
	s.lists("metric\x00a")
}

// itemRanges: from is included, to is not, and ids order as bytes.
func (s *suite) itemRanges() {
	ids := []string{"\t", "0", "00", "a", "a\x00", "a.", "aa", "b", "é", "⏱"}
	var es []storage.Item
	for _, id := range ids {
		es = append(es, item(id, id))
	}
	s.enter(es...)
	for i, from := range append([]string{""}, ids...) {
		first := max(0, i-1)
		equal(s, es[first:], all(s, s.store.Items(s.ctx, itemKind, from, "")), from)
		for j, to := range ids {
			var want []storage.Item
			if j > first {
				want = es[first:j]
			}
			equal(s, want, all(s, s.store.Items(s.ctx, itemKind, from, to)), from, " to ", to)
		}
		if from != "" {
			equal(s, es[first:i], all(s, s.store.Items(s.ctx, itemKind, from, from+"\x00")), "only ", from)
		}
	}
}

func (s *suite) itemLimits() {
	largest := item(strings.Repeat("é", storage.MaxItemID/2), strings.Repeat("\xff", storage.MaxItemValue))
	largest.Kind = strings.Repeat("é", storage.MaxItemKind/2)
	s.enter(largest)
	s.lists(largest.Kind, largest)
	for name, change := range map[string]func(e *storage.Item){
		"no kind":      func(e *storage.Item) { e.Kind = "" },
		"no id":        func(e *storage.Item) { e.ID = "" },
		"long kind":    func(e *storage.Item) { e.Kind = strings.Repeat("x", storage.MaxItemKind+1) },
		"long id":      func(e *storage.Item) { e.ID = strings.Repeat("x", storage.MaxItemID+1) },
		"kind: NUL":    func(e *storage.Item) { e.Kind = "a\x00" },
		"kind: UTF-8":  func(e *storage.Item) { e.Kind = "\xff" },
		"id: UTF-8":    func(e *storage.Item) { e.ID = "\xff" },
		"long value":   func(e *storage.Item) { e.Value = make([]byte, storage.MaxItemValue+1) },
		"negative TTL": func(e *storage.Item) { e.TTL = -1 },
	} {
		bad := item("bad", "")
		change(&bad)
		require.ErrorIs(s, s.store.PutItems(s.ctx, []storage.Item{item("good", ""), bad}), storage.ErrRefused, name)
	}
	s.lists(itemKind)
}

// manyItems are more than a page or a batch holds.
func (s *suite) manyItems() {
	var many []storage.Item
	for i := range 2500 {
		many = append(many, item(fmt.Sprintf("http_seconds_%04d", i), strings.Repeat("x", 900)))
	}
	s.enter(many...)
	s.lists(itemKind, many...)
	s.expireAt(at(1000 * 24))
	s.reopen()
	s.lists(itemKind, many...)
}

func (s *suite) itemsExpire() {
	lasting := func(id string, ttl time.Duration) storage.Item {
		e := item(id, id)
		e.TTL = ttl
		return e
	}
	long, middle, short := item("a", "a"), item("b", "b"), item("c", "c")
	s.enter(long, lasting("b", 2*time.Hour), lasting("c", time.Hour))
	s.advance(time.Hour - time.Millisecond)
	require.NoError(s, s.store.Expire(s.ctx))
	s.lists(itemKind, long, middle, short)
	s.advance(time.Millisecond)
	for range 2 {
		s.lists(itemKind, long, middle)
		require.NoError(s, s.store.Expire(s.ctx))
	}
	// A later put has a TTL of its own.
	s.enter(short, lasting("b", 3*time.Hour), lasting("a", time.Minute))
	s.advance(2 * time.Hour)
	s.reopen()
	require.NoError(s, s.store.Expire(s.ctx))
	s.lists(itemKind, middle, short)
	s.advance(time.Hour)
	require.NoError(s, s.store.Expire(s.ctx))
	s.lists(itemKind, short)
	s.clk.Set(s.clk.Now().Add(-2 * time.Hour)) // what is gone is gone
	s.lists(itemKind, short)
}
