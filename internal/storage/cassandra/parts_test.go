package cassandra

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gocql/gocql"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// scattered makes writes to some partitions fail.
type scattered struct {
	session
	fails func(table string, args []any) error

	mu   sync.Mutex
	sent []string
}

func (s *scattered) exec(_ context.Context, _ int64, stmts ...statement) error {
	table := strings.Fields(stmts[0].cql)[2]
	s.mu.Lock()
	s.sent = append(s.sent, fmt.Sprint(table, " ", stmts[0].args[0]))
	s.mu.Unlock()
	return s.fails(table, stmts[0].args)
}

func (s *scattered) count(table string) (n int) {
	for _, x := range s.sent {
		if strings.HasPrefix(x, table+" ") {
			n++
		}
	}
	return n
}

// batchOf returns a batch of n parts. Each part has a mark in its own shard, a raw chunk and a
// cache chunk.
func batchOf(n int) *storage.Batch {
	slice := storage.SliceKey{StartMs: dayMs}
	b := &storage.Batch{Open: []storage.SliceKey{slice}}
	for i := range n {
		start := metric.ScheduleID(i * 4)
		b.Marks = append(b.Marks, storage.PlacedMark{Partition: storage.IndexPartition{SliceKey: slice, Shard: i}, Mark: storage.Mark{Start: start}})
		b.Raw = append(b.Raw, storage.RawChunk{Group: start, SliceMs: dayMs})
		b.Cache = append(b.Cache, storage.CacheChunk{CacheKey: storage.CacheKey{SliceKey: slice, Start: start}})
		b.Parts = append(b.Parts, storage.Part{Marks: 1, Raw: 1, Cache: 1})
	}
	return b
}

func storeOver(t *testing.T, s session) *Store {
	t.Helper()
	clk := clock.NewSimulated(time.Unix(0, 0))
	return &Store{
		session: s, clk: clk, ladder: metric.DefaultLadder(), groupSize: 4, shards: 16,
		epochs: blocks.Epochs{{BlockSize: 4}}, epochsRead: clock.Read(clk), policies: storage.Policies(nil).Set(storage.Policy{}, 0),
	}
}

// A part without a quorum fails alone. A chunk is not sent if its mark has failed.
func TestPartsOfABatch(t *testing.T) {
	gone := fmt.Errorf("%w: gone", storage.ErrUnavailable)
	for _, c := range []struct {
		name   string
		fails  func(table string, args []any) error
		failed []int
	}{
		{"none", func(string, []any) error { return nil }, nil},
		{"a raw partition", func(table string, args []any) error {
			if table == "raw_metrics" && args[0] == int64(8) {
				return gone
			}
			return nil
		}, []int{2}},
		{"a cache partition", func(table string, args []any) error {
			if table == "metrics_cache" && args[2] == int64(4) {
				return gone
			}
			return nil
		}, []int{1}},
		{"two index partitions", func(table string, args []any) error {
			if table == "metrics_cache_index" && (args[2] == 0 || args[2] == 3) {
				return gone
			}
			return nil
		}, []int{0, 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &scattered{fails: c.fails}
			err := storeOver(t, s).Write(t.Context(), batchOf(5))
			if c.failed == nil {
				require.NoError(t, err)
				return
			}
			var some *storage.PartsError
			require.ErrorAs(t, err, &some)
			require.ErrorIs(t, err, storage.ErrUnavailable)
			require.Equal(t, c.failed, some.Failed)
			require.Equal(t, 5, s.count("metrics_cache_index"))
			if c.name == "two index partitions" {
				require.Equal(t, 3, s.count("raw_metrics"))
				require.Equal(t, 3, s.count("metrics_cache"))
			}
		})
	}
	t.Run("the slice", func(t *testing.T) {
		s := &scattered{fails: func(table string, _ []any) error {
			if table == "slices" {
				return gone
			}
			return nil
		}}
		err := storeOver(t, s).Write(t.Context(), batchOf(5))
		var some *storage.PartsError
		require.NotErrorAs(t, err, &some, "all of it")
		require.ErrorIs(t, err, storage.ErrUnavailable)
		require.Zero(t, s.count("metrics_cache_index"))
	})
}

// A part that is refused, or fails in an unforeseen way, fails alone, too. A part counts as refused
// only if the outcome of each of its chunks is known.
func TestPartsThatAreRefused(t *testing.T) {
	refused := fmt.Errorf("%w: the partition is denied", storage.ErrRefused)
	odd := errors.New("server error")
	s := &scattered{fails: func(table string, args []any) error {
		switch {
		case table == "raw_metrics" && args[0] == int64(4), table == "metrics_cache_index" && args[2] == 2, table == "raw_metrics" && args[0] == int64(16):
			return refused
		case table == "raw_metrics" && args[0] == int64(12), table == "metrics_cache" && args[2] == int64(16):
			return odd
		}
		return nil
	}}
	err := storeOver(t, s).Write(t.Context(), batchOf(6))
	var some *storage.PartsError
	require.ErrorAs(t, err, &some)
	require.Equal(t, []int{1, 2, 3, 4}, some.Failed)
	require.ErrorIs(t, some.Errs[0], storage.ErrRefused)
	require.ErrorIs(t, some.Errs[1], storage.ErrRefused)
	require.Equal(t, odd, some.Errs[2])
	require.NotErrorIs(t, some.Errs[0], odd)

	// All parts are refused one by one: a store that refuses is not away.
	s = &scattered{fails: func(string, []any) error { return refused }}
	b := batchOf(100)
	b.Open = nil
	err = storeOver(t, s).Write(t.Context(), b)
	require.ErrorAs(t, err, &some)
	require.Len(t, some.Failed, 100)
	for _, err := range some.Errs {
		require.ErrorIs(t, err, storage.ErrRefused)
	}
}

// If several nodes were asked and one refuses, another may have executed the request.
func TestCertain(t *testing.T) {
	refused := convert(t.Context(), plain(gocql.ErrCodeInvalid))
	require.Equal(t, refused, certain(refused, 1))
	require.ErrorIs(t, certain(refused, 2), storage.ErrTimeout)
	require.NotErrorIs(t, certain(refused, 2), storage.ErrRefused)
	require.NoError(t, certain(nil, 2))
}

// A store that is away is not asked for each part, and neither is a store that leaves many requests
// unanswered.
func TestPartsAreGivenUp(t *testing.T) {
	for name, fails := range map[string]func(table string, args []any) error{
		"away": func(string, []any) error { return storage.ErrUnavailable },
		"silent": func(table string, args []any) error {
			if table == "raw_metrics" && args[0].(int64)%8 == 0 {
				return storage.ErrTimeout
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			const n = 5000
			s := &scattered{fails: fails}
			b := batchOf(n)
			b.Open = nil
			err := storeOver(t, s).Write(t.Context(), b)
			require.True(t, storage.IsAway(err))
			failing := s.count("metrics_cache_index")
			if name == "silent" {
				failing = s.count("raw_metrics")
			}
			require.Less(t, failing, n/4)
		})
	}
}
