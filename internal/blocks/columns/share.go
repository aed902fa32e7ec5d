package columns

import (
	"math"
	"slices"
)

// histogram counts symbols.
type histogram struct {
	counts [symbols]uint32
	top    int // symbols from here on have none
}

func (h *histogram) add(more *histogram) {
	for s, c := range more.counts[:more.top] {
		h.counts[s] += c
	}
	h.top = max(h.top, more.top)
}

// total returns how many symbols were counted.
func (h *histogram) total() int {
	n := 0
	for _, c := range h.counts[:h.top] {
		n += int(c)
	}
	return n
}

// entropy is how many bits so many symbols take, and the table itself.
func (h *histogram) entropy() float64 {
	n, sum, used := 0, 0.0, 0
	for _, c := range h.counts[:h.top] {
		if c > 0 {
			n += int(c)
			sum -= float64(c) * log2(int(c))
			used++
		}
	}
	if n == 0 {
		return 0
	}
	const perSymbol, perTable = 8, 16 // bits
	return float64(n)*log2(n) + sum + float64(perSymbol*used+perTable)
}

// share makes the tables and assigns one to each column. Columns are put into groups of like entropy, then each goes to
// the group that codes it best (a round of k-means by cost), and groups that do not earn their table are joined.
func (e *Encoder) share() {
	e.tables = e.tables[:0]
	coded := e.coded[:0]
	e.ranks = e.ranks[:0]
	for j := range e.columns {
		c := &e.columns[j]
		if c.flags&still == 0 {
			bits := c.entropy() / float64(len(c.residuals))
			e.ranks = append(e.ranks, math.Float64bits(bits)&^(maxColumns-1)|uint64(len(coded)))
			coded = append(coded, c)
		}
	}
	e.coded = coded
	if len(coded) == 0 {
		return
	}
	groups := make([]histogram, max(1, min(maxTables, len(coded)/4)))
	slices.Sort(e.ranks)
	for k, rank := range e.ranks {
		c := coded[rank%maxColumns]
		c.table = uint8(k * len(groups) / len(coded))
		groups[c.table].add(&c.histogram)
	}
	if len(groups) > 1 {
		regroup(coded, groups)
	}
	e.join(coded, groups)
}

// regroup moves each column to the group whose symbols cost it least.
func regroup(coded []*column, groups []histogram) {
	var costs [symbols][maxTables]float64
	top := 0
	for g := range groups {
		top = max(top, groups[g].top)
	}
	for g := range groups {
		all := log2(groups[g].total() + 1)
		for s, c := range groups[g].counts[:top] {
			costs[s][g] = all + 2 // it has none of these
			if c > 0 {
				costs[s][g] = min(tableLog, all-log2(int(c)))
			}
		}
		groups[g] = histogram{}
	}
	for _, c := range coded {
		var a, b, d, f float64
		for s, n := range c.counts[:c.top] {
			n, perTable := float64(n), &costs[s]
			a, b, d, f = a+n*perTable[0], b+n*perTable[1], d+n*perTable[2], f+n*perTable[3]
		}
		cost := [maxTables]float64{a, b, d, f}
		c.table = 0
		for g := range groups {
			if cost[g] < cost[c.table] {
				c.table = uint8(g)
			}
		}
		groups[c.table].add(&c.histogram)
	}
}

// join joins groups as long as that saves bits, and makes the tables.
func (e *Encoder) join(coded []*column, groups []histogram) {
	var into [maxTables]int
	for g := range groups {
		into[g] = g
	}
	for {
		from, to, most := -1, -1, 0.0
		for a := range groups {
			for b := a + 1; b < len(groups); b++ {
				if into[a] != a || into[b] != b {
					continue
				}
				both := groups[a]
				both.add(&groups[b])
				if saved := groups[a].entropy() + groups[b].entropy() - both.entropy(); saved > most || from < 0 && groups[b].entropy() == 0 {
					from, to, most = b, a, saved
				}
			}
		}
		if from < 0 {
			break
		}
		groups[to].add(&groups[from])
		for g := range into {
			if into[g] == from {
				into[g] = to
			}
		}
	}
	var number [maxTables]uint8
	for g := range groups {
		if into[g] != g || groups[g].entropy() == 0 {
			continue
		}
		number[g] = uint8(len(e.tables))
		e.tables = append(e.tables, table{})
		t := &e.tables[number[g]]
		t.fit(&groups[g].counts)
		t.forEncoding()
	}
	for _, c := range coded {
		c.table = number[into[c.table]]
	}
}
