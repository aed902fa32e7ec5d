package verify

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/client"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/wire"
)

// fake is a server with one series, x, on the ladder 1h,2h. Before each request for the rows of 1h,
// step is called with the number of earlier such requests.
type fake struct {
	t       *testing.T
	now     time.Time
	keep    time.Duration
	samples map[int64]string
	rows    map[metric.Bucket]map[int64]Row
	// What the status says, by bucket: starts of slices.
	outstanding, waiting [2][]int64
	step                 func(n int)
	asked                int
	warning, failure     string
	rowWarnings          map[metric.Bucket]string
	repaired             []string
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !assert.NoError(f.t, r.ParseForm()) {
		return
	}
	w.Header().Set("Date", f.now.UTC().Format(http.TimeFormat))
	within := func(ms int64) bool {
		from, err1 := time.Parse(time.RFC3339, r.Form.Get("start"))
		to, err2 := time.Parse(time.RFC3339, r.Form.Get("end"))
		return assert.NoError(f.t, err1) && assert.NoError(f.t, err2) && ms >= from.UnixMilli() && ms < to.UnixMilli()
	}
	switch r.URL.Path {
	case "/base/api/v1/status/aggregation":
		assert.Equal(f.t, "true", r.Form.Get("waiting"))
		list := func(times []int64) string {
			out := []string{}
			for _, ms := range times {
				out = append(out, fmt.Sprintf(`{"slice":%d,"marks":1}`, ms))
			}
			return "[" + strings.Join(out, ",") + "]"
		}
		whole := ""
		if f.keep > 0 {
			whole = fmt.Sprintf(`,"whole_from":%d`, f.now.Add(-f.keep).Truncate(time.Second).UnixMilli())
		}
		fmt.Fprintf(w, `{"levels":[{"level":"raw","retention_seconds":%v%s},{"level":"1h","width_seconds":3600},{"level":"2h","width_seconds":7200}],
			"buckets":[{"outstanding":%s,"waiting":%s},{"outstanding":%s,"waiting":%s}]}`, f.keep.Seconds(), whole,
			list(f.outstanding[0]), list(f.waiting[0]), list(f.outstanding[1]), list(f.waiting[1]))
	case "/base/api/v1/rollups":
		w.Header().Set("Quern-Warning", "incomplete: samples from a to b are not yet ground into the 1h rows") // this is no damage
		level := metric.Bucket(1)
		if r.Form.Get("level") == "2h" {
			level = 2
		} else {
			if f.step != nil {
				f.step(f.asked)
			}
			f.asked++
		}
		if text := f.rowWarnings[level]; text != "" && within(day) {
			w.Header().Set("Quern-Warning", text)
		}
		for _, ms := range slices.Sorted(maps.Keys(f.rows[level])) {
			if row := f.rows[level][ms]; within(ms) {
				var first, last int64
				for _, at := range slices.Sorted(maps.Keys(f.samples)) {
					if _, err := strconv.ParseFloat(f.samples[at], 64); err == nil && ms <= at && at < ms+int64(level)*hour {
						if last == 0 {
							first = at
						}
						last = at
					}
				}
				n := func(v float64) string {
					if math.IsNaN(v) {
						return "null"
					}
					return number(v)
				}
				fmt.Fprintf(w, `{"metric":{"__name__":"x"},"level":"-","time":%d,"count":%d,"sum":%s,"min":%s,"max":%s,"avg":%s,"first":%s,"last":%s,"first_time":%d,"last_time":%d,"increase":%s,"p50":%s,"p90":%s,"p99":%s,"partial":%t}`+"\n",
					ms, row.Count, n(row.Sum), n(row.Min), n(row.Max), n(row.Avg), n(row.First), n(row.Last), first, last, n(row.Increase), n(row.P50), n(row.P90), n(row.P99), row.Partial)
			}
		}
	case "/base/api/v1/export":
		if f.warning != "" && within(day+hour) {
			w.Header().Set("Quern-Warning", f.warning)
		}
		for _, ms := range slices.Sorted(maps.Keys(f.samples)) {
			if within(ms) {
				fmt.Fprintf(w, `{"metric":{"__name__":"x"},"values":[%s],"timestamps":[%d]}`+"\n", f.samples[ms], ms)
			}
		}
		if f.failure != "" {
			fmt.Fprintf(w, `{"status":"error","error":%q}`+"\n", f.failure)
		}
	case "/base/api/v1/reaggregate":
		assert.Equal(f.t, http.MethodPost, r.Method)
		request := r.Form.Get("match[]") + " " + r.Form.Get("start") + " " + r.Form.Get("end")
		if r.Form.Get("take_back") == "true" {
			request += " take back"
		}
		f.repaired = append(f.repaired, request)
		fmt.Fprintln(w, `{"done":1,"total":1}`+"\n"+`{"status":"success"}`)
	default:
		w.WriteHeader(http.StatusBadRequest)
		assert.NoError(f.t, json.NewEncoder(w).Encode(map[string]string{"status": "error", "error": "no " + r.URL.Path}))
	}
}

