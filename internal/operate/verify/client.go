package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quern/quern/internal/client"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/wire"
)

// Client reads from a server over HTTP.
type Client struct{ client.Client }

// ErrDamaged means that the server left damaged stored data out of its answer. The rest has been
// read by then.
var ErrDamaged = errors.New("stored data is damaged")

// damagedError is ErrDamaged with the server's warnings.
type damagedError struct {
	path     string
	warnings []string
}

func (e *damagedError) Error() string {
	return fmt.Sprintf("%s: %v: %s", e.path, ErrDamaged, strings.Join(e.warnings, "; "))
}

func (e *damagedError) Unwrap() error { return ErrDamaged }

// lines reads an NDJSON reply, and calls each with every line in turn.
func lines[T any, P interface {
	*T
	Failure() string
}](ctx context.Context, c *Client, path string, form url.Values, each func(*T) error) error {
	resp, err := c.Do(ctx, http.MethodPost, path, form)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := client.Lines(resp.Body, func(line *T) error {
		if failure := P(line).Failure(); failure != "" {
			return errors.New(failure)
		}
		return each(line)
	}); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	const header = "Quern-Warning"
	w := append(resp.Header.Values(header), resp.Trailer.Values(header)...)
	// Rows that late data has left behind are not damaged: the status reports the marks for them.
	w = slices.DeleteFunc(w, func(text string) bool { return strings.HasPrefix(text, "incomplete: ") })
	if len(w) > 0 {
		return &damagedError{path, w}
	}
	return nil
}

// get reads a reply that is a single JSON value.
func (c *Client) get(ctx context.Context, path string, form url.Values, reply any) (http.Header, error) {
	resp, err := c.Do(ctx, http.MethodGet, path, form)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := client.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(text, reply)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return resp.Header, nil
}

func labelsOf(m map[string]string) (metric.Labels, error) {
	out := make([]metric.Label, 0, len(m))
	for name, v := range m {
		out = append(out, metric.Label{Name: name, Value: v})
	}
	return metric.NewLabels(out...)
}

func rangeForm(selectors []string, startMs, endMs int64) url.Values {
	return url.Values{
		"match[]": selectors,
		"start":   {time.UnixMilli(startMs).UTC().Format(time.RFC3339Nano)},
		"end":     {time.UnixMilli(endMs).UTC().Format(time.RFC3339Nano)},
	}
}

type exportLine struct {
	wire.Error
	wire.Samples
}

// Export reads the raw samples of [startMs, endMs): each series' by time, and possibly in pieces.
func (c *Client) Export(
	ctx context.Context, selectors []string, startMs, endMs int64, each func(labels metric.Labels, ms int64, v float64) error,
) error {
	return lines(ctx, c, wire.ExportPath, rangeForm(selectors, startMs, endMs), func(l *exportLine) error {
		labels, err := labelsOf(l.Metric)
		if err != nil {
			return err
		}
		if len(l.Values) != len(l.Timestamps) {
			return fmt.Errorf("%s: %d values and %d times in a line", labels, len(l.Values), len(l.Timestamps))
		}
		for i, v := range l.Values {
			if err := each(labels, l.Timestamps[i], float64(v)); err != nil {
				return err
			}
		}
		return nil
	})
}

type rowLine struct {
	wire.Error
	wire.Row
}

// Rollups reads the rows of a level that begin in [startMs, endMs).
func (c *Client) Rollups(
	ctx context.Context, selectors []string, level string, startMs, endMs int64, each func(labels metric.Labels, ms int64, r Row) error,
) error {
	form := rangeForm(selectors, startMs, endMs)
	form.Set("level", level)
	return lines(ctx, c, wire.RollupsPath, form, func(l *rowLine) error {
		labels, err := labelsOf(l.Metric)
		if err != nil {
			return err
		}
		return each(labels, l.Time, Row{
			Count: l.Count, Sum: float64(l.Sum), Min: float64(l.Min), Max: float64(l.Max), Avg: float64(l.Avg),
			First: float64(l.First), Last: float64(l.Last), FirstMs: l.FirstMs, LastMs: l.LastMs, Increase: float64(l.Increase),
			P50: float64(l.P50), P90: float64(l.P90), P99: float64(l.P99), Partial: l.Partial,
		})
	})
}

// Status is what a server reports about its levels, and about what is still to be ground.
type Status struct {
	Ladder metric.Ladder
	// WholeFrom is the time from which on each bucket is whole, raw first; math.MinInt64 means
	// always.
	WholeFrom []int64
	// NowMs is the server's time.
	NowMs int64

	// By bucket, what is still to be ground: slices that are over and not complete, and slices that
	// marks stand for.
	outstanding, waiting [][]metric.Slice
}

