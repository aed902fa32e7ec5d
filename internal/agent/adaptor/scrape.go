package adaptor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/prompb"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/quern/quern/internal/agent/spool"
	"github.com/quern/quern/internal/agent/targets"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/wire/version"
)

const (
	maxAnswer = 16 << 20 // of a target
	maxPage   = 64 << 20 // what becomes of it
)

// errGone ends a target.
var errGone = errors.New("it is not discovered any more")

// Scrape scrapes what the scrape_configs of a prometheus.yml name, as Prometheus does: with up and the other series of a scrape, and with
// stale markers. Native histograms are left out. Its stream counts samples.
type Scrape struct {
	Config string `yaml:"config"`

	jobs    []*targets.Job
	text    []byte   // of the file
	ignored []string // what it asks for that is not done
	out     *Output
	mu      sync.Mutex // of what follows
	at      spool.Point
	body    []byte // a request of remote write, which is put after putEvery at the latest
	samples int    // in it
}

// String implements Adaptor.
func (s *Scrape) String() string { return "scrape " + s.Config }

func (s *Scrape) check() (err error) {
	if s.Config == "" {
		return errors.New("config: must be the path of a file with scrape_configs, such as /etc/prometheus/prometheus.yml")
	}
	if s.text, err = os.ReadFile(s.Config); err == nil {
		s.jobs, s.ignored, err = targets.Read(s.Config, s.text)
	}
	if err != nil {
		return fmt.Errorf("config: %w", err)
	}
	if len(s.jobs) == 0 {
		return fmt.Errorf("config: %s has no scrape_configs", s.Config)
	}
	return nil
}

// content implements reader: a reload begins anew when the file has changed.
func (s *Scrape) content() []byte { return s.text }

// Run implements Adaptor.
func (s *Scrape) Run(ctx context.Context, out *Output) {
	s.out, s.at = out, out.Spool.Stream(s.String())
	if s.ignored != nil {
		out.Warn("settings are ignored that change what Prometheus stores", s.String(), "settings", s.ignored)
	}
	var running sync.WaitGroup
	running.Go(func() {
		everyTick(ctx, out.Clock, putEvery, func(int64) {
			s.mu.Lock()
			s.flush()
			s.mu.Unlock()
		})
	})
	for _, j := range s.jobs {
		running.Go(func() { s.run(ctx, j) })
	}
	running.Wait()
	s.flush()
}

// put takes what a scrape brings. Each field of it is a sample.
func (s *Scrape) put(p *page) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for rest := p.body; len(rest) > 0; {
		_, _, n := protowire.ConsumeField(rest)
		s.body, rest = append(s.body, rest[:n]...), rest[n:]
		if s.samples++; len(s.body) >= maxPart {
			s.flush()
		}
	}
}

func (s *Scrape) flush() {
	if s.samples > 0 {
		s.at.Seq += uint64(s.samples)
		s.out.put(s.out.compress(s.String(), s.at, s.samples, s.body))
	}
	s.body, s.samples = s.body[:0], 0
}

// run scrapes the targets of a job until ctx ends.
func (s *Scrape) run(ctx context.Context, j *targets.Job) {
	var scraping sync.WaitGroup
	running := map[targets.Target]*target{}
	warn := func(message string, args ...any) { s.out.Warn(message, s.String()+" "+j.Name, args...) }
	j.Discover(ctx, s.out.Clock, warn, func(found []targets.Target) {
		before := running
		running = map[targets.Target]*target{}
		stay := map[labels.Labels]*target{}
		for _, one := range found {
			if running[one] = before[one]; running[one] == nil {
				running[one] = s.newTarget(one, j)
			}
			stay[one.Labels] = running[one]
			delete(before, one)
		}
		for _, t := range before {
			next := stay[t.Labels]
			if next == nil {
				t.end(errGone)
				continue
			}
			if next.end == nil { // it is new
				next.before = t
			}
			t.end(nil)
		}
		for _, t := range running {
			if t.end == nil {
				var ended context.Context
				ended, t.end = context.WithCancelCause(ctx)
				scraping.Go(func() { t.run(ended) })
			}
		}
	})
	scraping.Wait()
	j.HTTPClient.CloseIdleConnections()
}

