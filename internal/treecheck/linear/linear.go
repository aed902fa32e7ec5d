// Package linear is for tests: it checks that the memory of code, and its time, grow no faster than
// its input. Check measures ratios between sizes. Bytes are counted, which gives the same answer
// every time. Time counts only if QUERN_TEST_COSTS is 1, as in `make test-costs`: what else runs on
// the machine fills its caches and takes turns.
package linear

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

const (
	// factor is the size of the large input relative to the small input.
	factor = 8
	// slack is the allowed growth of time and memory beyond factor: caches get too small, buffers
	// double. Quadratic code exceeds linear growth eightfold.
	slack = 3
	// rounds is the maximum number of measurements per size. The best of each counts: other load on
	// the machine only adds.
	rounds = 6
	// leastCPU is the minimum time for the small input: shorter work is repeated, at most
	// mostRepeat times.
	leastCPU   = 500 * time.Microsecond
	mostRepeat = 1 << 10
	// freeBytes is the allowance for fixed allocations that do not depend on the input.
	freeBytes = 1 << 20
)

// Times repeats format up to about n bytes, as an input for Check. format may print the number of
// the repetition.
func Times(n int, format string) string {
	var sb strings.Builder
	for i := 0; sb.Len() < n; i++ {
		if strings.Contains(format, "%") {
			fmt.Fprintf(&sb, format, i)
		} else {
			sb.WriteString(format)
		}
	}
	return sb.String()
}

// Heap returns the bytes in use after garbage collection. Pools release their contents at the
// second collection.
func Heap() uint64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Cost is the cost of one run.
type Cost struct {
	// CPU is the time of the calling thread, zero if the system does not report it.
	CPU time.Duration
	// Bytes is the number of bytes allocated, whether or not they were freed.
	Bytes int64
}

// envCosts says that time counts.
const envCosts = "QUERN_TEST_COSTS"

// Check runs do on an input of size n and on one eight times as large. It fails if the larger takes
// more than 24 times the memory or, where time counts, the CPU time. It returns the best cost of the
// larger. Work in other goroutines counts for memory only.
func Check[I any](tb testing.TB, n int, input func(n int) I, do func(I)) Cost {
	tb.Helper()
	large, why := check(n, os.Getenv(envCosts) == "1", input, do)
	if why != "" {
		tb.Error(why)
	}
	return large
}

func check[I any](n int, timed bool, input func(n int) I, do func(I)) (large Cost, why string) {
	inputs := [2]I{input(n), input(factor * n)}
	repeat := 0
	if timed {
		repeat = 1
	}
	for timed && repeat < mostRepeat {
		took := measure(repeat, func() { do(inputs[0]) }).CPU
		if cpu() == 0 || took*time.Duration(repeat) >= leastCPU {
			break
		}
		repeat *= 2
	}
	var best [2]Cost
	for round := range rounds {
		for i := range best {
			c := measure(repeat, func() { do(inputs[i]) })
			if round == 0 {
				best[i] = c
			}
			best[i].CPU = min(best[i].CPU, c.CPU)
			best[i].Bytes = min(best[i].Bytes, c.Bytes)
		}
		if why = excess(n, best); why == "" && round > 0 {
			break
		}
	}
	return best[1], why
}

// excess says what grows too fast, "" if nothing does.
func excess(n int, best [2]Cost) string {
	small, large := best[0], best[1]
	switch {
	case large.CPU > factor*slack*small.CPU:
		return fmt.Sprintf("size %d takes %s, size %d takes %s: more than %d times that", n, small.CPU, factor*n, large.CPU, factor*slack)
	case large.Bytes > factor*slack*small.Bytes+freeBytes:
		return fmt.Sprintf("size %d allocates %d bytes, size %d allocates %d: more than %d times that", n, small.Bytes, factor*n, large.Bytes, factor*slack)
	}
	return ""
}

// measure runs do once for the memory, with empty pools, and then repeat times for the time, which is
// zero without. It returns the cost of one run.
func measure(repeat int, do func()) Cost {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.GC() // pools survive one collection
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	began := cpu()
	for range repeat {
		do()
	}
	return Cost{CPU: (cpu() - began) / time.Duration(max(1, repeat)), Bytes: int64(after.TotalAlloc - before.TotalAlloc)}
}
