// Package faults has things go wrong by a schedule that follows from a seed, while senders that know what was
// acknowledged go on. What is there in the end integration/oracle judges.
package faults

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
)

// The flags of every test that lives through faults.
var (
	Seed   = flag.Uint64("faults.seed", 1, "which schedule of faults is lived through")
	Length = flag.Duration("faults.length", 30*time.Second, "for how long")
)

// Kind is something that can go wrong.
type Kind struct {
	Name string
	// Slot names what it happens to; of two kinds with the same one only one happens at a time.
	Slot string
	// Longest is how long it may last until it is made good.
	Longest time.Duration
	// Inject makes it happen, and returns what makes it good.
	Inject func() (heal func())
}

// Fault is a kind that happens at a time.
type Fault struct {
	At, Lasts time.Duration
	Kind      int
}

// Plan is a schedule for that long. The same seed and kinds give the same.
func Plan(seed uint64, length time.Duration, kinds []Kind) []Fault {
	rng := rand.New(rand.NewPCG(seed, 0))
	free := map[string]time.Duration{}
	var out []Fault
	for at := time.Duration(0); ; {
		at += 300*time.Millisecond + below(rng, 2500*time.Millisecond)
		if at >= length {
			return out
		}
		f := Fault{At: at, Kind: rng.IntN(len(kinds))}
		k := &kinds[f.Kind]
		f.Lasts = min(k.Longest/10+below(rng, k.Longest), length-at)
		if free[k.Slot] > at {
			continue
		}
		free[k.Slot] = at + f.Lasts + time.Second
		out = append(out, f)
	}
}

func below(rng *rand.Rand, d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }

// Format is a schedule as people read it.
func Format(plan []Fault, kinds []Kind) string {
	var b strings.Builder
	for _, f := range plan {
		fmt.Fprintf(&b, "%7.3fs %s for %s\n", f.At.Seconds(), kinds[f.Kind].Name, f.Lasts.Round(time.Millisecond))
	}
	return b.String()
}

// Live has things go wrong by the schedule of the flags. When it returns all is made good again. It returns how many
// faults there were.
func Live(t testing.TB, kinds []Kind) int {
	t.Helper()
	ctx := t.Context()
	plan := Plan(*Seed, *Length, kinds)
	t.Logf("-faults.seed=%d -faults.length=%s:\n%s", *Seed, *Length, Format(plan, kinds))
	if len(plan) == 0 {
		t.Fatal("too short for any fault")
	}
	begin := time.Now()
	slots := map[string]*sync.Mutex{}
	for _, k := range kinds {
		slots[k.Slot] = &sync.Mutex{}
	}
	var all sync.WaitGroup
	defer all.Wait()
	for _, f := range plan {
		if wait(ctx, f.At-time.Since(begin)) != nil {
			return 0
		}
		all.Go(func() {
			k := &kinds[f.Kind]
			slots[k.Slot].Lock() // what was made good before may take longer than was planned
			defer slots[k.Slot].Unlock()
			heal := k.Inject()
			defer heal()
			_ = wait(ctx, f.Lasts) // made good at once when the test ends
		})
	}
	return len(plan)
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
