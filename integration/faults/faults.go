// Package faults injects faults by a schedule that follows from a seed, while senders continue that
// know what was acknowledged. integration/oracle judges what is stored in the end.
package faults

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// The flags of every test with faults.
var (
	Seed   = flag.Uint64("faults.seed", 1, "which schedule of faults is lived through")
	Length = flag.Duration("faults.length", 30*time.Second, "for how long")
)

// Kind is a kind of fault.
type Kind struct {
	Name string
	// Slots name the places where the fault can happen. A slot has only one fault at a time.
	Slots []string
	// Longest is the maximum duration of the fault.
	Longest time.Duration
	// Inject starts the fault in a slot, and returns a function that ends it.
	Inject func(slot int) (heal func())
}

// Fault is a fault of some kind, at a time, in a slot.
type Fault struct {
	At, Lasts  time.Duration
	Kind, Slot int
}

// Plan returns a schedule of the given length. The same seed and kinds give the same schedule.
// Kinds are dealt like cards: each comes once before any comes again, unless it has to wait until
// its slot is free.
func Plan(seed uint64, length time.Duration, kinds []Kind) []Fault {
	rng := rand.New(rand.NewPCG(seed, 0))
	free := map[string]time.Duration{}
	var out []Fault
	var deck []int
	for at := time.Duration(0); ; {
		at += 200*time.Millisecond + below(rng, 1800*time.Millisecond)
		if at >= length {
			return out
		}
		if len(deck) < len(kinds) {
			deck = append(deck, rng.Perm(len(kinds))...)
		}
		slot := 0
		next := slices.IndexFunc(deck, func(kind int) bool {
			slots := kinds[kind].Slots
			slot = rng.IntN(len(slots))
			return free[slots[slot]] <= at
		})
		if next < 0 {
			continue
		}
		k := &kinds[deck[next]]
		f := Fault{At: at, Lasts: min(k.Longest/10+below(rng, k.Longest), length-at), Kind: deck[next], Slot: slot}
		deck = slices.Delete(deck, next, next+1)
		free[k.Slots[slot]] = at + f.Lasts + time.Second
		out = append(out, f)
	}
}

func below(rng *rand.Rand, d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }

// format formats a schedule for people.
func format(plan []Fault, kinds []Kind) string {
	var b strings.Builder
	for _, f := range plan {
		name := kinds[f.Kind].Name
		if len(kinds[f.Kind].Slots) > 1 {
			name += fmt.Sprintf(" (%d)", f.Slot)
		}
		fmt.Fprintf(&b, "%7.3fs %s for %s\n", f.At.Seconds(), name, f.Lasts.Round(time.Millisecond))
	}
	return b.String()
}

// mostLate is how long a fault waits for its turn.
const mostLate = 5 * time.Second

// Live injects faults by the schedule of the flags, each kind at least once. Of those whose turn comes late, since an earlier one
// took long to heal, it leaves out what it can. When it returns, all faults have ended. It returns the number of faults of each
// kind.
func Live(t testing.TB, kinds []Kind) map[string]int {
	t.Helper()
	ctx := t.Context()
	plan := Plan(*Seed, *Length, kinds)
	t.Logf("-faults.seed=%d -faults.length=%s:\n%s", *Seed, *Length, format(plan, kinds))
	slots := map[string]*sync.Mutex{}
	for i, k := range kinds {
		if !slices.ContainsFunc(plan, func(f Fault) bool { return f.Kind == i }) {
			t.Fatalf("too short for %q", k.Name)
		}
		for _, slot := range k.Slots {
			slots[slot] = &sync.Mutex{}
		}
	}
	begin := time.Now()
	var all sync.WaitGroup
	defer all.Wait()
	var mu sync.Mutex
	count := map[string]int{}
	due := func(f Fault) bool {
		mu.Lock()
		defer mu.Unlock()
		name := kinds[f.Kind].Name
		if count[name] > 0 && time.Since(begin) > f.At+mostLate {
			return false
		}
		count[name]++
		return true
	}
	for _, f := range plan {
		if wait(ctx, f.At-time.Since(begin)) != nil {
			break
		}
		all.Go(func() {
			k := &kinds[f.Kind]
			slot := slots[k.Slots[f.Slot]]
			slot.Lock() // an earlier fault may take longer to heal than planned
			defer slot.Unlock()
			if !due(f) {
				return
			}
			heal := k.Inject(f.Slot)
			defer heal()
			_ = wait(ctx, f.Lasts) // heals at once when the test ends
		})
	}
	return count
}

// For injects one fault for a time, in its first slot.
func For(t testing.TB, lasts time.Duration, k Kind) {
	t.Helper()
	t.Logf("%s for %s", k.Name, lasts)
	heal := k.Inject(0)
	_ = wait(t.Context(), lasts)
	heal()
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
