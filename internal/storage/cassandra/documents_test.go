package cassandra

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/schema"
)

func faultDocument(n int, version int64, body string) storage.Document {
	return storage.Document{DocumentHead: storage.DocumentHead{
		DocumentKey: storage.DocumentKey{Kind: "kind", ID: fmt.Sprint(n)}, Version: version, UpdatedMs: version, Title: body, Bytes: len(body),
	}, Body: []byte(body)}
}

// However a put fails, and whoever puts next: a version is one writer's, and whoever was told that it is stored finds it.
func TestFaultsOfPutDocument(t *testing.T) {
	o := place(t)
	p, other := start(t, o), start(t, o)
	for _, first := range []bool{true, false} {
		t.Run(fmt.Sprintf("first=%t", first), func(t *testing.T) {
			sweep(t, func(t *testing.T, n, k int, kind fault) bool {
				var version int64 = 1
				if !first {
					n += 10_000
					require.NoError(t, other.PutDocument(t.Context(), faultDocument(n, 1, "before")))
					version = 2
				}
				mine, theirs := faultDocument(n, version, "mine"), faultDocument(n, version, "theirs")
				waits := p.flaky.fail(k, kind)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				result := make(chan error, 1)
				go func() { result <- p.PutDocument(ctx, mine) }()
				var told error
				select {
				case <-waits:
					cancel()
					told = <-result
				case told = <-result:
				}
				reached := p.flaky.heal() > k
				if told != nil {
					require.True(t, errors.Is(told, storage.ErrTimeout) || errors.Is(told, context.Canceled), "%v", told)
				}

				err := other.PutDocument(t.Context(), theirs)
				winner := theirs
				if err != nil {
					var conflict *storage.ConflictError
					require.ErrorAs(t, err, &conflict)
					require.Equal(t, version, conflict.Newest)
					winner = mine
				} else {
					require.Error(t, told, "it was told that it is stored")
				}
				p.flaky.deliver(t)
				check := func(newest storage.Document) {
					t.Helper()
					for _, reader := range []*process{p, other} {
						got, err := reader.Document(t.Context(), mine.DocumentKey)
						require.NoError(t, err)
						require.Equal(t, newest, got)
					}
				}
				check(winner)
				again := p.PutDocument(t.Context(), mine)
				if winner.Title == "mine" {
					require.NoError(t, again, "it is its own")
				} else {
					require.ErrorIs(t, again, storage.ErrConflict)
				}
				check(winner)
				next := faultDocument(n, version+1, "next")
				require.NoError(t, other.PutDocument(t.Context(), next))
				check(next)
				return reached
			})
		})
	}
}

// What a put cannot be told, its row says: an answer that is lost leads to no conflict with itself, nor to an error.
func TestLostAnswerOfPutDocument(t *testing.T) {
	s := &unclear{}
	st := storeOver(t, s)
	mine, theirs := faultDocument(1, 2, "mine"), faultDocument(1, 2, "theirs")
	before, later := faultDocument(1, 1, "before"), faultDocument(1, 3, "later")
	for name, c := range map[string]struct {
		after storage.Document
		err   error // of the write
		want  error
	}{
		"refused by its own effect":     {mine, nil, nil},
		"lost, and stored":              {mine, storage.ErrTimeout, nil},
		"lost, and another won":         {theirs, storage.ErrTimeout, storage.ErrConflict},
		"refused":                       {theirs, nil, storage.ErrConflict},
		"lost, and not stored so far":   {before, storage.ErrTimeout, storage.ErrTimeout},
		"refused, and replaced already": {later, nil, storage.ErrTimeout},
		"refused, and forgotten":        {storage.Document{}, nil, storage.ErrConflict},
	} {
		s.rows, s.err = []storage.Document{before, c.after}, c.err
		err := st.PutDocument(t.Context(), mine)
		if c.want == nil {
			require.NoError(t, err, name)
		} else {
			require.ErrorIs(t, err, c.want, name)
		}
		require.Empty(t, s.rows, name)
	}
}

// unclear has a document at two reads, the second of which is serial, and applies no conditional write.
type unclear struct {
	recorder
	rows []storage.Document
	err  error
}

func (u *unclear) page(_ context.Context, st statement, _ int, _ []byte, dest any) ([]byte, error) {
	d := u.rows[0]
	u.rows = u.rows[1:]
	if st.serial != (len(u.rows) == 0) {
		return nil, errors.New("the last read, and no other, is serial")
	}
	if d.Version > 0 {
		*dest.(*[]documentRow) = []documentRow{{ID: d.ID, Version: d.Version, UpdatedMs: d.UpdatedMs, Title: d.Title, Bytes: d.Bytes, Body: d.Body}}
	}
	return nil, nil
}

func (u *unclear) cas(context.Context, ...statement) (bool, error) { return false, u.err }

// Items have the TTL that they were put with, and the last one of a key is written alone.
func TestItemTimeToLive(t *testing.T) {
	r := &recordedReads{}
	s := storeOver(t, r)
	for keep, want := range map[time.Duration]int{0: 0, time.Hour: 3600, 1500 * time.Millisecond: 2} {
		r.written = nil
		e := storage.Item{ItemKey: storage.ItemKey{Kind: "kind", ID: "id"}, TTL: keep}
		require.NoError(t, s.PutItems(t.Context(), []storage.Item{{ItemKey: e.ItemKey, Value: []byte("before"), TTL: 9 * time.Hour}, e}))
		require.Len(t, r.written, 1)
		require.Equal(t, []any{"kind", "id", []byte{}, want}, r.written[0].args)
	}
}

