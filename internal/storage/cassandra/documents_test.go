package cassandra

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/schema"
)

func faultDocument(n int, version int64, body string) storage.Document {
	return storage.Document{DocumentHead: storage.DocumentHead{
		DocumentKey: storage.DocumentKey{Kind: "kind", ID: fmt.Sprint(n)}, Version: version, UpdatedMs: version, Title: body, Bytes: len(body),
	}, Body: []byte(body)}
}

// bodies returns the number of rows of document_versions that a document has.
func (p *process) bodies(t *testing.T, key storage.DocumentKey) int {
	t.Helper()
	found, err := all[versionRow](t.Context(), p.session, stmt(cqlListVersions, key.Kind, key.ID))
	require.NoError(t, err)
	return len(found)
}

// However a put fails, and whoever puts next: a version is one writer's, whoever was told that it is stored finds it, and
// what losers leave is gone after the next put.
func TestFaultsOfPutDocument(t *testing.T) {
	const keep = 2
	o := place(t)
	p, other := start(t, o), start(t, o)
	for _, first := range []bool{true, false} {
		t.Run(fmt.Sprintf("first=%t", first), func(t *testing.T) {
			sweep(t, func(t *testing.T, n, k int, kind fault) bool {
				var version int64 = 1
				if !first {
					n += 10_000
					require.NoError(t, other.PutDocument(t.Context(), faultDocument(n, 1, "before"), keep))
					version = 2
				}
				mine, theirs := faultDocument(n, version, "mine"), faultDocument(n, version, "theirs")
				waits := p.flaky.fail(k, kind)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				result := make(chan error, 1)
				go func() { result <- p.PutDocument(ctx, mine, keep) }()
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

				err := other.PutDocument(t.Context(), theirs, keep)
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
						got, err := reader.Document(t.Context(), mine.DocumentKey, 0)
						require.NoError(t, err)
						require.Equal(t, newest, got)
					}
				}
				check(winner)
				again := p.PutDocument(t.Context(), mine, keep)
				if winner.Title == "mine" {
					require.NoError(t, again, "it is its own")
				} else {
					require.ErrorIs(t, again, storage.ErrConflict)
				}
				check(winner)
				next := faultDocument(n, version+1, "next")
				require.NoError(t, other.PutDocument(t.Context(), next, keep))
				check(next)
				require.Equal(t, []storage.DocumentHead{next.DocumentHead, winner.DocumentHead}, gather(t, p.Versions(t.Context(), mine.DocumentKey)))
				require.Equal(t, keep, p.bodies(t, mine.DocumentKey), "of losers and of versions that are not kept nothing is left")
				return reached
			})
		})
	}
}

// Whatever request of a put or delete of annotations fails: what was there is there, or what comes, and a repeat leads to
// the end.
func TestFaultsOfAnnotations(t *testing.T) {
	o := place(t)
	p := start(t, o)
	read := func(t *testing.T, atMs int64) []storage.Annotation {
		return gather(t, p.Annotations(t.Context(), atMs, atMs))
	}
	for i, spans := range [][2]int64{{0, 0}, {0, 40}, {40, 0}, {40, 400}, {400, 4}} {
		t.Run(fmt.Sprint(spans), func(t *testing.T) {
			sweep(t, func(t *testing.T, n, k int, kind fault) bool {
				startMs := int64(100_000*i+1000*n) * dayMs
				a := storage.Annotation{ID: "a", StartMs: startMs, EndMs: startMs + spans[0]*dayMs, Text: "before"}
				b := storage.Annotation{ID: "a", StartMs: startMs, EndMs: startMs + spans[1]*dayMs, Text: "after", Tags: []string{"x"}}
				require.NoError(t, p.PutAnnotations(t.Context(), []storage.Annotation{a}, 0))
				put := func(ctx context.Context) error { return p.PutAnnotations(ctx, []storage.Annotation{b}, 0) }
				reached := p.interrupted(t, k, kind, put)
				got := read(t, startMs)
				require.Len(t, got, 1)
				require.Contains(t, []string{"before", "after"}, got[0].Text)
				require.NoError(t, put(t.Context()))
				p.flaky.deliver(t)
				require.Equal(t, []storage.Annotation{b}, read(t, startMs))
				require.Equal(t, []storage.Annotation{b}, read(t, b.EndMs))
				if a.EndMs > b.EndMs {
					require.Empty(t, read(t, b.EndMs+1))
				}
				drop := func(ctx context.Context) error {
					return p.DeleteAnnotations(ctx, []storage.AnnotationKey{b.Key()})
				}
				alsoReached := p.interrupted(t, k, kind, drop)
				require.NoError(t, drop(t.Context()))
				p.flaky.deliver(t)
				require.Empty(t, read(t, startMs))
				require.Empty(t, read(t, b.EndMs))
				return reached || alsoReached
			})
		})
	}
}

