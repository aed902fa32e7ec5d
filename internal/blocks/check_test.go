package blocks

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
)

// TestCheck: a packer notices each difference between a chunk and the samples that it was made of.
func TestCheck(t *testing.T) {
	for name, n := range map[string]int{"columns": 60, "samples": 2} {
		t.Run(name, func(t *testing.T) {
			var rows []metric.Sample
			for id := range metric.ScheduleID(3) {
				for i := range n {
					rows = append(rows, metric.Sample{Schedule: id, TimeMs: int64(i) * 1000, Value: float64(i) * 1.5})
				}
			}
			var set SampleSet
			set.Reset(Range{Start: 0, End: 3})
			require.NoError(t, set.Add(AppendSamples(nil, rows)))
			var p Packer
			chunk, err := p.Pack(&set, Range{Start: 0, End: 3}, 1000)
			require.NoError(t, err)
			check := p.checkColumns
			if !isColumns(chunk) {
				check = p.checkSamples
			}
			require.Equal(t, name == "columns", isColumns(chunk))
			require.NoError(t, check())

			last := len(p.rows) - 1
			s := &p.series[2]
			// Both forms of what the chunk was made of change; the check looks at one of them.
			for what, change := range map[string]func(){
				"a value": func() {
					s.Values[1] = math.Nextafter(s.Values[1], 9)
					if last >= 0 {
						p.rows[last].Value = math.Nextafter(p.rows[last].Value, 9)
					}
				},
				"a zero": func() {
					s.Values[0] = math.Copysign(0, -1)
					if last >= 0 {
						p.rows[0].Value = math.Copysign(0, -1)
					}
				},
				"a time": func() {
					s.Times[n-1]++
					if last >= 0 {
						p.rows[last].TimeMs++
					}
				},
				"a schedule": func() {
					s.Schedule++
					if last >= 0 {
						p.rows[last].Schedule++
					}
				},
				"one more": func() {
					s.Times, s.Values = append(s.Times, 1<<40), append(s.Values, 1)
					if last >= 0 {
						p.rows = append(p.rows, metric.Sample{Schedule: 2, TimeMs: 1 << 40})
					}
				},
				"one less": func() {
					s.Times, s.Values = s.Times[:n-1], s.Values[:n-1]
					if last >= 0 {
						p.rows = p.rows[:last]
					}
				},
				"no series": func() { p.series, p.rows = p.series[:2], p.rows[:max(0, len(p.rows)-n)] },
				"damage": func() {
					if last >= 0 {
						p.samples[len(p.samples)-1]++
					} else {
						p.columns[len(p.columns)-1]++
					}
				},
			} {
				_, err := p.Pack(&set, Range{Start: 0, End: 3}, 1000)
				require.NoError(t, err)
				s = &p.series[2]
				change()
				require.Error(t, check(), what)
			}
		})
	}
}
