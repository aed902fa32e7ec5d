package acceptance

import (
	"flag"
	"hash/fnv"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

var (
	seedFlag   = flag.Uint64("acceptance.seed", 0, "begin random lives with this seed, and sweeps elsewhere; also QUERN_ACCEPTANCE_SEED")
	seedsFlag  = flag.Int("acceptance.seeds", 0, "number of lives to make up")
	wholeFlag  = flag.Bool("acceptance.whole", false, "stop at every step, and make up more lives")
	strideFlag = flag.Int("acceptance.stride", 0, "how many steps a sweep goes on at a time")
)

// Steps are the steps of a process at its store, the operations of the contract, and where it can be stopped.
type Steps struct {
	*storagetest.Faulty
	// past is the store without steps, for looking at it from outside.
	past storage.Store
}

// CrashAt lets n-1 more steps happen and none after them. A negative n undoes a crash.
func (s Steps) CrashAt(n int) {
	s.Forget()
	s.Faulty.CrashAt(n)
}

// Taken returns the number of steps since the last call of CrashAt or Interrupt.
func (s Steps) Taken() int { return len(s.Log()) }

// Interrupt calls do before the n-th step from now; a negative n never calls it.
func (s Steps) Interrupt(n int, do func()) {
	s.CrashAt(-1)
	step := func() error {
		if s.Taken() == n {
			do()
		}
		return nil
	}
	for _, op := range []string{
		"LeaseIDs", "LeasedIDs", "ClaimSchedules", "SourceSchedules", "Schedules", "Write", "RawChunks", "Rollups",
		"PutItems", "Items", "Leases", "AcquireShard", "RenewShard", "ReleaseShard",
		"Slices", "NewestBegun", "BeginSlice", "Marks", "CacheBlock", "WriteRollups", "PackRaw", "DeleteCacheBlock", "DeleteMarks", "CompleteSlice",
		"Document", "Documents", "PutDocument",
	} {
		s.Add(storagetest.Rule{Op: op, Times: -1, Before: step})
	}
}

// fate is what happens to a process at one of its steps.
type fate struct {
	name string
	// torn: the step happens in part: some rows of a batch are written.
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

// seed returns the requested seed, or 0.
func seed(t *testing.T) uint64 {
	t.Helper()
	env := os.Getenv("QUERN_ACCEPTANCE_SEED")
	if env == "" {
		return *seedFlag
	}
	n, err := strconv.ParseUint(env, 10, 64)
	require.NoError(t, err)
	return n
}

// sweep stops a process at its steps, one at a time. It calls do with the number of the step, first
// with never. do returns the number of steps taken.
func (b Backend) sweep(t *testing.T, do func(k int) (steps int)) {
	t.Helper()
	total := do(never)
	stride := min(b.stride(), max(1, total/3)) // a short sweep has a few points too
	first := 1 + bySeed(t, stride)
	n := 0
	for k := first; k <= total; k += stride {
		do(k)
		n++
	}
	t.Logf("%d of %d steps: from %d, every %d, by seed %d", n, total, first, stride, seed(t))
}