const hour = int64(3_600_000)

// day is where the tests' slices begin.
var day = time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC).UnixMilli()

// newFake returns a server with two slices of 2h, all right, and samples every half hour.
func newFake(t *testing.T) *fake {
	f := &fake{
		t: t, now: time.UnixMilli(day + 4*hour + 600_000), samples: map[int64]string{},
		rows: map[metric.Bucket]map[int64]Row{1: {}, 2: {}},
	}
	for ms := day; ms < day+4*hour; ms += hour / 2 {
		f.samples[ms] = "3"
		f.rows[1][ms-ms%hour] = flat(2, 3)
		f.rows[2][ms-ms%(2*hour)] = flat(4, 3)
	}
	f.samples[day+1], f.samples[day+2], f.samples[day+3] = "null", `"Infinity"`, `"-Infinity"`
	return f
}

func (f *fake) run(o Options) (*wire.Verified, []string, error) {
	server := httptest.NewServer(f)
	defer server.Close()
	o.Client = &Client{client.Client{URL: server.URL + "/base", HTTP: server.Client()}}
	if o.Match == "" {
		o.Match = "x"
	}
	if o.EndMs == 0 {
		o.StartMs, o.EndMs = day-hour, day+10*hour
	}
	lines := []string{}
	o.Limit = 2
	o.Tell = func(d wire.Difference) { lines = append(lines, Lines(d)...) }
	sum, err := Run(f.t.Context(), o)
	return sum, lines, err
}

func TestEqual(t *testing.T) {
	f := newFake(t)
	sum, lines, err := f.run(Options{})
	require.NoError(t, err)
	assert.Empty(t, lines)
	assert.Equal(t, &wire.Verified{
		Start: day - hour, End: f.now.UnixMilli() + 1000, Series: 1, Samples: 11,
		Levels: []wire.VerifiedLevel{{Level: "1h", Compared: 4}, {Level: "2h", Compared: 2}},
	}, sum)
}

// TestPartsOfTheRange: only rows that lie wholly in the range are compared.
func TestPartsOfTheRange(t *testing.T) {
	f := newFake(t)
	sum, lines, err := f.run(Options{StartMs: day + 1, EndMs: day + 4*hour - 1})
	require.NoError(t, err)
	assert.Empty(t, lines)
	assert.Equal(t, []wire.VerifiedLevel{{Level: "1h", Compared: 2}, {Level: "2h"}}, sum.Levels)
}

// TestBeforeAllSamples: nothing is asked about times that no sample has, whose years may not even be ones that a server reads.
func TestBeforeAllSamples(t *testing.T) {
	total := 0
	sum, _, err := newFake(t).run(Options{StartMs: -10 * hour, EndMs: 10 * hour, Progress: func(_, n int) { total = n }})
	require.NoError(t, err)
	require.Zero(t, sum.Start)
	require.Equal(t, 5, total, "windows of 2 h")
}