// target is what is scraped.
type target struct {
	targets.Target
	*Scrape
	job    *targets.Job
	stream string    // for the log
	report [5][]byte // the labels of up, and of the others of a scrape
	last   []byte    // the series of the last scrape with an answer, see page
	stale  bool      // these have ended: a later scrape had no answer
	before *target   // one with the same labels, but such as another URL: its series go on
	end    context.CancelCauseFunc
	ended  chan struct{}
}

func (s *Scrape) newTarget(one targets.Target, j *targets.Job) *target {
	t := &target{Target: one, Scrape: s, job: j, stream: s.String() + " " + j.Name + " " + one.URL, ended: make(chan struct{})}
	for i, name := range []string{"up", "scrape_duration_seconds", "scrape_samples_scraped", "scrape_samples_post_metric_relabeling", "scrape_series_added"} {
		b := labels.NewBuilder(one.Labels)
		b.Set(model.MetricNameLabel, name)
		t.report[i] = t.encode(b)
	}
	return t
}

// run scrapes at each interval, at a point of it that depends on the labels, until ctx ends.
func (t *target) run(ctx context.Context) {
	defer close(t.ended)
	scraped := t.before != nil
	if scraped {
		<-t.before.ended
		t.last, t.stale, t.before = t.before.last, t.before.stale, nil
	}
	intervalMs := t.Interval.Milliseconds()
	offsetMs := int64(t.Labels.Hash() % uint64(intervalMs))
	dueMs := func() int64 { return metric.AlignDown(clock.NowMs(t.out.Clock)-offsetMs, intervalMs) + offsetMs }
	lastMs := dueMs()
	for ; ; scraped = true {
		timeMs := dueMs()
		for range 2 { // after a step back of the clock, the next may have been
			if timeMs <= lastMs {
				timeMs += intervalMs
			}
		}
		if t.out.Clock.Sleep(ctx, time.Duration(timeMs-clock.NowMs(t.out.Clock))*time.Millisecond) != nil {
			break
		}
		// Even times make small chunks. Far from it, such as when the machine slept, it is another time.
		if nowMs := clock.NowMs(t.out.Clock); max(nowMs-timeMs, timeMs-nowMs) >= intervalMs {
			timeMs = nowMs
		}
		lastMs = timeMs
		t.scrape(ctx, timeMs)
	}
	if scraped && errors.Is(context.Cause(ctx), errGone) {
		p := recall(t.last, clock.NowMs(t.out.Clock))
		defer pages.Put(p)
		t.finish(p, staleMarker, staleMarker, staleMarker, staleMarker, staleMarker)
	}
}

// finish puts a page, with a stale marker for each known series that it has not, and with the values of the report.
func (t *target) finish(p *page, report ...float64) {
	for i := range p.known {
		if s := &p.known[i]; !t.stale && !s.seen && len(s.labels) > 0 && !s.timed {
			p.add(s.labels, staleMarker, p.timeMs)
		}
	}
	for i, v := range report {
		p.add(t.report[i], v, p.timeMs)
	}
	t.put(p)
}

// scrape scrapes once.
func (t *target) scrape(ctx context.Context, timeMs int64) {
	begin := t.out.Clock.Elapsed()
	text := answers.Get().(*bytes.Buffer)
	defer answers.Put(text)
	text.Reset()
	kind, err := t.fetch(ctx, text)
	if ctx.Err() != nil {
		return
	}
	p := recall(t.last, timeMs)
	defer pages.Put(p)
	if err == nil {
		err = t.read(p, text.Bytes(), kind)
	}
	took, up := t.out.Clock.Elapsed()-begin, 1.0
	if err != nil {
		t.out.Warn("a target cannot be scraped", t.stream, "err", err)
		p.drop()
		up = 0
	}
	t.finish(p, up, took.Seconds(), float64(p.scraped), float64(p.kept), float64(p.added))
	// As in Prometheus, series that come back after that are not new.
	if t.stale = err != nil || text.Len() == 0; !t.stale {
		t.keep(p)
	}
}

