package parts

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/storage"
)

// perSource is how many series a source of these benchmarks has.
const perSource = 20

// pods are the series of a cluster: a pod is a source, with ten labels on each of its series. Three of the labels are the
// same on all series, and two have a value for each pod.
type pods struct {
	names [perSource]string
}

func newPods() *pods {
	p := new(pods)
	for i := range p.names {
		p.names[i] = fmt.Sprintf("container_metric_%02d_total", i)
	}
	return p
}

// series returns the series of a pod, of which the ids begin at first and are step apart.
func (p *pods) series(pod, first, step int) []storage.Schedule {
	name := fmt.Sprintf("app-%d-%08x", pod%997, uint32(pod)*2654435761)
	source := name + ":9100"
	node := fmt.Sprintf("node-%05d", pod/20)
	namespace := fmt.Sprintf("team-%02d", pod%50)
	cluster := fmt.Sprintf("cluster-%d", pod/20%4)
	container := fmt.Sprintf("container-%03d", pod%300)
	out := make([]storage.Schedule, perSource)
	for i := range out {
		out[i] = storage.Schedule{ID: metric.ScheduleID(first + i*step), Labels: metric.Labels{
			{Name: "__name__", Value: p.names[i]},
			{Name: "cluster", Value: cluster},
			{Name: "container", Value: container},
			{Name: "env", Value: "production"},
			{Name: "job", Value: "kubernetes-pods"},
			{Name: "namespace", Value: namespace},
			{Name: "node", Value: node},
			{Name: "pod", Value: name},
			{Name: "region", Value: "eu-central-1"},
			{Name: "source", Value: source},
		}}
	}
	return out
}

// sourcesAtOnce is how many sources share a range of ids where their series are interleaved.
const sourcesAtOnce = 8

// orders are the orders in which the series of pods are added.
var orders = []struct {
	name string
	// add calls visit for the pods of n series.
	add func(p *pods, n int, visit func([]storage.Schedule))
}{
	{"in order", func(p *pods, n int, visit func([]storage.Schedule)) {
		for pod := range n / perSource {
			visit(p.series(pod, pod*perSource, 1))
		}
	}},
	{"interleaved", func(p *pods, n int, visit func([]storage.Schedule)) {
		for pod := range n / perSource {
			visit(p.series(pod, pod/sourcesAtOnce*sourcesAtOnce*perSource+pod%sourcesAtOnce, sourcesAtOnce))
		}
	}},
	{"random", func(p *pods, n int, visit func([]storage.Schedule)) {
		for _, pod := range rand.New(rand.NewPCG(1, 1)).Perm(n / perSource) {
			visit(p.series(pod, pod/sourcesAtOnce*sourcesAtOnce*perSource+pod%sourcesAtOnce, sourcesAtOnce))
		}
	}},
}

// userTime returns the CPU time of this process outside the kernel.
func userTime(b *testing.B) time.Duration {
	var use syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &use))
	return time.Duration(use.Utime.Nano())
}

// perTurn reports the CPU time of each turn since a time.
func perTurn(b *testing.B, since time.Duration) {
	b.ReportMetric(float64((userTime(b)-since).Nanoseconds())/float64(b.N), "user-ns/op")
}

// BenchmarkIndexAdd adds the series of pods. One turn takes minutes in all: give -benchtime=1x.
func BenchmarkIndexAdd(b *testing.B) {
	p := newPods()
	for _, n := range []int{100_000, 1_000_000, 3_000_000} {
		for _, order := range orders {
			b.Run(fmt.Sprintf("%d/%s", n, order.name), func(b *testing.B) {
				for range b.N {
					before := inUse()
					x := query.NewIndex()
					var spent, longest time.Duration
					user := userTime(b)
					order.add(p, n, func(all []storage.Schedule) {
						began := time.Now()
						x.Add(all)
						took := time.Since(began)
						spent += took
						longest = max(longest, took)
					})
					user = userTime(b) - user
					held := inUse() - before
					b.ReportMetric(float64(n)/spent.Seconds(), "series/s")
					b.ReportMetric(float64(user.Nanoseconds())/float64(n), "user-ns/series")
					b.ReportMetric(float64(longest.Microseconds()), "longest-µs")
					b.ReportMetric(float64(held)/float64(n), "B/series")
					b.ReportMetric(float64(x.Bytes())/float64(n), "charged-B/series")
					runtime.KeepAlive(x)
				}
			})
		}
	}
}

