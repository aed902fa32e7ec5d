package promapi

import (
	"fmt"
	"math"
	"net/http"
	"strconv"

	"github.com/prometheus/prometheus/promql"

	"github.com/quern/quern/internal/query"
)

// tsdbStatus is the data of status/tsdb, as Prometheus has it. What Prometheus says of its head is here said of all
// series.
type tsdbStatus struct {
	HeadStats                   headStats  `json:"headStats"`
	SeriesCountByMetricName     []tsdbStat `json:"seriesCountByMetricName"`
	LabelValueCountByLabelName  []tsdbStat `json:"labelValueCountByLabelName"`
	MemoryInBytesByLabelName    []tsdbStat `json:"memoryInBytesByLabelName"`
	SeriesCountByLabelValuePair []tsdbStat `json:"seriesCountByLabelValuePair"`
}

// headStats has in MinTime the time from which all raw samples are kept, and in MaxTime that of the newest sample that
// this process has taken. Where there is no such time, it has what Prometheus has for an empty head. Chunks are not
// counted.
type headStats struct {
	NumSeries     uint64 `json:"numSeries"`
	NumLabelPairs int    `json:"numLabelPairs"`
	ChunkCount    int64  `json:"chunkCount"`
	MinTime       int64  `json:"minTime"`
	MaxTime       int64  `json:"maxTime"`
}

type tsdbStat struct {
	Name  string `json:"name"`
	Value uint64 `json:"value"`
}

// tsdb has Prometheus' limits of the lists.
func (a *API) tsdb(r *http.Request) (answer, error) {
	limit := 10
	if s := r.FormValue("limit"); s != "" {
		var err error
		if limit, err = strconv.Atoi(s); err != nil || limit < 1 {
			return answer{}, badData("limit must be a positive number")
		}
		if limit > query.MaxTop {
			return answer{}, badData("limit must not exceed %d", query.MaxTop)
		}
	}
	var warn query.Warnings
	c, err := a.opts.Querier.Cardinality(r.Context(), limit, "", &warn)
	if err != nil {
		return answer{}, promql.ErrStorage{Err: err}
	}
	ans := answer{charged: true}
	for _, w := range warn.List() {
		ans.warnings.Add(fmt.Errorf("%s", w))
	}
	status := tsdbStatus{
		HeadStats: headStats{
			NumSeries: uint64(c.Series), NumLabelPairs: c.Pairs,
			MinTime: a.opts.Querier.WholeFromMs(), MaxTime: a.opts.Querier.NewestMs(r.Context()),
		},
		SeriesCountByMetricName:     statsOf(c.ByMetric, func(p query.PairCount) (string, int64) { return p.Value, int64(p.Series) }),
		LabelValueCountByLabelName:  statsOf(c.ByValues, func(l query.LabelCount) (string, int64) { return l.Name, int64(l.Values) }),
		MemoryInBytesByLabelName:    statsOf(c.ByBytes, func(l query.LabelCount) (string, int64) { return l.Name, l.Bytes }),
		SeriesCountByLabelValuePair: statsOf(c.ByPair, func(p query.PairCount) (string, int64) { return p.Name + "=" + p.Value, int64(p.Series) }),
	}
	if status.HeadStats.MinTime == math.MinInt64 {
		status.HeadStats.MinTime = math.MaxInt64
	}
	if status.HeadStats.MaxTime == 0 {
		status.HeadStats.MaxTime = math.MinInt64
	}
	ans.data = status
	return ans, nil
}

func statsOf[T any](all []T, stat func(T) (name string, n int64)) []tsdbStat {
	out := make([]tsdbStat, len(all))
	for i, v := range all {
		name, n := stat(v)
		out[i] = tsdbStat{name, uint64(n)}
	}
	return out
}