func TestDifferent(t *testing.T) {
	f := newFake(t)
	delete(f.rows[1], day)
	f.rows[1][day+hour] = flat(3, 3)
	f.rows[2][day+6*hour-4*hour] = flat(4, 2)
	sum, lines, err := f.run(Options{Repair: true})
	require.NoError(t, err)
	assert.Equal(t, []string{
		"x{} 1h 2026-11-20T00:00:00Z missing: there is no row, the samples say count 2",
		"x{} 1h 2026-11-20T01:00:00Z wrong count: the row says 3, the samples say 2",
		"x{} 1h 2026-11-20T01:00:00Z wrong sum: the row says 9, the samples say 6",
	}, lines, "two rows, up to the limit")
	assert.Equal(t, []wire.VerifiedLevel{{Level: "1h", Compared: 4, Different: 2}, {Level: "2h", Compared: 2, Different: 1}}, sum.Levels)
	assert.Equal(t, 3, Differences(sum))
	assert.Equal(t, []string{
		// Times are not sent as numbers: those before 1973 would be read as seconds.
		`{"__name__"="x"} 2026-11-20T00:00:00Z 2026-11-20T01:00:00Z`, `{"__name__"="x"} 2026-11-20T01:00:00Z 2026-11-20T02:00:00Z`,
		`{"__name__"="x"} 2026-11-20T02:00:00Z 2026-11-20T04:00:00Z`,
	}, f.repaired)
	// The current hour ends at five; its run marks the two hours that are current then.
	assert.Equal(t, &wire.Repaired{Series: 1, Slices: 3, Rows: []wire.RepairedRows{{Level: "1h", After: day + 5*hour}, {Level: "2h", After: day + 6*hour}}}, sum.Repaired)
}

// TestOneLevel: only the rows of the level are read, compared and repaired.
func TestOneLevel(t *testing.T) {
	f := newFake(t)
	f.rows[1][day+hour] = flat(3, 3)
	f.rows[2][day+2*hour] = flat(4, 2)
	sum, lines, err := f.run(Options{Level: "2h", Repair: true})
	require.NoError(t, err)
	assert.Contains(t, lines[0], "x{} 2h 2026-11-20T02:00:00Z wrong")
	assert.Equal(t, []wire.VerifiedLevel{{Level: "2h", Compared: 2, Different: 1}}, sum.Levels)
	assert.Zero(t, f.asked, "no row of another level is read")
	assert.Equal(t, []string{`{"__name__"="x"} 2026-11-20T02:00:00Z 2026-11-20T04:00:00Z`}, f.repaired)
	assert.Equal(t, &wire.Repaired{Series: 1, Slices: 1, Rows: []wire.RepairedRows{{Level: "2h", After: day + 6*hour}}}, sum.Repaired)

	_, _, err = f.run(Options{Level: "3h"})
	require.ErrorContains(t, err, "the levels are 1h, 2h")
	assert.True(t, client.Refused(err))
}

// TestHold: what is read is asked for before it is kept, and a refusal ends the run.
func TestHold(t *testing.T) {
	f := newFake(t)
	held := 0
	_, _, err := f.run(Options{Hold: func(n int) error { held += n; return nil }})
	require.NoError(t, err)
	assert.Equal(t, holdStep, held)
	refused := errors.New("no room")
	_, _, err = f.run(Options{Hold: func(int) error { return refused }})
	require.ErrorIs(t, err, refused)
}

