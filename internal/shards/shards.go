// Package shards distributes the shards of the index over the live workers, and holds their leases.
//
// The store says who lives: a heartbeat is a row that expires unless it is renewed. From the live
// workers, rendezvous hashing (Thaler and Ravishankar, 1998) gives each shard its worker. So
// workers that see the same rows agree without talking to each other, and when a worker comes or
// goes only its own shards move. While workers see different rows, the lease decides.
//
// No machine's wall clock is compared with another's. A lease ends in the store. Its holder stops
// before that by its own monotonic clock, which it reads before it asks for the lease.
package shards

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
)

// DefaultTimeout is how long a worker may be silent before others take its shards.
const DefaultTimeout = 30 * time.Second

// Store is what this package needs of a store.
type Store interface {
	Settings() storage.Settings
	CheckFit(ctx context.Context) error
	storage.Items
	AcquireShard(ctx context.Context, shard int, owner string, ttl time.Duration) (storage.Lease, error)
	RenewShard(ctx context.Context, l storage.Lease, ttl time.Duration) error
	ReleaseShard(ctx context.Context, shard int, owner string) error
}

// Member is one of the processes that share a store.
type Member struct {
	store   Store
	clk     clock.Clock
	timeout time.Duration

	self storage.Worker

	leases *prometheus.CounterVec
	held   prometheus.Gauge

	// turn has leases acquired and released one at a time. As conditional updates they all touch
	// one row or partition, and would wait for each other longer in the store.
	turn sync.Mutex

	mu sync.Mutex // not held while the store is asked: Mine must not wait for it
	// unfit is why this worker may not take part, nil when it may.
	unfit error
	// triedAt is when the last heartbeat began or ended, by the clock's Elapsed. lapsed: the one before had been
	// longer ago than the timeout, and none has been answered since.
	triedAt time.Duration
	lapsed  bool
}

// New makes a member. The timeout is both how long the others wait for its heartbeat and how long
// its leases last unless renewed; 0 means DefaultTimeout. clk gives only times that people read.
func New(store Store, clk clock.Clock, self storage.Worker, timeout time.Duration) *Member {
	m := &Member{
		store: store, clk: clk, self: self, timeout: cmp.Or(timeout, DefaultTimeout), triedAt: clk.Elapsed(),
		leases: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quern_aggregation_leases_total",
			Help: "Shard leases that this worker took, was refused because another worker holds them, or lost before it was done.",
		}, []string{"outcome"}),
		held: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "quern_aggregation_shards_held",
			Help: "Shards whose lease this worker holds now.",
		}),
	}
	for _, o := range []string{"taken", "refused", "lost"} {
		m.leases.WithLabelValues(o)
	}
	return m
}

// Collectors are the member's metrics.
func (m *Member) Collectors() []prometheus.Collector { return []prometheus.Collector{m.leases, m.held} }

// ID is this worker's name in leases, records and errors.
func (m *Member) ID() string { return m.self.ID }

// Every is how often to call Beat, and how often leases are renewed. Two attempts in a row may
// fail.
func (m *Member) Every() time.Duration { return m.timeout / 4 }

// Beat records that this worker lives. It returns ErrSettings if this process must not use the store: its
// clock is wrong, or its settings are not the store's. Until a later call succeeds the worker takes no part.
func (m *Member) Beat(ctx context.Context) error { return m.beat(ctx, m.timeout) }

// Leave lets the heartbeat expire soon, so that the others take over before they would miss this
// worker.
func (m *Member) Leave(ctx context.Context) error { return m.beat(ctx, time.Second) }

// Lapsed returns why this process must not write for now although its last heartbeat was accepted: it has tried
// none for longer than the timeout, as after it was suspended. Meanwhile others may have taken it for dead, and
// changed the settings. A process that tries and gets no answer has not lapsed: parts of a cluster may be away.
func (m *Member) Lapsed() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if silent := m.clk.Elapsed() - m.triedAt; m.lapsed || silent > m.timeout {
		return fmt.Errorf("this process made no heartbeat for longer than %s; the next one decides whether it may go on", m.timeout)
	}
	return nil
}

func (m *Member) tries() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clk.Elapsed()
	m.lapsed = m.lapsed || now-m.triedAt > m.timeout
	m.triedAt = now
}

func (m *Member) beat(ctx context.Context, ttl time.Duration) error {
	m.tries()
	err := m.store.CheckFit(ctx)
	if err == nil {
		self := m.self
		self.SeenMs = clock.NowMs(m.clk)
		err = storage.Heartbeat(ctx, m.store, self, ttl)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.triedAt = m.clk.Elapsed()
	if err == nil || errors.Is(err, storage.ErrSettings) {
		m.lapsed, m.unfit = false, err
	}
	return err
}

// ErrUnfit says that this worker may not take part for now. The error wrapped beside it says why.
var ErrUnfit = errors.New("this worker may not aggregate for now")

// Mine returns the shards that this worker is to grind now, ascending. It returns ErrUnfit and no
// shards while the last heartbeat was refused.
func (m *Member) Mine(ctx context.Context) ([]int, error) {
	m.mu.Lock()
	unfit := m.unfit
	m.mu.Unlock()
	if unfit != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnfit, unfit)
	}
	found, err := storage.Workers(ctx, m.store)
	if err != nil {
		return nil, err
	}
	self := m.self
	self.Aggregates = true // also before its first heartbeat
	var out []int
	for shard, owner := range Assign(append(found, self), m.store.Settings().IndexPartitions) {
		if owner == self.ID {
			out = append(out, shard)
		}
	}
	return out, nil
}

// Assign returns the worker for each of n shards: of the workers that aggregate, the one with the
// highest hash of shard and worker. It is "" if none aggregates.
func Assign(workers []storage.Worker, n int) []string {
	owners := make([]string, n)
	for shard := range owners {
		best := uint64(0)
		for _, w := range workers {
			if !w.Aggregates {
				continue
			}
			score := xxhash.Sum64String(strconv.Itoa(shard) + "/" + w.ID)
			if owners[shard] == "" || score > best || score == best && w.ID > owners[shard] {
				owners[shard], best = w.ID, score
			}
		}
	}
	return owners
}
