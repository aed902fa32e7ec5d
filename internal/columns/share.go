package columns

import "slices"

// entropy is how many bits so many symbols take, and the table itself.
func entropy(counts *[symbols]uint32) float64 {
	n, sum, used := 0, 0.0, 0
	for _, c := range counts {
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
	var coded []*column
	var bits []float64 // for each residual of a column
	for j := range e.columns {
		c := &e.columns[j]
		if c.flags&still == 0 {
			coded = append(coded, c)
		}
	}
	if len(coded) == 0 {
		return
	}
	bits = make([]float64, len(coded))
	order := make([]int, len(coded))
	for j, c := range coded {
		bits[j], order[j] = entropy(&c.counts)/float64(len(c.residuals)), j
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case bits[a] < bits[b]:
			return -1
		case bits[a] > bits[b]:
			return 1
		}
		return 0
	})
	groups := make([][symbols]uint32, max(1, min(maxTables, len(coded)/4)))
	for k, j := range order {
		c := coded[j]
		c.table = uint8(k * len(groups) / len(order))
		add(&groups[c.table], &c.counts)
	}
	if len(groups) > 1 {
		regroup(coded, groups)
	}
	e.join(coded, groups)
}

// regroup moves each column to the group whose symbols cost it least.
func regroup(coded []*column, groups [][symbols]uint32) {
	var costs [symbols][maxTables]float64
	for g := range groups {
		n := 1
		for _, c := range groups[g] {
			n += int(c)
		}
		all := log2(n)
		for s, c := range groups[g] {
			costs[s][g] = all + 2 // it has none of these
			if c > 0 {
				costs[s][g] = min(tableLog, all-log2(int(c)))
			}
		}
		groups[g] = [symbols]uint32{}
	}
	for _, c := range coded {
		var cost [maxTables]float64
		for s, n := range c.counts {
			if n > 0 {
				for g := range cost {
					cost[g] += float64(n) * costs[s][g]
				}
			}
		}
		c.table = 0
		for g := range groups {
			if cost[g] < cost[c.table] {
				c.table = uint8(g)
			}
		}
		add(&groups[c.table], &c.counts)
	}
}

// join joins groups as long as that saves bits, and makes the tables.
func (e *Encoder) join(coded []*column, groups [][symbols]uint32) {
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
				add(&both, &groups[b])
				if saved := entropy(&groups[a]) + entropy(&groups[b]) - entropy(&both); saved > most || from < 0 && entropy(&groups[b]) == 0 {
					from, to, most = b, a, saved
				}
			}
		}
		if from < 0 {
			break
		}
		add(&groups[to], &groups[from])
		for g := range into {
			if into[g] == from {
				into[g] = to
			}
		}
	}
	var number [maxTables]uint8
	for g := range groups {
		if into[g] != g || entropy(&groups[g]) == 0 {
			continue
		}
		number[g] = uint8(len(e.tables))
		e.tables = append(e.tables, table{})
		t := &e.tables[number[g]]
		t.fit(&groups[g])
		t.forEncoding()
	}
	for _, c := range coded {
		c.table = number[into[c.table]]
	}
}

func add(to, counts *[symbols]uint32) {
	for s, c := range counts {
		to[s] += c
	}
}
