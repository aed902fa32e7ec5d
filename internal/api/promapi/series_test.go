package promapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	promstorage "github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/treecheck/linear"
)

// wide is a storage whose series make their labels, of 100 kB, when they are asked for them.
type wide struct {
	promstorage.LabelQuerier
	n, at int
}

func (w *wide) Querier(int64, int64) (promstorage.Querier, error) { return w, nil }
func (w *wide) Close() error                                      { return nil }

func (w *wide) Select(context.Context, bool, *promstorage.SelectHints, ...*labels.Matcher) promstorage.SeriesSet {
	return &wide{n: w.n}
}

func (w *wide) Next() bool                        { w.at++; return w.at <= w.n }
func (w *wide) At() promstorage.Series            { return wideSeries(w.at) }
func (w *wide) Err() error                        { return nil }
func (w *wide) Warnings() annotations.Annotations { return nil }

type wideSeries int

func (wideSeries) Iterator(chunkenc.Iterator) chunkenc.Iterator { return chunkenc.NewNopIterator() }

func (s wideSeries) Labels() labels.Labels {
	return labels.FromStrings("long", strings.Repeat("x", 100_000)+strconv.Itoa(int(s)))
}

// measuring is a client that reads a reply and keeps nothing of it.
type measuring struct {
	*httptest.ResponseRecorder
	sent, writes int
	peak         uint64
}

func (m *measuring) Write(b []byte) (int, error) {
	m.sent += len(b)
	if m.writes++; m.writes%64 == 1 {
		m.peak = max(m.peak, linear.Heap())
	}
	return len(b), nil
}

// TestSeriesAreSentOneByOne: a list of series holds no labels, of any number of selectors.
func TestSeriesAreSentOneByOne(t *testing.T) {
	const series = 300
	h := newAPI(t, func(o *Options) { o.Queryable = &wide{n: series} })
	for _, target := range []string{"/api/v1/series?match[]=a", "/api/v1/series?match[]=a&match[]=b"} {
		w := &measuring{ResponseRecorder: httptest.NewRecorder()}
		before := linear.Heap()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil))
		require.Greater(t, w.sent, series*100_000)
		require.Less(t, int64(w.peak)-int64(before), int64(w.sent/10), target)
	}
}
