// Package cassandra keeps Quern's tables in an Apache Cassandra cluster, for any number of
// processes. The tables are in schema/, where README.md says of each what bounds its partitions.
//
// # Who orders what
//
// Of two writes of a cell Cassandra keeps the one with the higher write timestamp. If a write and a
// delete have the same timestamp, the delete wins. So:
//
//   - What a run writes or deletes carries its fence as write timestamp. Fences ascend over
//     all shards: a conditional update of one partition hands them out.
//   - What ingest writes carries this process's clock, made to ascend. Its chunks and marks have keys
//     of their own, so the order between processes does not matter.
//   - What processes decide between them (ids, series, leases, settings) is written conditionally
//     (LWT), with the servers' timestamps. No such cell is ever written in another way.
//
// A run's delete covers what the run has read. On-time rows are written while their writer's clock
// is before the slice's end plus the delay. The run takes its fence when its own clock is after
// that time. The fences of earlier runs are lower. docs/protocol.md has the rest.
package cassandra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Store implements storage.Store. Beyond the contract it holds:
//
//  1. Every request goes through session, which bounds how many wait for an answer.
//  2. A slow loop body holds up nobody: sequences are read page by page, and nothing is held
//     between pages.
//  3. Every statement that the driver may repeat is idempotent. A conditional statement may be
//     repeated only if it says so; a refusal by its own effect then leads to the same end.
//  4. No write binds a null, which would be a tombstone.
type Store struct {
	session session
	limiter *limiter
	nodes   *nodes
	clk     clock.Clock
	log     *slog.Logger
	stamps  timestamps
	tables  []string // of the levels, by bucket; tables[0] is unused

	ladder    metric.Ladder
	groupSize int
	shards    int

	mu         sync.Mutex
	epochs     blocks.Epochs
	epochsRead clock.Reading
	policies   storage.Policies

	clocks clocks // of the nodes

	// rawBytes is the mean size of the chunks in the page of raw chunks that has the largest so far.
	rawBytes atomic.Int64
}

var _ storage.Store = (*Store)(nil)

// Open connects to the cluster and opens the store in it. It refuses, with a message that says what
// to do: a keyspace without the tables, or with tables of another version; settings in opts that
// are not zero and differ from the recorded ones; a login or certificate that the servers reject; a
// data centre that does not exist; a clock that is too far off. An error that wraps
// storage.ErrUnavailable means that no server answered.
func Open(ctx context.Context, opts Options) (*Store, error) {
	opts.ensureDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	s, c, err := connect(ctx, &opts, opts.Keyspace)
	if err != nil {
		return nil, err
	}
	if slices.Contains(weak, opts.Consistency) {
		opts.Logger.Warn("with this consistency a read may miss acknowledged samples, and a run may miss marks; "+
			"use LOCAL_QUORUM if there are several copies", "consistency", opts.Consistency)
	}
	limiter := newLimiter(opts.MaxInFlight)
	st, err := open(ctx, limited(inject(s, opts.Logger), limiter), &opts, c.localDC)
	if err != nil {
		s.close()
		return nil, err
	}
	st.limiter, st.nodes = limiter, s.nodes
	return st, nil
}

func open(ctx context.Context, session session, opts *Options, localDC string) (*Store, error) {
	if err := checkVersion(ctx, session, opts); err != nil {
		return nil, err
	}
	r, err := readRecord(ctx, session)
	if err != nil {
		return nil, err
	}
	recorded := r.settings()
	if err := checkSettings(&recorded, &opts.Settings, opts.Keyspace); err != nil {
		return nil, err
	}
	if err := checkHome(ctx, session, opts.Keyspace, localDC); err != nil {
		return nil, err
	}
	if r, err = r.withPolicy(ctx, session, opts); err != nil {
		return nil, err
	}
	policies := r.Policies
	if len(policies) == 0 {
		policies = policies.Set(storage.Policy{}, 0)
	}
	if err := checkRetention(ctx, session, policies.Now().Retention, opts.Clock.Now()); err != nil {
		return nil, err
	}
	s := &Store{
		session: session, clk: opts.Clock, log: opts.Logger,
		policies: policies,
		ladder:   recorded.Ladder, groupSize: recorded.GroupSize, shards: recorded.IndexPartitions,
		epochs: r.Epochs, epochsRead: clock.Read(opts.Clock),
	}
	if err := warnOfOneCopy(ctx, session, opts, localDC); err != nil {
		return nil, err
	}
	for b := range recorded.Ladder.Top() + 1 {
		s.tables = append(s.tables, tableOf(recorded.Ladder, b))
	}
	if err := s.checkClock(ctx); err != nil {
		return nil, err
	}
	// Deletes of earlier runs must not hide what is written from now on.
	leases, err := s.readLeases(ctx)
	if err != nil {
		return nil, err
	}
	for _, l := range leases {
		s.stamps.observe(l.newest())
	}
	return s, nil
}

// Close implements storage.Store.
func (s *Store) Close() error {
	s.session.close()
	return nil
}

// NewestID implements storage.Store. It is zero, since there are several writers.
func (s *Store) NewestID() blocks.ID { return blocks.ID{} }

// Expire implements storage.Store. It removes nothing: every row expires by its TTL.
func (s *Store) Expire(ctx context.Context) error {
	if ctx.Err() != nil {
		return convert(ctx, ctx.Err())
	}
	return nil
}

// ttl is the time to live, in seconds, of a row that is kept for d; 0 means for ever.
func ttl(d time.Duration) int {
	const longest = 20 * 365 * 24 * 60 * 60 // Cassandra's own limit
	if d <= 0 {
		return 0
	}
	return int(min((d+time.Second-1)/time.Second, longest))
}

// each runs do for all of [0, n), up to limit at once, until the first error.
func each(ctx context.Context, n, limit int, do func(ctx context.Context, i int) error) error {
	if n == 1 {
		return do(ctx, 0)
	}
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(limit)
	begun := 0
	for ; begun < n && inner.Err() == nil; begun++ {
		i := begun
		g.Go(func() error { return do(inner, i) })
	}
	err := g.Wait()
	if err == nil && begun < n {
		err = convert(ctx, ctx.Err()) // what was not begun is not done
	}
	return err
}

// maxSpread is how many requests of one call run at once. The limiter bounds how many the servers
// see.
const maxSpread = 256

// Collector exports the few metrics of the client that an operator needs.
func (s *Store) Collector() prometheus.Collector { return collector{s.limiter, s.nodes, &s.clocks} }

// named puts the name of the operation before an error.
func named(op string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%s: %w", op, err)
}
