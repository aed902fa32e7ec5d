package acceptance

import (
	"hash/fnv"
	"testing"

	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// Steps are the steps of a process at its store, and where it can be stopped. They are the
// operations of the contract. If the store that Backend.Open opens implements Steps, they are its
// own, finer steps.
type Steps interface {
	// CrashAt lets n-1 more steps happen and none after them. A negative n undoes a crash.
	CrashAt(n int)
	// Tear says whether a step can happen in part: some rows of a batch are written, or a statement
	// takes effect without an answer.
	Tear(torn bool)
	// Interrupt calls do before the n-th step from now; a negative n never calls it.
	Interrupt(n int, do func())
	// Taken returns the number of steps since the last call of CrashAt or Interrupt.
	Taken() int
	// Past returns the store without steps, for looking at it from outside.
	Past() storage.Store
}

// stepsOf returns the steps at a store, which f wraps.
func stepsOf(st storage.Store, f *storagetest.Faulty) Steps {
	if own, ok := st.(Steps); ok {
		return own
	}
	return operations{f, st}
}

// operations are the steps of a store that has none of its own.
type operations struct {
	*storagetest.Faulty
	past storage.Store
}

func (o operations) CrashAt(n int) {
	o.Forget()
	o.Faulty.CrashAt(n)
}

func (o operations) Taken() int { return len(o.Log()) }

func (o operations) Past() storage.Store { return o.past }

func (o operations) Interrupt(n int, do func()) {
	o.CrashAt(-1)
	step := func() error {
		if o.Taken() == n {
			do()
		}
		return nil
	}
	for _, op := range []string{
		"LeaseIDs", "LeasedIDs", "ClaimSchedules", "SourceSchedules", "Schedules", "Write", "RawChunks", "Rollups",
		"Heartbeat", "Workers", "Leases", "AcquireShard", "RenewShard", "ReleaseShard",
		"Slices", "NewestBegun", "BeginSlice", "Marks", "CacheBlock", "WriteRollups", "PackRaw", "DeleteCacheBlock", "DeleteMarks", "CompleteSlice", "RecordRun", "RecordError",
		"Document", "Documents", "PutDocument",
	} {
		o.Add(storagetest.Rule{Op: op, Times: -1, Before: step})
	}
}

// fate is what happens to a process at one of its steps.
type fate struct {
	name string
	// torn: the step happens in part; see Steps.
	torn bool
	// late: the step happens after others have done their work. Then the process dies, unless it
	// only stalled: then it continues as if nothing had happened.
	late, stalled bool
}

var fates = []fate{
	{name: "dies"},
	{name: "dies torn", torn: true},
	{name: "dies late", late: true},
	{name: "stalls", late: true, stalled: true},
}

// befall gives a process its fate at the k-th step from now; a negative k gives none.
func (f fate) befall(p Steps, k int, meanwhile func()) {
	p.Tear(f.torn)
	if !f.late {
		p.CrashAt(k)
		return
	}
	p.Interrupt(k, func() {
		meanwhile()
		if !f.stalled {
			p.CrashAt(1)
		}
	})
}

// never is a step number at which nothing happens.
const never = -1

// stride returns the number of steps by which a sweep advances.
func (b Backend) stride() int {
	switch {
	case *strideFlag > 0:
		return *strideFlag
	case b.Stride > 0:
		return b.Stride
	case *wholeFlag:
		return 1
	}
	return 7
}

// bySeed returns a number below n that depends on the test and the seed.
func bySeed(t *testing.T, n int) int {
	t.Helper()
	h := fnv.New64a()
	_, _ = h.Write([]byte(t.Name()))
	return int((h.Sum64() + seed(t)) % uint64(n))
}

// variants returns the variants that a sweep runs.
func variants[V any](t *testing.T, b Backend, all ...V) []V {
	t.Helper()
	if b.Sample && *strideFlag == 0 {
		i := bySeed(t, len(all))
		return all[i : i+1]
	}
	return all
}

// sweep stops a process at its steps, one at a time. It calls do with the number of the step, first
// with never. do returns the number of steps taken.
func (b Backend) sweep(t *testing.T, do func(k int) (steps int)) {
	t.Helper()
	total := do(never)
	stride := min(b.stride(), max(1, total/3)) // a short sweep has a few points too
	if b.Sample && *strideFlag == 0 {
		stride = max(1, total/4)
	}
	first := 1 + bySeed(t, stride)
	n := 0
	for k := first; k <= total; k += stride {
		do(k)
		n++
	}
	t.Logf("%d of %d steps: from %d, every %d, by seed %d", n, total, first, stride, seed(t))
}
