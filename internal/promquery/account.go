package promquery

import (
	"sync/atomic"

	"github.com/prometheus/prometheus/promql"
)

// account counts the samples that all selectors of a query hold against the query's limit. A storage without a
// preparation has one account per querier.
//
//  1. An Engine evaluates a query in one goroutine. It reads one selector to its end, copies what it
//     needs, and then reads the next one. So when it begins a selector, the one before gives back
//     all that it holds. The expression refers to all selectors until the query ends: without this,
//     each of them would keep the groups that it read last.
//  2. Other users may read several selectors at once. Selectors then keep their last groups, and
//     these count until the querier's end.
type account struct {
	most int64
	n    atomic.Int64 // samples held

	inTurn bool    // see 1
	now    *loader // of the selector that is read, if they are read in turn
}

// begin says that l is about to read.
func (a *account) begin(l *loader) {
	if a.inTurn && a.now != l {
		if a.now != nil {
			a.now.release()
		}
		a.now = l
	}
}

// hold counts samples that are held.
func (a *account) hold(n int) error {
	if a.n.Add(int64(n)) > a.most {
		return promql.ErrTooManySamples("query execution")
	}
	return nil
}
