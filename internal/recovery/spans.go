package recovery

import (
	"cmp"
	"slices"
)

// span is the time [fromMs, toMs), which is not empty.
type span struct{ fromMs, toMs int64 }

// spans are sorted, and no two of them touch.
type spans []span

// with returns the union of s and others, which may be empty and in any order.
func (s spans) with(others ...span) spans {
	all := slices.Concat(s, others)
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.fromMs, b.fromMs) })
	var out spans
	for _, p := range all {
		switch n := len(out); {
		case p.fromMs >= p.toMs:
		case n > 0 && p.fromMs <= out[n-1].toMs:
			out[n-1].toMs = max(out[n-1].toMs, p.toMs)
		default:
			out = append(out, p)
		}
	}
	return out
}

// in returns the intersection of s and o.
func (s spans) in(o spans) spans {
	var out spans
	for len(s) > 0 && len(o) > 0 {
		if p := (span{max(s[0].fromMs, o[0].fromMs), min(s[0].toMs, o[0].toMs)}); p.fromMs < p.toMs {
			out = append(out, p)
		}
		if s[0].toMs < o[0].toMs {
			s = s[1:]
		} else {
			o = o[1:]
		}
	}
	return out
}

// without returns what of s is not in o.
func (s spans) without(o spans) spans {
	var out spans
	for _, p := range s {
		for _, q := range o {
			if q.toMs <= p.fromMs || p.toMs <= q.fromMs {
				continue
			}
			if p.fromMs < q.fromMs {
				out = append(out, span{p.fromMs, q.fromMs})
			}
			p.fromMs = min(q.toMs, p.toMs)
		}
		if p.fromMs < p.toMs {
			out = append(out, p)
		}
	}
	return out
}
