package storage

import "iter"

// InTurn merges streams that are sorted. Of equal values those of the earlier stream come first. It ends with the first
// error.
func InTurn[T any](streams []iter.Seq2[T, error], compare func(a, b T) int) iter.Seq2[T, error] {
	if len(streams) == 1 {
		return streams[0]
	}
	return func(yield func(T, error) bool) {
		type head struct {
			value T
			err   error
			ok    bool
			next  func() (T, error, bool)
			stop  func()
		}
		heads := make([]head, len(streams))
		for i, s := range streams {
			heads[i].next, heads[i].stop = iter.Pull2(s)
		}
		defer func() {
			for _, h := range heads {
				h.stop()
			}
		}()
		for i := range heads {
			h := &heads[i]
			h.value, h.err, h.ok = h.next()
		}
		for {
			var first *head
			for i := range heads {
				h := &heads[i]
				if h.ok && h.err != nil {
					yield(h.value, h.err)
					return
				}
				if h.ok && (first == nil || compare(h.value, first.value) < 0) {
					first = h
				}
			}
			if first == nil || !yield(first.value, nil) {
				return
			}
			first.value, first.err, first.ok = first.next()
		}
	}
}
