package explore

import (
	"context"
	"iter"
	"slices"
	"time"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// mutant breaks one rule of the protocol. It stands between a worker and its gate.
type mutant struct {
	storage.Store
	p *process

	acquire      func(l storage.Lease, err error) (storage.Lease, error)
	write        func(ctx context.Context, b *storage.Batch) error
	marks        func(ctx context.Context, p storage.IndexPartition) iter.Seq2[storage.Mark, error]
	firstMark    func(ctx context.Context, p storage.IndexPartition, from storage.MarkKey) (storage.MarkKey, bool, error)
	writeRollups func(ctx context.Context, f storage.Fence, level metric.Bucket, rows []metric.RollupRow) error
	deleteCache  func(ctx context.Context, f storage.Fence, k storage.CacheKey) error
	deleteMarks  func(ctx context.Context, f storage.Fence, p storage.IndexPartition, marks []storage.Mark) error
}

func (m *mutant) AcquireShard(ctx context.Context, shard int, owner string, ttl time.Duration) (storage.Lease, error) {
	l, err := m.Store.AcquireShard(ctx, shard, owner, ttl)
	if m.acquire != nil {
		return m.acquire(l, err)
	}
	return l, err
}

func (m *mutant) Write(ctx context.Context, b *storage.Batch) error {
	if m.write != nil {
		return m.write(ctx, b)
	}
	return m.Store.Write(ctx, b)
}

func (m *mutant) Marks(ctx context.Context, p storage.IndexPartition) iter.Seq2[storage.Mark, error] {
	if m.marks != nil {
		return m.marks(ctx, p)
	}
	return m.Store.Marks(ctx, p)
}

func (m *mutant) FirstMark(ctx context.Context, p storage.IndexPartition, from storage.MarkKey) (storage.MarkKey, bool, error) {
	if m.firstMark != nil {
		return m.firstMark(ctx, p, from)
	}
	return m.Store.FirstMark(ctx, p, from)
}

func (m *mutant) WriteRollups(ctx context.Context, f storage.Fence, level metric.Bucket, rows []metric.RollupRow) error {
	if m.writeRollups != nil {
		return m.writeRollups(ctx, f, level, rows)
	}
	return m.Store.WriteRollups(ctx, f, level, rows)
}

func (m *mutant) DeleteCacheBlock(ctx context.Context, f storage.Fence, k storage.CacheKey) error {
	if m.deleteCache != nil {
		return m.deleteCache(ctx, f, k)
	}
	return m.Store.DeleteCacheBlock(ctx, f, k)
}

func (m *mutant) DeleteMarks(ctx context.Context, f storage.Fence, p storage.IndexPartition, marks []storage.Mark) error {
	if m.deleteMarks != nil {
		return m.deleteMarks(ctx, f, p, marks)
	}
	return m.Store.DeleteMarks(ctx, f, p, marks)
}

// breaks returns a mutation that changes what do sets.
func breaks(do func(m *mutant, s storage.Store)) mutation {
	return func(p *process, s storage.Store) storage.Store {
		m := &mutant{Store: s, p: p}
		do(m, s)
		return m
	}
}

var mutants = []struct {
	name   string
	mutate mutation
	// caught are scenarios that find the mutant.
	caught []string
	// survives are scenarios that do not find it; no scenario is known that does.
	survives []string
}{
	{name: "rows are written at now", caught: []string{"next hours"}, mutate: breaks(func(m *mutant, s storage.Store) {
		m.writeRollups = func(ctx context.Context, _ storage.Fence, level metric.Bucket, rows []metric.RollupRow) error {
			return s.WriteRollups(ctx, 0, level, rows)
		}
	})},
	{name: "rows are passed on at now", caught: []string{"takeover", "takeover checked"}, mutate: breaks(func(m *mutant, s storage.Store) {
		m.write = func(ctx context.Context, b *storage.Batch) error {
			c := *b
			c.Fence = 0
			return s.Write(ctx, &c)
		}
	})},
	// The fence of this one delete is not needed. The delete names exactly the marks that were
	// read. What is handed on has the same key only before its slice is run. What a seal writes
	// anew it takes back itself.
	{name: "marks are deleted at now", survives: []string{"takeover", "next hours", "slow seal"}, mutate: breaks(func(m *mutant, s storage.Store) {
		m.deleteMarks = func(ctx context.Context, _ storage.Fence, p storage.IndexPartition, marks []storage.Mark) error {
			return s.DeleteMarks(ctx, 0, p, marks)
		}
	})},
	// This fence is not needed either: a cache that has lost chunks is not used, and the table
	// below is read.
	{name: "the cache is deleted at now", survives: []string{"takeover", "next hours", "slow seal"}, mutate: breaks(func(m *mutant, s storage.Store) {
		m.deleteCache = func(ctx context.Context, _ storage.Fence, k storage.CacheKey) error {
			return s.DeleteCacheBlock(ctx, 0, k)
		}
	})},
	{name: "no step is fenced", caught: []string{"next hours"}, mutate: breaks(func(m *mutant, s storage.Store) {
		m.writeRollups = func(ctx context.Context, _ storage.Fence, level metric.Bucket, rows []metric.RollupRow) error {
			return s.WriteRollups(ctx, 0, level, rows)
		}
		m.write = func(ctx context.Context, b *storage.Batch) error {
			c := *b
			c.Fence = 0
			return s.Write(ctx, &c)
		}
		m.deleteMarks = func(ctx context.Context, _ storage.Fence, p storage.IndexPartition, marks []storage.Mark) error {
			return s.DeleteMarks(ctx, 0, p, marks)
		}
		m.deleteCache = func(ctx context.Context, _ storage.Fence, k storage.CacheKey) error {
			return s.DeleteCacheBlock(ctx, 0, k)
		}
	})},
	{name: "the fence is constant", caught: []string{"next hours", "late data"}, mutate: breaks(func(m *mutant, _ storage.Store) {
		m.acquire = func(l storage.Lease, err error) (storage.Lease, error) {
			if err == nil {
				l.Fence = storage.Fence(at(12, 2).UnixMicro())
			}
			return l, err
		}
	})},
	{name: "all marks of the partition are deleted", caught: []string{"takeover", "takeover checked", "takeover refused", "death"}, mutate: breaks(func(m *mutant, s storage.Store) {
		m.deleteMarks = func(ctx context.Context, f storage.Fence, p storage.IndexPartition, _ []storage.Mark) error {
			var all []storage.Mark
			for mark, err := range s.Marks(ctx, p) {
				if err != nil {
					return err
				}
				all = append(all, mark)
			}
			return s.DeleteMarks(ctx, f, p, all)
		}
	})},
	{name: "marks are deleted first", caught: []string{"takeover", "takeover checked", "takeover refused", "death"}, mutate: breaks(func(m *mutant, s storage.Store) {
		read := map[storage.IndexPartition][]storage.Mark{}
		m.marks = func(ctx context.Context, p storage.IndexPartition) iter.Seq2[storage.Mark, error] {
			return func(yield func(storage.Mark, error) bool) {
				for mark, err := range s.Marks(ctx, p) {
					if err == nil {
						read[p] = append(read[p], mark)
					}
					if !yield(mark, err) {
						return
					}
				}
			}
		}
		m.writeRollups = func(ctx context.Context, f storage.Fence, level metric.Bucket, rows []metric.RollupRow) error {
			for p, marks := range read {
				of := slices.DeleteFunc(slices.Clone(marks), func(m storage.Mark) bool {
					return p.Bucket != level-1 || m.TimeMs != rows[0].TimeMs || m.Start > rows[0].Schedule
				})
				if len(of) == 0 {
					continue
				}
				if err := s.DeleteMarks(ctx, f, p, of[len(of)-1:]); err != nil {
					return err
				}
			}
			return s.WriteRollups(ctx, f, level, rows)
		}
	})},
	{name: "marks are deleted before rows are passed on", caught: []string{"takeover", "takeover checked", "takeover refused", "death"}, mutate: breaks(func(m *mutant, s storage.Store) {
		// The write waits until the marks are gone.
		var held *storage.Batch
		m.write = func(_ context.Context, b *storage.Batch) error {
			held = b
			return nil
		}
		m.deleteMarks = func(ctx context.Context, f storage.Fence, p storage.IndexPartition, marks []storage.Mark) error {
			if err := s.DeleteMarks(ctx, f, p, marks); err != nil || held == nil {
				return err
			}
			b := held
			held = nil
			return s.Write(ctx, b)
		}
	})},
	{name: "the cache is deleted after the marks", caught: []string{"takeover checked", "takeover refused", "death"}, mutate: breaks(func(m *mutant, s storage.Store) {
		var held []storage.CacheKey
		m.deleteCache = func(_ context.Context, _ storage.Fence, k storage.CacheKey) error {
			held = append(held, k)
			return nil
		}
		m.deleteMarks = func(ctx context.Context, f storage.Fence, p storage.IndexPartition, marks []storage.Mark) error {
			if err := s.DeleteMarks(ctx, f, p, marks); err != nil {
				return err
			}
			for _, k := range held {
				if err := s.DeleteCacheBlock(ctx, f, k); err != nil {
					return err
				}
			}
			held = nil
			return nil
		}
	})},
	{name: "a slice is complete before others are done", caught: []string{"takeover", "takeover refused"}, mutate: breaks(func(m *mutant, _ storage.Store) {
		m.firstMark = func(context.Context, storage.IndexPartition, storage.MarkKey) (storage.MarkKey, bool, error) {
			return storage.MarkKey{}, false, nil
		}
	})},
	{name: "ingest forgets what a failed flush left", caught: []string{"landed"}, mutate: func(p *process, s storage.Store) storage.Store {
		p.w.forgets = true
		return s
	}},
	{name: "ingest does not ask again when it has put marks", caught: []string{"put and a beginning"}, mutate: func(p *process, s storage.Store) storage.Store {
		p.w.asksOnce = true
		return s
	}},
	{name: "what is passed on has new ids", caught: []string{"takeover", "takeover torn"}, mutate: breaks(func(m *mutant, s storage.Store) {
		ids := blocks.NewIDs(uint64(m.p.name[0]) << 16)
		m.write = func(ctx context.Context, b *storage.Batch) error {
			c := *b
			c.Marks, c.Cache = slices.Clone(b.Marks), slices.Clone(b.Cache)
			for i := range c.Cache {
				c.Cache[i].ID = ids.Next(m.p.clk.Now().UnixMilli())
				c.Marks[i].ID = c.Cache[i].ID
			}
			return s.Write(ctx, &c)
		}
	})},
}