// TestSurplus: rows without samples are taken back only if TakeBack is set.
func TestSurplus(t *testing.T) {
	f := newFake(t)
	f.rows[1][day-hour] = flat(1, 1)
	sum, _, err := f.run(Options{Repair: true})
	require.NoError(t, err)
	assert.Equal(t, 1, sum.Levels[0].Different)
	assert.Empty(t, f.repaired)
	assert.Equal(t, 1, sum.Repaired.Surplus)

	sum, _, err = f.run(Options{Repair: true, TakeBack: true})
	require.NoError(t, err)
	assert.Equal(t, 1, sum.Levels[0].Different)
	assert.Equal(t, []string{`{"__name__"="x"} 2026-11-19T23:00:00Z 2026-11-20T00:00:00Z take back`}, f.repaired)
	assert.Zero(t, sum.Repaired.Surplus)
}

// TestDamagedRows: a row, or part of a row, that the server leaves out differs and is repaired, and
// does not end the run.
func TestDamagedRows(t *testing.T) {
	f := newFake(t)
	delete(f.rows[1], day)
	bad := flat(4, 3)
	bad.P50, bad.P90, bad.P99 = math.NaN(), math.NaN(), math.NaN()
	f.rows[2][day] = bad
	f.rowWarnings = map[metric.Bucket]string{1: "a row is damaged", 2: "percentiles are missing"}
	f.rows[2][day+2*hour] = flat(4, 2) // after the damaged row
	sum, lines, err := f.run(Options{Repair: true})
	require.NoError(t, err)
	assert.Equal(t, []string{"damaged: a row is damaged", "damaged: percentiles are missing"}, lines)
	assert.Equal(t, 2, sum.DamagedRows)
	assert.Equal(t, []wire.VerifiedLevel{{Level: "1h", Compared: 4, Different: 1}, {Level: "2h", Compared: 2, Different: 2}}, sum.Levels)
	assert.Equal(t, []string{
		`{"__name__"="x"} 2026-11-20T00:00:00Z 2026-11-20T02:00:00Z`, `{"__name__"="x"} 2026-11-20T02:00:00Z 2026-11-20T04:00:00Z`,
	}, f.repaired)
}

// TestLeftOut: rows that need not be right yet, or can no longer be checked, are counted and not
// named.
func TestLeftOut(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*fake)
		want   []wire.VerifiedLevel
	}{
		{
			"not over", func(f *fake) { f.samples[day+4*hour] = "1" },
			[]wire.VerifiedLevel{{Level: "1h", Compared: 4, NotGround: 1}, {Level: "2h", Compared: 2, NotGround: 1}},
		},
		{"outstanding", func(f *fake) {
			delete(f.rows[1], day+3*hour)
			delete(f.rows[2], day+2*hour)
			f.outstanding[0] = []int64{day + 3*hour}
		}, []wire.VerifiedLevel{{Level: "1h", Compared: 3, NotGround: 1}, {Level: "2h", Compared: 1, NotGround: 1}}},
		{"outstanding above", func(f *fake) {
			delete(f.rows[2], day+2*hour)
			f.outstanding[1] = []int64{day + 2*hour}
		}, []wire.VerifiedLevel{{Level: "1h", Compared: 4}, {Level: "2h", Compared: 1, NotGround: 1}}},
		{"late", func(f *fake) {
			f.samples[day+5] = "7"
			f.waiting[0] = []int64{day}
		}, []wire.VerifiedLevel{{Level: "1h", Compared: 4, Pending: 1}, {Level: "2h", Compared: 2, Pending: 1}}},
		{"late, and ground at 1h", func(f *fake) {
			f.rows[2][day] = flat(3, 3)
			f.waiting[1] = []int64{day}
		}, []wire.VerifiedLevel{{Level: "1h", Compared: 4}, {Level: "2h", Compared: 2, Pending: 1}}},
		{"expired", func(f *fake) {
			f.keep = 4 * time.Hour // since 00:10
			maps.DeleteFunc(f.samples, func(ms int64, _ string) bool { return ms < day+600_000 })
		}, []wire.VerifiedLevel{{Level: "1h", Compared: 3, Expired: 1}, {Level: "2h", Compared: 1, Expired: 1}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(t)
			c.change(f)
			sum, lines, err := f.run(Options{})
			require.NoError(t, err)
			assert.Empty(t, lines)
			assert.Equal(t, c.want, sum.Levels)
		})
	}
}