// Status reads the status.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	const path = wire.StatusPath
	var reply wire.Status
	header, err := c.get(ctx, path, url.Values{"waiting": {"true"}}, &reply)
	if err != nil {
		return nil, err
	}
	out := &Status{}
	var widths []time.Duration
	for i, l := range reply.Levels {
		if i > 0 {
			widths = append(widths, time.Duration(l.WidthSeconds*float64(time.Second)))
		}
		whole := int64(math.MinInt64)
		if l.WholeFrom != nil {
			whole = *l.WholeFrom
		}
		out.WholeFrom = append(out.WholeFrom, whole)
	}
	if out.Ladder, err = metric.NewLadder(widths...); err != nil || len(reply.Buckets) != int(out.Ladder.Top()) ||
		slices.ContainsFunc(reply.Buckets, func(b wire.Bucket) bool { return b.Waiting == nil }) {
		return nil, fmt.Errorf("%s does not report what verification needs: the server is older than this program", path)
	}
	for b, bucket := range reply.Buckets {
		all := func(some []wire.Slice) (open []metric.Slice) {
			for _, s := range some {
				open = append(open, out.Ladder.SliceAt(metric.Bucket(b), s.Slice))
			}
			return open
		}
		out.outstanding = append(out.outstanding, all(bucket.Outstanding))
		out.waiting = append(out.waiting, all(*bucket.Waiting))
	}
	// The header has whole seconds, so it is early by a second at most.
	at, err := http.ParseTime(header.Get("Date"))
	if err != nil {
		return nil, fmt.Errorf("%s: no date in the reply: %w", path, err)
	}
	out.NowMs = at.UnixMilli()
	return out, nil
}

// Open says whether the rows of a slice need not be there yet: the slice is not over, or its run or
// that of a slice within it has not ended.
func (s *Status) Open(level metric.Bucket, slice metric.Slice) bool {
	return slice.EndMs > s.NowMs || touches(s.outstanding, level, slice)
}

// Waits says whether something that lies in a slice is still to be ground, such as late data.
func (s *Status) Waits(level metric.Bucket, slice metric.Slice) bool {
	return touches(s.waiting, level, slice)
}

// Undone names the slices in which something is still to be ground.
func (s *Status) Undone() []string {
	var out []string
	for _, left := range [][][]metric.Slice{s.outstanding, s.waiting} {
		for b, open := range left {
			for _, slice := range open {
				if name := s.Ladder.Name(metric.Bucket(b)) + " " + slice.String(); !slices.Contains(out, name) {
					out = append(out, name)
				}
			}
		}
	}
	return out
}

// Expired says whether the slice's samples, or its rows, may be gone.
func (s *Status) Expired(level metric.Bucket, slice metric.Slice) bool {
	for _, b := range []metric.Bucket{metric.Raw, level} {
		if from := s.WholeFrom[b]; from != math.MinInt64 && slice.StartMs < from+hasteMs {
			return true
		}
	}
	return false
}

// hasteMs bounds the time between a status and the rows that are read after it: what expires
// meanwhile counts as expired.
const hasteMs = 60_000

func touches(open [][]metric.Slice, level metric.Bucket, slice metric.Slice) bool {
	return slices.ContainsFunc(slices.Concat(open[:level]...), func(o metric.Slice) bool {
		return o.StartMs < slice.EndMs && slice.StartMs < o.EndMs
	})
}

// Reaggregate has the matching series ground again where their samples lie in [startMs, endMs).
// With takeBack, rows without samples there are taken back.
func (c *Client) Reaggregate(ctx context.Context, selectors []string, startMs, endMs int64, takeBack bool) error {
	last, form := "", rangeForm(selectors, startMs, endMs)
	form.Set("take_back", strconv.FormatBool(takeBack))
	err := lines(ctx, c, wire.ReaggregatePath, form, func(r *wire.Error) error { last = r.Status; return nil })
	if err == nil && last != "success" {
		err = errors.New(wire.ReaggregatePath + ": the reply ends early")
	}
	return err
}

// selector selects the series with exactly these labels, and series that have more.
func selector(labels metric.Labels) string {
	var sb strings.Builder
	sb.WriteByte('{')
	for i, l := range labels {
		if i > 0 {
			sb.WriteByte(',')
		}
		// A quoted name may be any text.
		sb.WriteString(strconv.Quote(l.Name) + "=" + strconv.Quote(l.Value))
	}
	sb.WriteByte('}')
	return sb.String()
}