// BenchmarkIndexRead asks an index of a million series.
func BenchmarkIndexRead(b *testing.B) {
	const n = 1_000_000
	x, p := query.NewIndex(), newPods()
	orders[1].add(p, n, x.Add)
	last := p.series(n/perSource-1, 0, 1)[0].Labels.Get("pod")
	for _, c := range []struct{ name, sel string }{
		{"one", fmt.Sprintf(`container_metric_07_total{pod=%q}`, last)},
		{"metric", `container_metric_07_total{job="kubernetes-pods"}`},
		{"metric and namespace", `container_metric_07_total{namespace="team-07",env="production"}`},
		{"left out", `container_metric_07_total{namespace!="team-07"}`},
		{"prefix", `container_metric_07_total{pod=~"app-77-.*"}`},
		{"alternation", `{namespace=~"team-01|team-02|team-03",__name__=~"container_metric_0(1|2)_total"}`},
		{"infix", `container_metric_07_total{pod=~".*-77-.*"}`},
		{"absent", `container_metric_07_total{pod=""}`},
	} {
		sels, err := query.ParseSelectors(b.Context(), []string{c.sel})
		require.NoError(b, err)
		b.Run("select/"+c.name, func(b *testing.B) {
			b.ReportAllocs()
			found, user := 0, userTime(b)
			for b.Loop() {
				ids, err := x.Select(b.Context(), sels...)
				require.NoError(b, err)
				found = len(ids)
			}
			b.ReportMetric(float64(found), "found")
			perTurn(b, user)
		})
	}
	some, err := query.ParseSelectors(b.Context(), []string{`{namespace="team-07"}`})
	require.NoError(b, err)
	ctx := b.Context()
	for _, c := range []struct {
		name string
		list func(ctx context.Context) ([]string, error)
	}{
		{"values of few", func(ctx context.Context) ([]string, error) { return x.LabelValues(ctx, "namespace") }},
		{"values of many", func(ctx context.Context) ([]string, error) { return x.LabelValues(ctx, "pod") }},
		{"values of some", func(ctx context.Context) ([]string, error) { return x.LabelValues(ctx, "pod", some...) }},
		{"names of some", func(ctx context.Context) ([]string, error) { return x.LabelNames(ctx, some...) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			user := userTime(b)
			for b.Loop() {
				_, err := c.list(ctx)
				require.NoError(b, err)
			}
			perTurn(b, user)
		})
	}
	b.Run("labels", func(b *testing.B) {
		b.ReportAllocs()
		id, user := 0, userTime(b)
		for b.Loop() {
			if id = (id + 7919) % n; len(x.Labels(metric.ScheduleID(id))) != 10 {
				b.Fatal(id)
			}
		}
		perTurn(b, user)
	})
}

// BenchmarkLived lists the pods of ten thousand series that live, beside a million that do not any more.
func BenchmarkLived(b *testing.B) {
	const n, living = 1_010_000, 10_000
	w, x, p, seen := newBench(b), query.NewIndex(), newPods(), query.NewSightings(false)
	orders[0].add(p, n, x.Add)
	for id := range metric.ScheduleID(n) {
		sample := metric.Sample{Schedule: id, TimeMs: now - 60*day + int64(id)%20*day}
		seen.Saw([]metric.Sample{sample})
		if sample.TimeMs = now; id >= n-living {
			seen.Saw([]metric.Sample{sample})
		}
	}
	q := query.New(query.Parts{Store: w.Store, Index: x, Settings: w.Store.Settings(), WholeFrom: w.Store.WholeFrom, Clock: clock.NewSimulated(time.UnixMilli(now))},
		query.Options{Sightings: seen})
	for _, c := range []struct {
		name         string
		fromMs, toMs int64
	}{
		{"last hour", now - hour, now},
		{"yesterday", now - day - hour, now - day},
		{"a day on which most lived", now - 50*day, now - 49*day},
	} {
		ask := func() int {
			values, err := q.LabelValues(b.Context(), c.fromMs, c.toMs, new(query.Warnings), "pod")
			require.NoError(b, err)
			return len(values)
		}
		ask()
		b.Run(c.name, func(b *testing.B) {
			found := 0
			for b.Loop() {
				found = ask()
			}
			b.ReportMetric(float64(found), "pods")
		})
	}
}

// inUse returns the bytes that are in use. Pools release what they have at the second collection.
func inUse() uint64 {
	var m runtime.MemStats
	for range 2 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