// Two puts of an annotation that replace a row of a writer whose clock was ahead get the same write timestamp. One of them
// counts, as a whole, and is found by its span.
func TestPutsWithOneTimestamp(t *testing.T) {
	o := place(t)
	p, other, ahead := start(t, o), start(t, o), start(t, o)
	ahead.stamps.observe(storage.Fence(time.Now().Add(20 * time.Second).UnixMicro()))
	n := 0
	for _, before := range []int64{0, 40, 400} {
		for _, spans := range [][2]int64{{0, 0}, {40, 400}, {400, 40}, {0, 40}, {40, 0}, {40, 50}} {
			n++
			startMs := int64(n) * 1000 * dayMs
			of := func(days int64, text, author string) storage.Annotation {
				return storage.Annotation{
					ID: "a", StartMs: startMs, EndMs: startMs + days*dayMs, Text: text, Author: author, Tags: []string{text}, Selector: author, UpdatedMs: days,
				}
			}
			put := func(p *process, a storage.Annotation) {
				require.NoError(t, p.PutAnnotations(t.Context(), []storage.Annotation{a}, 0))
			}
			put(ahead, of(before, "before", "before"))
			mine, theirs := of(spans[0], "a", "z"), of(spans[1], "z", "a")
			p.flaky.heal()
			p.flaky.mu.Lock()
			p.flaky.aside, p.flaky.meanwhile = 1, func() { put(other, theirs) } // after the read
			p.flaky.mu.Unlock()
			put(p, mine)
			found := gather(t, p.Annotations(t.Context(), startMs, startMs))
			require.Len(t, found, 1)
			require.Contains(t, []storage.Annotation{mine, theirs}, found[0])
			require.Equal(t, found, gather(t, p.Annotations(t.Context(), found[0].EndMs, found[0].EndMs)), "%v after %d", spans, before)
		}
	}
}

// An annotation that somebody has written by hand, and that cannot be read, is named. A put or a delete replaces it.
func TestAnnotationByHand(t *testing.T) {
	p := start(t, place(t))
	for i, replace := range []func(a storage.Annotation) error{
		func(a storage.Annotation) error {
			return p.PutAnnotations(t.Context(), []storage.Annotation{a}, 0)
		},
		func(a storage.Annotation) error {
			return p.DeleteAnnotations(t.Context(), []storage.AnnotationKey{a.Key()})
		},
	} {
		a := storage.Annotation{ID: "a", StartMs: int64(i) * dayMs, EndMs: int64(i) * dayMs}
		require.NoError(t, p.PutAnnotations(t.Context(), []storage.Annotation{a}, 0))
		p.byHand(t, "UPDATE annotations SET annotation = '{' WHERE day = %d AND start_time = %[1]d AND id = 'a'", a.StartMs)
		var err error
		for _, e := range p.Annotations(t.Context(), a.StartMs, a.StartMs) {
			err = errors.Join(err, e)
		}
		require.ErrorIs(t, err, storage.ErrCorrupt)
		require.ErrorContains(t, err, `annotation "a"`)
		require.NoError(t, replace(a))
		require.Len(t, gather(t, p.Annotations(t.Context(), a.StartMs, a.StartMs)), 1-i)
	}
}

// Annotations and their entries among the spans have the TTL that they were put with.
func TestAnnotationTimeToLive(t *testing.T) {
	r := &recordedReads{}
	s := storeOver(t, r)
	a := storage.Annotation{ID: "a", EndMs: 40 * dayMs}
	for keep, want := range map[time.Duration]int{0: 0, time.Hour: 3600, 1500 * time.Millisecond: 2} {
		r.written = nil
		require.NoError(t, s.PutAnnotations(t.Context(), []storage.Annotation{a}, keep))
		require.Len(t, r.written, 2)
		require.Equal(t, []string{cqlWriteSpan, cqlWriteAnnotation}, []string{r.written[0].cql, r.written[1].cql}, "what leads to a row comes before it")
		require.Equal(t, r.written[0].tsUs, r.written[1].tsUs)
		for _, w := range r.written {
			require.Equal(t, want, w.args[len(w.args)-1])
		}
	}
}

// recordedReads is a recorder that finds no rows, and accepts conditional writes.
type recordedReads struct{ recorder }

func (r *recordedReads) page(context.Context, statement, int, []byte, any) ([]byte, error) {
	return nil, nil
}

func (r *recordedReads) cas(context.Context, ...statement) (bool, error) { return true, nil }

