package query

import (
	"fmt"
	"iter"
	"slices"
	"sync"
)

// Result is an answer that is still being read. One goroutine reads it, once.
type Result[T any] struct {
	all      iter.Seq2[T, error]
	warnings Warnings
}

// All yields the answer's values. It yields at most one error, as the last pair. A value is valid until the next one.
func (r *Result[T]) All() iter.Seq2[T, error] { return r.all }

// Warnings say what the answer lacks or may have wrong because stored data is damaged or not ground
// yet. They are complete after the last value.
func (r *Result[T]) Warnings() []string { return r.warnings.List() }

// maxWarnings bounds the warnings of one answer: more of them usually have a single cause.
const maxWarnings = 20

// Warnings collect what is missing from an answer. The zero value is empty. They are safe for concurrent use.
type Warnings struct {
	mu   sync.Mutex
	all  []string
	more int
	// with are warnings that take all of these, if that is set. reads takes what these say of the times
	// of rows and samples, unless it is nil.
	with  *Warnings
	reads *Reads
}

// Add adds a warning.
func (w *Warnings) Add(format string, args ...any) {
	if w.with != nil {
		w.with.Add(format, args...)
		return
	}
	text := fmt.Sprintf(format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case slices.Contains(w.all, text): // for example from another group
	case len(w.all) == maxWarnings:
		w.more++
	default:
		w.all = append(w.all, text)
	}
}

// merge adds other warnings.
func (w *Warnings) merge(others []string) {
	for _, text := range others {
		w.Add("%s", text)
	}
}

// List returns the warnings: the first maxWarnings in full, then the number of the others.
func (w *Warnings) List() []string {
	if w.with != nil {
		return w.with.List()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	out := slices.Clone(w.all)
	if w.more > 0 {
		out = append(out, fmt.Sprintf("and %d more", w.more))
	}
	return out
}
