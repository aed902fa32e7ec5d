package access

import (
	"container/list"
	"sync"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits/admission"
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
	// ofHolder is for who logs in and out with success: that writes a line of the audit log, and a logout the document
	// of all sessions.
	ofHolder = allowance{100, 6 * time.Second}
)

// mostRemembered bounds the addresses that are remembered. Beyond it the one that failed longest ago is forgotten.
const mostRemembered = 4096

// attempts limits how often one address may guess passwords, or one holder log in and out. There is no limit for a name: whoever fails for it, from
// a few addresses, would keep its owner out. What bounds the guesses of all addresses together is that Users compare
// one password at a time.
type attempts struct {
	clk clock.Clock

	mu    sync.Mutex
	order list.List // of from, the last failed first
	of    map[from]*meter
}

// from identifies where an attempt comes from.
type from struct {
	client admission.Client
	shared string // the address, if the client is unknown since the address stands for many
	holder string // of sessions, in place of an address
}

func (f *from) allowance() allowance {
	switch {
	case f.holder != "":
		return ofHolder
	case f.shared != "":
		return ofShared
	}
	return ofAddress
}

// meter holds the time at which all failures of an address are forgotten.
type meter struct {
	until time.Duration
	place *list.Element
}

func newAttempts(clk clock.Clock) *attempts {
	return &attempts{clk: clk, of: make(map[from]*meter)}
}

// wait returns how long an address must wait before it may show a password; 0 is not at all.
func (a *attempts) wait(at from) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	m, is := a.of[at], at.allowance()
	if m == nil {
		return 0
	}
	// One more failure must keep the whole below the burst.
	return max(0, m.until-a.clk.Elapsed()-time.Duration(is.burst-1)*is.each)
}

// take counts an attempt as failed, so that those at the same time are counted too. It returns what takes that back
// if the attempt succeeds.
func (a *attempts) take(at from) (succeeded func()) {
	now := a.clk.Elapsed()
	a.add(at, at.allowance().each, now)
	return func() { a.add(at, -at.allowance().each, now) }
}

func (a *attempts) add(at from, d, now time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.of[at]
	if m == nil {
		m = &meter{place: a.order.PushFront(at)}
		a.of[at] = m
	}
	m.until = max(m.until, now) + d
	a.order.MoveToFront(m.place)
	if a.order.Len() > mostRemembered {
		delete(a.of, a.order.Remove(a.order.Back()).(from))
	}
}