// TestSecondLook: late data that arrives and is ground while rows and samples are read is no
// difference.
func TestSecondLook(t *testing.T) {
	f := newFake(t)
	f.step = func(n int) {
		if n == 0 {
			f.samples[day+5] = "3" // its run has ended when the next look begins
		} else {
			f.rows[1][day], f.rows[2][day] = flat(3, 3), flat(5, 3)
		}
	}
	sum, lines, err := f.run(Options{StartMs: day, EndMs: day + 10*hour})
	require.NoError(t, err)
	assert.Empty(t, lines)
	assert.Equal(t, []wire.VerifiedLevel{{Level: "1h", Compared: 4}, {Level: "2h", Compared: 2}}, sum.Levels)
	assert.Equal(t, 3+1, f.asked, "three windows, and one of them again")

	t.Run("waiting by then", func(t *testing.T) {
		f := newFake(t)
		f.step = func(n int) {
			f.samples[day+5] = "3"
			if n == 1 {
				f.waiting[0] = []int64{day}
			}
		}
		sum, lines, err := f.run(Options{StartMs: day, EndMs: day + 10*hour})
		require.NoError(t, err)
		assert.Empty(t, lines)
		assert.Equal(t, []wire.VerifiedLevel{{Level: "1h", Compared: 4, Pending: 1}, {Level: "2h", Compared: 2, Pending: 1}}, sum.Levels)
	})
	t.Run("always another row", func(t *testing.T) {
		f := newFake(t)
		f.step = func(n int) { f.rows[1][day] = flat(uint64(n+10), 3) }
		sum, lines, err := f.run(Options{StartMs: day, EndMs: day + 10*hour})
		require.NoError(t, err)
		assert.Empty(t, lines)
		assert.Equal(t, 1, sum.Levels[0].Pending)
		assert.Equal(t, 3+attempts-1, f.asked)
	})
}