var (
	answers = sync.Pool{New: func() any { return new(bytes.Buffer) }}
	gunzips = sync.Pool{New: func() any { return new(gzip.Reader) }}
)

// read adds the samples of an answer.
func (t *target) read(p *page, text []byte, kind string) error {
	if len(text) == 0 {
		return nil
	}
	text, err := t.skim(p, text)
	if err != nil {
		return err
	}
	fallback, _, _ := strings.Cut(targets.MediaTypes[t.job.FallbackProtocol], ";")
	parser, err := textparse.New(text, kind, nil, textparse.ParserOptions{FallbackContentType: fallback, IgnoreNativeHistograms: true})
	if parser == nil {
		return err
	}
	for {
		entry, err := parser.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if entry == textparse.EntrySeries {
			if err := t.sample(p, parser); err != nil {
				return err
			}
		}
	}
	if t.job.SampleLimit > 0 && p.kept > int(t.job.SampleLimit) {
		return fmt.Errorf("there are %d samples, more than %d, the sample_limit", p.kept, t.job.SampleLimit)
	}
	return nil
}

// skim takes the lines of a text as long as they have the series of the last scrape, in its order, and no time. It returns the rest. Most
// texts have no more than an end then; to parse them would take longer than all else.
func (t *target) skim(p *page, text []byte) (rest []byte, err error) {
	for i := 0; i < len(p.known) && err == nil; i++ {
		for bytes.HasPrefix(text, []byte("# HELP ")) || bytes.HasPrefix(text, []byte("# TYPE ")) {
			_, text, _ = bytes.Cut(text, []byte("\n"))
		}
		line, same := bytes.CutPrefix(text, p.known[i].text)
		line, space := bytes.CutPrefix(line, []byte(" "))
		digits, next, whole := bytes.Cut(line, []byte("\n"))
		v, wrong := strconv.ParseFloat(string(digits), 64)
		if !same || !space || !whole || wrong != nil || bytes.ContainsAny(digits, "pP_") {
			break
		}
		text = next
		err = t.take(p, &p.known[i], nil, v)
	}
	return text, err
}

// fetch asks the target. It returns the content type of the answer.
func (t *target) fetch(ctx context.Context, to *bytes.Buffer) (kind string, err error) {
	if t.Refused {
		return "", errors.New("its job has more targets than its target_limit")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, t.Timeout, fmt.Errorf("no whole answer within the scrape_timeout of %s", t.Timeout))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.URL, http.NoBody)
	if err != nil {
		return "", err
	}
	accept := ""
	for i, protocol := range t.job.Protocols {
		accept += targets.MediaTypes[protocol] + ";q=0." + strconv.Itoa(9-i) + ","
	}
	req.Header.Set("Accept", accept+"*/*;q=0.1")
	req.Header.Set("User-Agent", "quern-agent/"+version.Read().Version)
	req.Header.Set("X-Prometheus-Scrape-Timeout-Seconds", strconv.FormatFloat(t.Timeout.Seconds(), 'f', -1, 64))
	req.Header.Set("Accept-Encoding", "gzip")
	resp, err := t.job.HTTPClient.Do(req)
	if err == nil {
		defer resp.Body.Close()
		kind = resp.Header.Get("Content-Type")
		err = t.receive(resp, to)
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return kind, err
}

// receive reads an answer.
func (t *target) receive(resp *http.Response, to *bytes.Buffer) error {
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the answer is %s", resp.Status)
	}
	from := io.Reader(resp.Body)
	if resp.Header.Get("Content-Encoding") == "gzip" {
		unzip := gunzips.Get().(*gzip.Reader)
		defer gunzips.Put(unzip)
		if err := unzip.Reset(from); err != nil {
			return err
		}
		from = unzip
	}
	limit := int64(maxAnswer)
	if most := int64(t.job.BodySizeLimit); most > 0 {
		limit = min(limit, most)
	}
	if n, err := to.ReadFrom(io.LimitReader(from, limit+1)); err != nil || n <= limit {
		return err
	}
	return fmt.Errorf("the answer has more than %d bytes, the body_size_limit, which is at most 16 MiB", limit)
}

