package faults

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/quern/quern/integration/oracle"
)

// Report describes a run and what was found after it.
type Report struct {
	*Senders
	// Faults counts the faults of each kind. Injected counts the requests that failed inside the
	// processes, by the way they failed.
	Faults, Injected map[string]int
	// Left is nil until all else has been compared.
	Left *oracle.Left
}

func (r *Report) String() string {
	var b strings.Builder
	list := func(what string, count map[string]int) {
		total := 0
		for _, n := range count {
			total += n
		}
		fmt.Fprintf(&b, "%d %s\n", total, what)
		for _, name := range slices.Sorted(maps.Keys(count)) {
			fmt.Fprintf(&b, "%8d %s\n", count[name], name)
		}
	}
	list("faults", r.Faults)
	if r.Injected != nil {
		list("requests to the store failed by injection", r.Injected)
	}
	fmt.Fprintf(&b, "%d reports, sent again %d times, for %d of which no answer came in time, and %d were refused\n",
		r.Reports.Load(), r.Again.Load(), r.Impatient.Load(), r.Refused.Load())
	if answer := r.unexpected.Load(); answer != nil {
		fmt.Fprintf(&b, "unexpected answer: %s\n", answer)
	}
	f := r.Oracle.Found()
	if r.Left == nil {
		b.WriteString("NOT COMPARED to the end, so what follows says nothing of the rest\n")
	}
	fmt.Fprintf(&b, "%d samples of %d series acknowledged: %d lost, %d doubled, %d wrong; %d roll-up rows wrong\n",
		r.Oracle.Len(), r.Oracle.Series(), f.Lost, f.Doubled, f.Wrong, f.WrongRows)
	if r.Left != nil {
		fmt.Fprintf(&b, "left: %d marks, %d cache blocks, %d open slices", r.Left.Marks, r.Left.CacheBlocks, f.OpenSlices+r.Left.OpenSlices)
	}
	return b.String()
}
