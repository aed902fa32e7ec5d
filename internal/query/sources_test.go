package query_test

import (
	"context"
	"fmt"
	"iter"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
)

// forgetful is a registry's store that holds no memory.
type forgetful struct {
	storage.Registry
	next metric.ScheduleID
}

func (f *forgetful) LeaseIDs(_ context.Context, n int) (blocks.Range, error) {
	r := blocks.Range{Start: f.next, End: f.next + metric.ScheduleID(n)}
	f.next = r.End
	return r, nil
}

func (*forgetful) SourceSchedules(context.Context, string) iter.Seq2[storage.Schedule, error] {
	return func(func(storage.Schedule, error) bool) {}
}

func (*forgetful) ClaimSchedules(_ context.Context, want []storage.Claim) ([]metric.ScheduleID, error) {
	ids := make([]metric.ScheduleID, len(want))
	for i, s := range want {
		ids[i] = s.ID
	}
	return ids, nil
}

// TestBytesOfSources: the registry knows what sources with few series take, rounded up.
func TestBytesOfSources(t *testing.T) {
	const n = 10_000
	for _, c := range []struct {
		name    string
		derived bool
		each    int // series of a source
		longer  int // bytes
	}{
		{"one series", false, 1, 0},
		{"ten series", false, 10, 0},
		{"derived", true, 1, 0},
		{"long names", true, 1, 1000},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := inUse()
			x, seen := query.NewIndex(), query.NewSightings(false)
			reg := registry.New(new(forgetful), registry.Options{OnNew: x.Add, Memory: x})
			for i := range n / c.each {
				name := fmt.Sprint("s", i) + strings.Repeat("x", c.longer)
				s, err := reg.Source(t.Context(), name, c.derived)
				require.NoError(t, err)
				var all []metric.Labels
				for m := range c.each {
					labels := []metric.Label{{Name: metric.NameLabel, Value: fmt.Sprint("m", m)}}
					if c.derived {
						labels = append(labels, metric.Label{Name: "host", Value: name})
					}
					ls, err := metric.NewLabels(labels...)
					require.NoError(t, err)
					all = append(all, ls)
				}
				ids, err := s.Register(t.Context(), all)
				require.NoError(t, err)
				for _, id := range ids {
					seen.Saw([]metric.Sample{{Schedule: id, TimeMs: 1e12, Value: 1}})
				}
			}
			held, charged := float64(inUse()-before), float64(reg.Bytes())
			t.Logf("%.0f bytes a series, charged %.2f of it", held/n, charged/held)
			require.Greater(t, charged, held)
			require.Less(t, charged, 2*held)
			runtime.KeepAlive(reg)
			runtime.KeepAlive(seen)
		})
	}
}
