package cassandra

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/acceptance"
	"github.com/quern/quern/integration/cassandratest"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
)

// TestSweeps stops processes between single requests to a real server; one operation of the
// contract is many requests. Either all requests of a process from the n-th on are lost, or the
// n-th is executed and not answered. Then another process takes over the keyspace.
// -acceptance.stride=1 goes through all requests, and -acceptance.seed begins elsewhere.
func TestSweeps(t *testing.T) {
	k := newKeyspace(t)
	acceptance.Sweep(t, acceptance.Backend{Open: k.open, Sample: true, ManyWriters: true})
}

// keyspace is emptied for each store made in it, which takes much less time than making a keyspace.
type keyspace struct {
	opts    Options
	shared  *cassandratest.Keyspace
	session *driver
	home    string
}

func newKeyspace(t *testing.T) *keyspace {
	t.Helper()
	k := &keyspace{}
	k.opts, k.shared = placeToEmpty(t)
	d, c, err := connect(t.Context(), &k.opts, k.opts.Keyspace)
	require.NoError(t, err)
	t.Cleanup(d.close)
	k.session, k.home = d, c.localDC
	return k
}

// open is an acceptance.OpenFunc.
func (k *keyspace) open(t testing.TB, s storage.Settings, r storage.Retention, clk clock.Clock) func() storage.Store {
	require.NoError(t, k.shared.Empty("runs", "errors")) // nobody reads these two
	o := k.opts
	o.Settings, o.Clock = s, clk
	o.Policy = storage.Policy{Retention: r}.Always
	_, err := recordSettings(t.Context(), k.session, &o, k.home)
	require.NoError(t, err)
	return func() storage.Store {
		f := &flaky{session: kept{k.session}, at: -1, aside: -1}
		st, err := open(t.Context(), &limited{session: f, limiter: newLimiter(o.MaxInFlight)}, &o, k.home)
		require.NoError(t, err)
		past, err := open(t.Context(), k.session, &o, k.home)
		require.NoError(t, err)
		return &mortal{Store: st, past: past, flaky: f}
	}
}

// kept is a session that stays open when its stores are closed.
type kept struct{ session }

func (kept) close() {}

// mortal is a process whose steps are its requests.
type mortal struct {
	*Store
	past  *Store
	flaky *flaky
	torn  bool
}

var _ acceptance.Steps = (*mortal)(nil)

func (m *mortal) Past() storage.Store { return m.past }

func (m *mortal) Tear(torn bool) { m.torn = torn }

func (m *mortal) CrashAt(n int) {
	kind := lost
	if m.torn {
		kind = unanswered
	}
	m.flaky.fail(n-1, kind)
	m.flaky.mu.Lock()
	defer m.flaky.mu.Unlock()
	m.flaky.dies, m.flaky.meanwhile = true, nil
}

func (m *mortal) Interrupt(n int, do func()) {
	m.CrashAt(-1)
	m.flaky.mu.Lock()
	defer m.flaky.mu.Unlock()
	m.flaky.aside, m.flaky.meanwhile = n-1, do
}

func (m *mortal) Taken() int {
	m.flaky.mu.Lock()
	defer m.flaky.mu.Unlock()
	return m.flaky.sent
}