// A row whose value has expired is no item, one with an empty value is. The first page is short.
func TestPagesOfItems(t *testing.T) {
	value := func(s string) *[]byte { b := []byte(s); return &b }
	p := &itemPages{pages: [][]itemRow{{{"a", value("x")}, {"b", nil}}, {}, {{"c", value("")}}}}
	found := gather(t, storeOver(t, p).Items(t.Context(), "kind", "", ""))
	require.Equal(t, []storage.Item{
		{ItemKey: storage.ItemKey{Kind: "kind", ID: "a"}, Value: []byte("x")}, {ItemKey: storage.ItemKey{Kind: "kind", ID: "c"}, Value: []byte{}},
	}, found)
	require.Equal(t, []int{firstItems, itemRows, itemRows}, p.sizes)
}

// itemPages has these pages of items.
type itemPages struct {
	recorder
	pages [][]itemRow
	sizes []int
}

func (p *itemPages) page(_ context.Context, _ statement, size int, _ []byte, dest any) (next []byte, err error) {
	*dest.(*[]itemRow) = p.pages[len(p.sizes)]
	p.sizes = append(p.sizes, size)
	if len(p.sizes) < len(p.pages) {
		next = []byte("more")
	}
	return next, nil
}

// However a put or a delete of items fails: what was there is there, or what comes, and a repeat leads to the end.
func TestFaultsOfItems(t *testing.T) {
	p := start(t, place(t))
	sweep(t, func(t *testing.T, n, k int, kind fault) bool {
		var keys []storage.ItemKey
		items := func(value string) (es []storage.Item) {
			for i := range 4 {
				key := storage.ItemKey{Kind: fmt.Sprint("kind ", n, "-", i%2), ID: fmt.Sprint(i)}
				es, keys = append(es, storage.Item{ItemKey: key, Value: []byte(value)}), append(keys, key)
			}
			return es
		}
		read := func() (values []string) {
			for i := range 2 {
				for _, e := range gather(t, p.Items(t.Context(), fmt.Sprint("kind ", n, "-", i), "", "")) {
					values = append(values, string(e.Value))
				}
			}
			return values
		}
		require.NoError(t, p.PutItems(t.Context(), items("before")))
		put := func(ctx context.Context) error { return p.PutItems(ctx, items("after")) }
		reached := p.interrupted(t, k, kind, put)
		require.Len(t, read(), 4)
		require.NoError(t, put(t.Context()))
		p.flaky.deliver(t)
		require.Equal(t, []string{"after", "after", "after", "after"}, read())
		drop := func(ctx context.Context) error { return p.DeleteItems(ctx, keys) }
		also := p.interrupted(t, k, kind, drop)
		require.NoError(t, drop(t.Context()))
		p.flaky.deliver(t)
		require.Empty(t, read())
		return reached || also
	})
}

// recordedReads is a recorder that finds no rows, and accepts conditional writes.
type recordedReads struct{ recorder }

func (r *recordedReads) page(context.Context, statement, int, []byte, any) ([]byte, error) {
	return nil, nil
}

func (r *recordedReads) cas(context.Context, ...statement) (bool, error) { return true, nil }

// TestUpgrade applies the schema to a keyspace of each earlier version, with an item in it. What was there stays, and the
// keyspace then takes what the newer version has.
func TestUpgrade(t *testing.T) {
	migrations, err := schema.Migrations()
	require.NoError(t, err)
	o := place(t)
	for version := 1; version < len(migrations); version++ {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			o := o
			o.Keyspace += fmt.Sprint("_", version)
			s, _, err := connect(t.Context(), &o, "")
			require.NoError(t, err)
			defer s.close()
			drop := func(ctx context.Context) { require.NoError(t, ddl(ctx, s, "DROP KEYSPACE IF EXISTS "+o.Keyspace)) }
			drop(t.Context())
			defer drop(context.WithoutCancel(t.Context()))
			a := &applier{opts: &o, migrations: migrations[:version], progress: func(int, int, string) {}, owner: "old"}
			require.NoError(t, a.makeKeyspace(t.Context(), ""))
			a.session, a.cluster, err = connect(t.Context(), &o, o.Keyspace)
			require.NoError(t, err)
			defer a.session.close()
			require.NoError(t, a.apply(t.Context()))
			require.NoError(t, a.session.exec(t.Context(), 1, stmt(cqlWriteItem, "metric", "cpu", []byte("{}"), 0)))
			text, err := readSetting(t.Context(), a.session, settingVersion)
			require.NoError(t, err)
			require.Equal(t, strconv.Itoa(version), text)
			_, err = Open(t.Context(), o)
			require.ErrorIs(t, err, storage.ErrSettings)
			require.ErrorContains(t, err, "run `quern schema apply")

			for range 2 {
				require.NoError(t, ApplySchema(t.Context(), o, "", func(int, int, string) {}))
			}
			p := start(t, o)
			require.Len(t, gather(t, p.Items(t.Context(), "metric", "", "")), 1)
			require.NoError(t, p.PutDocument(t.Context(), faultDocument(1, 1, "x")))
			require.Len(t, gather(t, p.Documents(t.Context(), "kind")), 1)
			require.NoError(t, p.BeginSlice(t.Context(), storage.SliceKey{StartMs: dayMs}))
		})
	}
}
