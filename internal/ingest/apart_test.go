package ingest_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// TestReportsOutOfReach: reports whose blocks are available are acknowledged, although they share a
// commit with others that are not.
func TestReportsOutOfReach(t *testing.T) {
	testApart(t, fmt.Errorf("%w: its copies are gone", storage.ErrUnavailable), 0)
}

// TestReportsThatAreRefused: the same if the store refuses the blocks for good. Each refusal is
// counted.
func TestReportsThatAreRefused(t *testing.T) {
	testApart(t, fmt.Errorf("%w: the partition is denied", storage.ErrRefused), 2*128)
}

func testApart(t *testing.T, failure error, refused float64) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		clk, metrics := clock.System{}, prometheus.NewRegistry()
		store := storagetest.NewApart(newStore(clk))
		// A lease of ids is one block, so each source has a block of its own.
		in := ingest.Start(t.Context(), parts(store, clk, registry.Options{LeaseSize: 128}), ingest.Options{Window: 100 * time.Millisecond, Metrics: metrics})
		send := func(value float64) (errs [3]error) {
			var wg sync.WaitGroup
			for i := range errs {
				wg.Go(func() {
					r := ingest.Report{Source: fmt.Sprintf("source-%d", i)}
					for j := range 128 {
						r.Measurements = append(r.Measurements, ingest.Measurement{Metric: fmt.Sprintf("m%d", j), TimeMs: ingest.NoTime, Value: value})
					}
					_, errs[i] = in.Append(t.Context(), []ingest.Report{r})
				})
			}
			wg.Wait()
			return errs
		}
		for _, err := range send(1) {
			require.NoError(t, err)
		}
		bad := blocks.BlockAt(128, 128)
		store.Away(bad.Contains, failure)
		for range 2 {
			lost := 0
			for _, err := range send(2) {
				if err != nil {
					require.Equal(t, refused > 0, errors.Is(err, storage.ErrRefused), "%v", err)
					require.Equal(t, refused == 0, storage.IsAway(err), "%v", err)
					lost++
				}
			}
			require.Equal(t, 1, lost)
		}
		store.Away(nil, nil)
		for _, err := range send(3) {
			require.NoError(t, err)
		}
		require.InDelta(t, refused, counterOf(t, metrics, "quern_ingest_samples_refused_total"), 0)
		require.NoError(t, in.Close())
	})
}

// damagedSource is a store in which what is known of a source cannot be read.
type damagedSource struct {
	storage.Store
	name string
}

func (d damagedSource) SourceSchedules(ctx context.Context, source string) iter.Seq2[storage.Schedule, error] {
	if source != d.name {
		return d.Store.SourceSchedules(ctx, source)
	}
	return func(yield func(storage.Schedule, error) bool) {
		yield(storage.Schedule{}, fmt.Errorf("%w: in both tables", storage.ErrCorrupt))
	}
}

// TestDamagedSource: what it sends is rejected, which tells the sender not to send it again, and
// what others send along is kept.
func TestDamagedSource(t *testing.T) {
	clk := clock.System{}
	store := damagedSource{newStore(clk), "bad"}
	in := ingest.Start(t.Context(), parts(store, clk, registry.Options{}), ingest.Options{})
	report := func(source string) ingest.Report {
		return ingest.Report{Source: source, Measurements: []ingest.Measurement{{Metric: "m", TimeMs: ingest.NoTime, Value: 1}}}
	}
	res, err := in.Append(t.Context(), []ingest.Report{report("a"), report("bad"), report("b")})
	require.NoError(t, err)
	require.Equal(t, 2, res.Accepted)
	require.Len(t, res.Rejected, 1)
	require.Equal(t, 1, res.Rejected[0].Index)
	require.Equal(t, ingest.ReasonDamaged, res.Rejected[0].Reason)
	require.Contains(t, res.Rejected[0].Message, "in both tables")
	require.NoError(t, in.Close())
}

func counterOf(t *testing.T, metrics *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := metrics.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}