func TestFailures(t *testing.T) {
	t.Run("half an answer", func(t *testing.T) {
		f := newFake(t)
		f.failure = "the store is away"
		_, _, err := f.run(Options{})
		require.ErrorContains(t, err, "api/v1/export: the store is away")
	})
	t.Run("refused", func(t *testing.T) {
		server := httptest.NewServer(newFake(t))
		defer server.Close()
		_, err := Run(t.Context(), Options{Client: &Client{client.Client{URL: server.URL, HTTP: server.Client()}}})
		require.True(t, client.Refused(err))
		require.ErrorContains(t, err, "no /api/v1/status/aggregation")
	})
	t.Run("an older server", func(t *testing.T) {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"buckets":[]}`) }))
		defer server.Close()
		_, err := Run(t.Context(), Options{Client: &Client{client.Client{URL: server.URL, HTTP: server.Client()}}})
		require.ErrorContains(t, err, "the server is older than this program")
	})
}

// TestDamaged: what cannot be read is named and counted. A row with more samples than can be read
// is not compared. A row with as many is compared, and a row with fewer is wrong.
func TestDamaged(t *testing.T) {
	const warning = "samples are missing: raw chunk 0198 of group 0 in the slice of 2026-11-20T01:00:00Z: chunk is damaged"
	f := newFake(t)
	f.warning = warning
	f.rows[1][day+hour] = flat(3, 3)
	sum, lines, err := f.run(Options{StartMs: day, EndMs: day + 10*hour})
	require.NoError(t, err)
	assert.Equal(t, []string{"damaged: " + warning}, lines)
	assert.Equal(t, 1, sum.Damaged)
	assert.Zero(t, Differences(sum))
	assert.Equal(t, []wire.VerifiedLevel{{Level: "1h", Compared: 3, Unreadable: 1}, {Level: "2h", Compared: 2}}, sum.Levels)

	partial := flat(2, 4)
	partial.Partial = true
	f.rows[1][day+hour] = partial
	f.rows[2][day] = flat(3, 3)
	_, lines, err = f.run(Options{StartMs: day, EndMs: day + 10*hour})
	require.NoError(t, err)
	require.Contains(t, lines[1], "1h 2026-11-20T01:00:00Z wrong sum")

	partial = flat(2, 3)
	partial.Partial = true
	f.rows[1][day+hour] = partial
	sum, lines, err = f.run(Options{StartMs: day, EndMs: day + 10*hour})
	require.NoError(t, err)
	assert.Equal(t, []string{
		"damaged: " + warning,
		"x{} 2h 2026-11-20T00:00:00Z wrong count: the row says 3, the samples say 4",
		"x{} 2h 2026-11-20T00:00:00Z wrong sum: the row says 9, the samples say 12",
	}, lines)
	assert.Equal(t, 1, Differences(sum))
}

// TestManyDamaged: if the server names no more damaged chunks, any row of the window may have more
// samples than can be read.
func TestManyDamaged(t *testing.T) {
	f := newFake(t)
	f.warning = "and 30 more"
	f.rows[1][day] = flat(3, 3)
	sum, lines, err := f.run(Options{StartMs: day, EndMs: day + 10*hour})
	require.NoError(t, err)
	assert.Equal(t, []string{"damaged: and 30 more"}, lines)
	assert.Equal(t, 30, sum.Damaged)
	assert.Equal(t, []wire.VerifiedLevel{{Level: "1h", Compared: 3, Unreadable: 1}, {Level: "2h", Compared: 2}}, sum.Levels)
}

// TestPartial: a partial row that could be whole now is to be ground again.
func TestPartial(t *testing.T) {
	f := newFake(t)
	row := flat(2, 3)
	row.Partial = true
	f.rows[1][day] = row
	sum, lines, err := f.run(Options{StartMs: day, EndMs: day + 10*hour, Repair: true})
	require.NoError(t, err)
	assert.Equal(t, []string{"x{} 1h 2026-11-20T00:00:00Z wrong partial: the row says true, the samples say false"}, lines)
	assert.Equal(t, 1, Differences(sum))
	assert.Len(t, f.repaired, 1)
}

// TestSelector: names and values may be any text.
func TestSelector(t *testing.T) {
	ls, err := metric.NewLabels(metric.Label{Name: "__name__", Value: "x"}, metric.Label{Name: "a.b", Value: "\"\\\n"})
	require.NoError(t, err)
	assert.Equal(t, `{"__name__"="x","a.b"="\"\\\n"}`, selector(ls))
}

// longSeries returns series whose selectors are six times as long in a form.
func longSeries(t *testing.T, n, size int) (out []metric.Labels) {
	for i := range n {
		ls, err := metric.NewLabels(metric.Label{Name: "__name__", Value: "x"}, metric.Label{Name: "n", Value: strings.Repeat(`"`, size) + strconv.Itoa(i)})
		require.NoError(t, err)
		out = append(out, ls)
	}
	return out
}

// TestRequests: a request names no more series, and no more bytes, than the limits allow.
func TestRequests(t *testing.T) {
	for _, c := range []struct {
		n, size int
		want    []int
	}{
		{1, 1, []int{1}},
		{50, 1, []int{50}},
		{101, 1, []int{50, 50, 1}},
		{25, 8 << 10, []int{10, 10, 5}},
		{2, 200 << 10, []int{1, 1}}, // a selector cannot be made shorter
	} {
		var all []string
		for _, ls := range longSeries(t, c.n, c.size) {
			all = append(all, selector(ls))
		}
		parts := requests(all)
		var got []int
		for _, part := range parts {
			got = append(got, len(part))
		}
		assert.Equal(t, c.want, got, "%d of %d bytes", c.n, c.size)
		assert.True(t, slices.Equal(all, slices.Concat(parts...)), "all, in their order")
	}
}