// sample adds the sample at which a parser is.
func (t *target) sample(p *page, parser textparse.Parser) error {
	text, at, v := parser.Series()
	if !t.job.HonorTimestamps {
		at = nil
	}
	s := p.find(text)
	if s == nil {
		var exposed labels.Labels
		parser.Labels(&exposed)
		encoded, err := t.relabel(exposed)
		if err != nil {
			return err
		}
		s = p.found(text, encoded)
	}
	return t.take(p, s, at, v)
}

// take adds a sample of a series. at is nil if the target gives it no time.
func (t *target) take(p *page, s *series, at *int64, v float64) error {
	twice := s.seen && at == nil
	if !s.seen {
		s.seen, s.now = true, at != nil
		p.order, p.changed = append(p.order, s), p.changed || s.now != s.timed
	}
	p.scraped++
	if len(s.labels) == 0 {
		return nil
	}
	p.kept++
	switch {
	case twice:
		t.out.Warn("a target has a series twice; the first counts", t.stream, "series", string(s.text))
		return nil
	case t.job.SampleLimit > 0 && p.kept > int(t.job.SampleLimit):
		return nil // read counts them all
	case len(p.body) > maxPage:
		return errors.New("its samples with their labels have more than 64 MiB")
	}
	timeMs := p.timeMs
	if at != nil {
		timeMs = *at
	}
	p.add(s.labels, v, timeMs)
	return nil
}

// relabel returns the labels of a series as they are sent, nil if it is dropped.
func (t *target) relabel(exposed labels.Labels) ([]byte, error) {
	b := labels.NewBuilder(exposed)
	var hidden []labels.Label
	t.Labels.Range(func(l labels.Label) {
		if t.job.HonorLabels && exposed.Has(l.Name) {
			return
		}
		if other := exposed.Get(l.Name); other != "" {
			hidden = append(hidden, labels.Label{Name: l.Name, Value: other})
		}
		b.Set(l.Name, l.Value)
	})
	slices.SortStableFunc(hidden, func(a, b labels.Label) int { return cmp.Compare(len(a.Name), len(b.Name)) })
	for _, l := range hidden {
		name := model.ExportedLabelPrefix + l.Name
		for b.Get(name) != "" {
			name = model.ExportedLabelPrefix + name
		}
		b.Set(name, l.Value)
	}
	keep := relabel.ProcessBuilder(b, t.job.MetricRelabel...)
	all := b.Labels()
	if !keep || all.IsEmpty() {
		return nil, nil
	}
	if !all.IsValid(model.UTF8Validation) || !all.Has(model.MetricNameLabel) {
		return nil, fmt.Errorf("%s has no name, or labels that are not UTF-8", all)
	}
	var err error
	all.Range(func(l labels.Label) {
		if most := t.job.LabelNameLengthLimit; most > 0 && len(l.Name) > int(most) {
			err = fmt.Errorf("the name of the label %.50q has more than %d bytes, the label_name_length_limit", l.Name, most)
		}
		if most := t.job.LabelValueLengthLimit; most > 0 && len(l.Value) > int(most) {
			err = fmt.Errorf("a value of the label %s has more than %d bytes, the label_value_length_limit", l.Name, most)
		}
	})
	if most := t.job.LabelLimit; most > 0 && all.Len() > int(most) {
		err = fmt.Errorf("%s has more than %d labels, the label_limit", all.Get(model.MetricNameLabel), most)
	}
	return t.encode(b), err
}

// encode returns labels as a prometheus.TimeSeries has them, with those of external_labels.
func (t *target) encode(b *labels.Builder) []byte {
	t.job.External.Range(func(l labels.Label) {
		if b.Get(l.Name) == "" {
			b.Set(l.Name, l.Value)
		}
	})
	s := prompb.TimeSeries{Labels: prompb.FromLabels(b.Labels(), nil)}
	encoded, _ := s.Marshal() // it has no error
	return encoded
}
