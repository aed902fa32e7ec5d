// Package linear is for tests: it holds code to time and memory that grow as its input does, and no faster. What is measured
// are ratios between sizes, so that neither a slow machine nor a busy one changes the result.
package linear

import (
	"fmt"
	"runtime"
	"testing"
	"time"
)

const (
	// factor is how much larger the second input is.
	factor = 8
	// slack is by how much more time and memory may grow: caches that become too small, buffers that double. What is quadratic
	// grows eight times too much.
	slack = 3
	// rounds is how often each size is measured at most. The best of each counts: whatever else the machine does only adds.
	rounds = 6
	// leastCPU is what the small input should take: what takes less is repeated, and at most so often.
	leastCPU   = 500 * time.Microsecond
	mostRepeat = 1 << 10
	// freeBytes are not looked at: what is allocated once, however large the input is.
	freeBytes = 1 << 20
)

// Cost is what one run takes.
type Cost struct {
	// CPU is the time of the calling thread. It is zero where the system does not tell it.
	CPU time.Duration
	// Bytes are those that were allocated, whether or not they were freed.
	Bytes int64
}

// Check runs do on an input of size n and on one of eight times that, and fails when the larger one takes more than 24
// times the time or the memory. The larger one's best is the result. What do does in other goroutines counts as memory only.
func Check[I any](tb testing.TB, n int, input func(n int) I, do func(I)) Cost {
	tb.Helper()
	large, why := check(n, input, do)
	if why != "" {
		tb.Error(why)
	}
	return large
}

func check[I any](n int, input func(n int) I, do func(I)) (large Cost, why string) {
	inputs := [2]I{input(n), input(factor * n)}
	repeat := 1
	for repeat < mostRepeat {
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

// measure runs do once for the memory, with no pool of anything to begin with, and so often for the time. What it takes once is
// the result.
func measure(repeat int, do func()) Cost {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.GC() // pools outlive one
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	began := cpu()
	for range repeat {
		do()
	}
	return Cost{CPU: (cpu() - began) / time.Duration(repeat), Bytes: int64(after.TotalAlloc - before.TotalAlloc)}
}
