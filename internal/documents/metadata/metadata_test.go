package metadata

import (
	"bytes"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// anybody stands for many clients.
var anybody limits.Client

var up = metric.Metadata{Name: "up", Type: metric.TypeGauge, Help: "Is it?", Unit: "ratio"}

// newStore returns a store and a function that makes catalogs on it.
func newStore(t *testing.T) (*storagetest.Faulty, func(Options) *Catalog) {
	t.Helper()
	clk := clock.NewSimulated(time.UnixMilli(1_732_161_600_000))
	st := storagetest.NewFaulty(storagetest.NewModel(storagetest.TestSettings(), nil, clk))
	return st, func(o Options) *Catalog { return New(st, clk, o) }
}

func TestWhatIsNotedIsListedAndStored(t *testing.T) {
	st, open := newStore(t)
	c := open(Options{})
	require.Empty(t, c.List("", 0))
	c.Note(anybody, up)
	down := metric.Metadata{Name: "down"} // nothing but its name is known
	c.Note(anybody, down)
	require.Equal(t, []metric.Metadata{down, up}, c.List("", 0))
	require.Equal(t, []metric.Metadata{down}, c.List("", 1))
	require.Equal(t, []metric.Metadata{up}, c.List("up", 1))
	require.Empty(t, c.List("sideways", 0))
	require.Empty(t, st.Log(), "Note does no I/O")

	other := open(Options{})
	require.NoError(t, other.Refresh(t.Context()))
	require.Empty(t, other.List("", 0))
	require.NoError(t, c.Flush(t.Context()))
	require.NoError(t, other.Refresh(t.Context()))
	require.Equal(t, []metric.Metadata{down, up}, other.List("", 0))

	// The same metadata again, in either catalog, is not a change.
	st.Forget()
	for _, c := range []*Catalog{c, other} {
		c.Note(anybody, up)
		c.Note(anybody, down)
		require.NoError(t, c.Flush(t.Context()))
	}
	require.Zero(t, st.Count("PutItems"))

	// The latest metadata counts.
	changed := up
	changed.Help = "Is it still?"
	other.Note(anybody, changed)
	require.NoError(t, other.Flush(t.Context()))
	require.Equal(t, []storage.Item{{ItemKey: storage.ItemKey{Kind: Kind, ID: "up"}, Value: []byte(`{"type":"gauge","help":"Is it still?","unit":"ratio"}`)}}, st.Log()[0].Detail)
	require.NoError(t, c.Refresh(t.Context()))
	require.Equal(t, []metric.Metadata{changed}, c.List("up", 0))
}

// Metadata that could not be stored is stored later, and Refresh does not overwrite it.
func TestStoreFails(t *testing.T) {
	st, open := newStore(t)
	c := open(Options{})
	old := up
	old.Unit = ""
	first := open(Options{})
	first.Note(anybody, old)
	require.NoError(t, first.Flush(t.Context()))
	require.NoError(t, c.Refresh(t.Context()))
	c.Note(anybody, up)
	st.Fail("PutItems", blocks.Range{}, 1, storage.ErrUnavailable)
	require.ErrorIs(t, c.Flush(t.Context()), storage.ErrUnavailable)
	require.NoError(t, c.Refresh(t.Context()))
	require.Equal(t, []metric.Metadata{up}, c.List("up", 0))

	st.Fail("Items", blocks.Range{}, 1, storage.ErrTimeout)
	require.ErrorIs(t, c.Refresh(t.Context()), storage.ErrTimeout)
	require.NoError(t, c.Flush(t.Context()))
	again := open(Options{})
	require.NoError(t, again.Refresh(t.Context()))
	require.Equal(t, []metric.Metadata{up}, again.List("", 0))
}

// Every type, and every text, is read as it was stored. What is no metadata is named.
func TestStoredAndRead(t *testing.T) {
	st, open := newStore(t)
	c, other := open(Options{}), open(Options{})
	for i := range 8 {
		c.Note(anybody, metric.Metadata{Name: fmt.Sprint("näme with \x00 and space ", i), Type: metric.Type(i), Help: "\n\x00 \" Zeit ⏱", Unit: "<u>"})
	}
	require.NoError(t, c.Flush(t.Context()))
	require.NoError(t, other.Refresh(t.Context()))
	require.Equal(t, c.List("", 0), other.List("", 0))
	require.NoError(t, st.PutItems(t.Context(), []storage.Item{{ItemKey: storage.ItemKey{Kind: Kind, ID: "zz"}, Value: []byte("{")}}))
	err := other.Refresh(t.Context())
	require.ErrorIs(t, err, storage.ErrCorrupt)
	require.ErrorContains(t, err, `metric "zz"`)
}

// Metadata noted during a flush is left to the next flush.
func TestNotedWhileStoring(t *testing.T) {
	st, open := newStore(t)
	c := open(Options{})
	newer := up
	newer.Type = metric.TypeInfo
	c.Note(anybody, up)
	st.Add(storagetest.Rule{Op: "PutItems", Times: 1, Before: func() error { c.Note(anybody, newer); return nil }})
	require.NoError(t, c.Flush(t.Context()))
	require.NoError(t, c.Refresh(t.Context()))
	require.Equal(t, []metric.Metadata{newer}, c.List("", 0))
	require.NoError(t, c.Flush(t.Context()))
	other := open(Options{})
	require.NoError(t, other.Refresh(t.Context()))
	require.Equal(t, []metric.Metadata{newer}, other.List("", 0))
}

func TestBounds(t *testing.T) {
	st, open := newStore(t)
	var log bytes.Buffer
	c := open(Options{MaxNames: 3, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for _, name := range []string{"", "bad\xff", strings.Repeat("n", nameBytes+1)} {
		c.Note(anybody, metric.Metadata{Name: name, Help: "x"})
	}
	require.Empty(t, c.List("", 0))
	// Texts are truncated between characters.
	long := metric.Metadata{Name: "long", Help: "a" + strings.Repeat("é", helpBytes), Unit: strings.Repeat("u", 1000), Type: 99}
	c.Note(anybody, long)
	c.Note(anybody, metric.Metadata{Name: "odd", Help: "bad \xff help"})
	for range 2 {
		got := c.List("", 0)
		require.Equal(t, "a"+strings.Repeat("é", helpBytes/2-1), got[0].Help)
		require.Equal(t, strings.Repeat("u", unitBytes), got[0].Unit)
		require.Equal(t, metric.TypeUnknown, got[0].Type)
		require.Equal(t, "bad � help", got[1].Help)
		require.NoError(t, c.Flush(t.Context()))
		c.Note(anybody, long)
	}
	require.Equal(t, 1, st.Count("PutItems"), "what is cut the same is the same")
	for i := range 5 {
		c.Note(anybody, metric.Metadata{Name: "m" + strconv.Itoa(i)})
	}
	require.Len(t, c.List("", 0), 3)
	require.Equal(t, 1, strings.Count(log.String(), "too many metrics"), log.String())
	// Metadata of known metrics can still change.
	c.Note(anybody, metric.Metadata{Name: "m0", Unit: "bytes"})
	require.Equal(t, "bytes", c.List("m0", 0)[0].Unit)
	// Refresh keeps no more names from the store either.
	small := open(Options{MaxNames: 1})
	require.NoError(t, c.Flush(t.Context()))
	require.NoError(t, small.Refresh(t.Context()))
	require.Len(t, small.List("", 0), 1)
}

// One client, of names that it makes up, leaves half of the room to others.
func TestShareOfAClient(t *testing.T) {
	_, open := newStore(t)
	var log bytes.Buffer
	c := open(Options{MaxNames: 10, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	clients := limits.NewClients(nil)
	one, other := clients.ByAddress("192.0.2.1:1"), clients.ByAddress("192.0.2.2:1")
	c.Note(one, up)
	for i := range 100 {
		c.Note(one, metric.Metadata{Name: "made_up_" + strconv.Itoa(i)})
	}
	require.Len(t, c.List("", 0), 5)
	require.Contains(t, log.String(), "too many metrics")
	c.Note(other, metric.Metadata{Name: "down", Help: "x"})
	require.Len(t, c.List("", 0), 6)
	// It goes on to describe what is known, whoever brought it.
	for _, name := range []string{"up", "down"} {
		c.Note(one, metric.Metadata{Name: name, Help: "changed"})
		require.Equal(t, "changed", c.List(name, 0)[0].Help)
	}
	// No share binds what stands for many.
	for i := range 100 {
		c.Note(anybody, metric.Metadata{Name: "m" + strconv.Itoa(i)})
	}
	require.Len(t, c.List("", 0), 10)
}

// Note's strings are views into a buffer that is reused.
func TestNothingOfTheRequestIsKept(t *testing.T) {
	_, open := newStore(t)
	c := open(Options{})
	buf := []byte("name help unit")
	view := func(from, to int) string { return unsafe.String(&buf[from], to-from) }
	c.Note(anybody, metric.Metadata{Name: view(0, 4), Help: view(5, 9), Unit: view(10, 14)})
	clear(buf)
	require.Equal(t, []metric.Metadata{{Name: "name", Help: "help", Unit: "unit"}}, c.List("name", 0))
}

func TestConcurrent(t *testing.T) {
	_, open := newStore(t)
	c := open(Options{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 1000 {
				c.Note(anybody, metric.Metadata{Name: "m" + strconv.Itoa(i%50), Help: strconv.Itoa(i / 500)})
			}
		})
		wg.Go(func() {
			for range 20 {
				if c.Flush(t.Context()) != nil || c.Refresh(t.Context()) != nil || len(c.List("", 0)) > 50 {
					t.Error("fails")
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, c.Flush(t.Context()))
	other := open(Options{})
	require.NoError(t, other.Refresh(t.Context()))
	require.Equal(t, c.List("", 0), other.List("", 0))
	for _, m := range c.List("", 0) {
		require.Contains(t, []string{"0", "1"}, m.Help)
	}
}
