package access

import (
	"container/list"
	"crypto/sha256"
	"sync"
	"time"

	"github.com/quern/quern/internal/admission"
	"github.com/quern/quern/internal/clock"
)

// allowance is how many attempts fail before later ones must wait, and the time after which one more may.
type allowance struct {
	burst int
	each  time.Duration
}

// The allowances. An address that stands for many clients has that of many.
var (
	ofAddress = allowance{10, 6 * time.Second}
	ofShared  = allowance{100, time.Second}
	ofName    = allowance{20, 6 * time.Second}
)

// mostRemembered bounds the addresses and the names that are remembered, each by itself. Beyond it the one that
// failed longest ago is forgotten.
const mostRemembered = 4096

// attempts limits how often passwords may be guessed: by one address, and for one name. Who knows a name's password
// is not locked out by others who guess it: an address that has shown it is limited as an address only.
type attempts struct {
	clk clock.Clock

	mu               sync.Mutex
	addresses, names meters
	welcome          *recent[visitor]
}

// from identifies where an attempt comes from.
type from struct {
	client admission.Client
	shared string // the address, if the client is unknown since the address stands for many
}

func (f *from) allowance() allowance {
	if f.shared != "" {
		return ofShared
	}
	return ofAddress
}

// person is a name, in a form that takes little memory.
type person [sha256.Size]byte

// visitor is an address that has shown the password of a name.
type visitor struct {
	from from
	name person
}

func newAttempts(clk clock.Clock) *attempts {
	return &attempts{clk: clk, addresses: newMeters(), names: newMeters(), welcome: newRecent[visitor]()}
}

// wait returns how long an address must wait before it may show a password for a name; 0 is not at all.
func (a *attempts) wait(at from, name string) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, who := a.clk.Elapsed(), person(sha256.Sum256([]byte(name)))
	wait := a.addresses.wait(at, at.allowance(), now)
	if !a.welcome.has(visitor{at, who}) {
		wait = max(wait, a.names.wait(who, ofName, now))
	}
	return wait
}

// take counts an attempt as failed, so that those at the same time are counted too. It returns what takes that back
// if the attempt succeeds.
func (a *attempts) take(at from, name string) (succeeded func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, who := a.clk.Elapsed(), person(sha256.Sum256([]byte(name)))
	a.addresses.add(at, at.allowance().each, now)
	a.names.add(who, ofName.each, now)
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.addresses.add(at, -at.allowance().each, now)
		a.names.add(who, -ofName.each, now)
		a.welcome.touch(visitor{at, who})
	}
}

// meters hold for each key the time at which all its failures are forgotten.
type meters struct {
	*recent[any]
	until map[any]time.Duration
}

func newMeters() meters { return meters{newRecent[any](), make(map[any]time.Duration)} }

func (m *meters) wait(key any, is allowance, now time.Duration) time.Duration {
	// One more failure must keep the whole below the burst.
	return max(0, m.until[key]-now-time.Duration(is.burst-1)*is.each)
}

func (m *meters) add(key any, d, now time.Duration) {
	m.until[key] = max(m.until[key], now) + d
	if forgotten, ok := m.touch(key); ok {
		delete(m.until, forgotten)
	}
}

// recent is a set of the keys that were touched last, mostRemembered at most.
type recent[K comparable] struct {
	order list.List // of K, the last touched first
	at    map[K]*list.Element
}

func newRecent[K comparable]() *recent[K] { return &recent[K]{at: make(map[K]*list.Element)} }

func (r *recent[K]) has(key K) bool { return r.at[key] != nil }

// touch adds a key, or makes it the last. It returns the key that it forgot for that.
func (r *recent[K]) touch(key K) (forgotten K, ok bool) {
	if e := r.at[key]; e != nil {
		r.order.MoveToFront(e)
		return forgotten, false
	}
	r.at[key] = r.order.PushFront(key)
	if r.order.Len() <= mostRemembered {
		return forgotten, false
	}
	forgotten = r.order.Remove(r.order.Back()).(K)
	delete(r.at, forgotten)
	return forgotten, true
}