// A document whose row of document_versions is missing, as after a loss of data, is named. The others are read.
func TestMissingVersion(t *testing.T) {
	o := place(t)
	p := start(t, o)
	for v := range int64(3) {
		require.NoError(t, p.PutDocument(t.Context(), faultDocument(1, v+1, fmt.Sprint(v+1)), 5))
	}
	p.byHand(t, "DELETE FROM document_versions WHERE kind = 'kind' AND id = '1' AND version = 2")
	heads := gather(t, p.Versions(t.Context(), storage.DocumentKey{Kind: "kind", ID: "1"}))
	require.Equal(t, []storage.DocumentHead{
		faultDocument(1, 3, "3").DocumentHead,
		{DocumentKey: storage.DocumentKey{Kind: "kind", ID: "1"}, Version: 2, Damaged: true},
		faultDocument(1, 1, "1").DocumentHead,
	}, heads)
	_, err := p.Document(t.Context(), heads[0].DocumentKey, 2)
	require.ErrorIs(t, err, storage.ErrCorrupt)
	require.ErrorContains(t, err, `document kind "1": version 2 is missing`)
	require.ErrorIs(t, p.PutDocument(t.Context(), faultDocument(1, 2, "2"), 5), storage.ErrConflict)
	require.NoError(t, p.PutDocument(t.Context(), faultDocument(1, 4, "4"), 5))
}

// TestUpgrade applies the schema to a keyspace of each earlier version, with a series and metadata in it. What was there
// stays, and the keyspace then takes what the newer version has.
func TestUpgrade(t *testing.T) {
	migrations, err := schema.Migrations()
	require.NoError(t, err)
	o := place(t)
	for version := 2; version < len(migrations); version++ { // before that a store had no roll-ups
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
			require.NoError(t, a.session.exec(t.Context(), 1, stmt(cqlWriteMetadata, "cpu", "gauge", "How busy.", "ratio")))
			old := storage.Annotation{ID: "old", EndMs: 5, Text: "text", Tags: []string{"x"}, Selector: "up", Author: "ann", UpdatedMs: 7}
			if version == 4 { // annotations were in columns
				require.NoError(t, a.session.exec(t.Context(), 1, stmt(
					`INSERT INTO annotations (day, start_time, id, end_time, content, tags, selector, author, updated) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
					int64(0), old.StartMs, old.ID, old.EndMs, old.Text, old.Tags, old.Selector, old.Author, old.UpdatedMs)))
			}
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
			if version == 4 {
				require.Equal(t, []storage.Annotation{old}, gather(t, p.Annotations(t.Context(), 0, 0)))
				old.Text, old.Tags = "again", nil
				require.NoError(t, p.PutAnnotations(t.Context(), []storage.Annotation{old}, 0))
				require.Equal(t, []storage.Annotation{old}, gather(t, p.Annotations(t.Context(), 0, 0)))
				require.NoError(t, p.DeleteAnnotations(t.Context(), []storage.AnnotationKey{old.Key()}))
				require.Empty(t, gather(t, p.Annotations(t.Context(), 0, 0)))
			}
			require.Len(t, gather(t, p.Metadata(t.Context())), 1)
			require.NoError(t, p.PutDocument(t.Context(), faultDocument(1, 1, "x"), 1))
			require.NoError(t, p.PutAnnotations(t.Context(), []storage.Annotation{{ID: "a", EndMs: 40 * dayMs}}, 0))
			require.NoError(t, p.BeginSlice(t.Context(), storage.SliceKey{StartMs: dayMs}))
			require.Len(t, gather(t, p.Documents(t.Context(), "kind")), 1)
			require.Len(t, gather(t, p.Annotations(t.Context(), 39*dayMs, 39*dayMs)), 1)
		})
	}
}

// A read looks at few partitions: the days of the range and the one before, and two or three of each span.
func TestPartitionsOfAnnotations(t *testing.T) {
	r := &countedReads{}
	s := storeOver(t, r)
	s.clk = clock.NewSimulated(noon)
	for _, c := range []struct {
		days, want int
	}{{0, 3}, {1, 4}, {7, 10}} {
		r.reads = map[string]int{}
		fromMs := noon.UnixMilli()
		gather(t, s.Annotations(t.Context(), fromMs, fromMs+int64(c.days)*dayMs))
		require.LessOrEqual(t, r.reads[cqlReadAnnotations], c.want)
		require.LessOrEqual(t, r.reads[cqlReadSpans], 3+3+1)
		require.Len(t, r.reads, 2)
	}
	r.reads = map[string]int{}
	gather(t, s.Annotations(t.Context(), math.MinInt64, math.MaxInt64))
	require.Equal(t, 1, r.reads[cqlListAnnotations])
	require.LessOrEqual(t, r.reads[cqlReadSpans], 3+3+1)
	require.Zero(t, r.reads[cqlReadAnnotations])
	require.True(t, slices.IsSorted(periods(storage.SpanMonth, -100*dayMs, -70*dayMs)))
}

// countedReads finds no rows, and counts the queries.
type countedReads struct {
	recorder
	reads map[string]int
}

func (c *countedReads) page(_ context.Context, st statement, _ int, _ []byte, _ any) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads[st.cql]++
	return nil, nil
}

// byHand runs a statement as cqlsh does, with the current time as timestamp.
func (p *process) byHand(t *testing.T, format string, args ...any) {
	t.Helper()
	require.NoError(t, p.session.exec(t.Context(), time.Now().UnixMicro(), stmt(fmt.Sprintf(format, args...))))
}
