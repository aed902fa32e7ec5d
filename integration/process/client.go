package process

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/quern/quern/internal/wire"
)

// Client keeps no connections open: a server that drains would wait for new ones.
var Client = &http.Client{Timeout: Limit, Transport: &http.Transport{DisableKeepAlives: true}}

// Reply is an HTTP response.
type Reply struct {
	Code   int
	Header http.Header
	Body   []byte
}

func do(req *http.Request) (Reply, error) {
	resp, err := Client.Do(req)
	if err != nil {
		return Reply{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return Reply{resp.StatusCode, resp.Header, body}, err
}

// Get sends a GET request.
func (p *Process) Get(path string, query url.Values) (Reply, error) {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, p.URL+path+"?"+query.Encode(), nil)
	if err != nil {
		return Reply{}, err
	}
	return do(req)
}

// Post sends a POST request with a JSON body. header sets other headers: names and values in turn.
func (p *Process) Post(path string, body []byte, header ...string) (Reply, error) {
	return p.post(context.Background(), path, body, header...)
}

func (p *Process) post(ctx context.Context, path string, body []byte, header ...string) (Reply, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.URL+path, bytes.NewReader(body))
	if err != nil {
		return Reply{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return do(req)
}

// Sample is one value of the series metric of source, at a time in Unix ms.
type Sample struct {
	Source, Metric string
	Ms             int64
	Value          float64
}

// Report sends samples of one source. The error is nil only if all were acknowledged.
func (p *Process) Report(ctx context.Context, samples []Sample) (Reply, error) {
	type measurement struct {
		Metric string  `json:"metric"`
		Time   int64   `json:"time"`
		Value  float64 `json:"value"`
	}
	body := struct {
		Source       string        `json:"source"`
		Measurements []measurement `json:"measurements"`
	}{Source: samples[0].Source}
	for _, s := range samples {
		body.Measurements = append(body.Measurements, measurement{s.Metric, s.Ms, s.Value})
	}
	text, err := json.Marshal(body)
	if err != nil {
		return Reply{}, err
	}
	r, err := p.post(ctx, wire.ReportsPath, text)
	if err == nil && (r.Code != http.StatusOK || !strings.Contains(string(r.Body), fmt.Sprintf(`"accepted":%d,`, len(samples)))) {
		err = fmt.Errorf("%d: %s", r.Code, r.Body)
	}
	return r, err
}

// OfTests selects every series that tests report.
const OfTests = `{__name__=~"it_.*"}`

// Within returns the parameters for a time range from back before now until 10 minutes after.
func Within(selector string, back time.Duration) url.Values {
	return url.Values{
		"match[]": {selector},
		"start":   {strconv.FormatInt(time.Now().Add(-back).UnixMilli(), 10)},
		"end":     {strconv.FormatInt(time.Now().Add(10*time.Minute).UnixMilli(), 10)},
	}
}

// Lines reads an NDJSON reply.
func Lines[T any](p *Process, path string, query url.Values) ([]T, error) {
	r, err := p.Get(path, query)
	if err != nil {
		return nil, err
	}
	if r.Code != http.StatusOK {
		return nil, fmt.Errorf("%s: %d: %s", path, r.Code, r.Body)
	}
	var out []T
	for d := json.NewDecoder(bytes.NewReader(r.Body)); ; {
		var v T
		switch err := d.Decode(&v); err {
		case nil:
			out = append(out, v)
		case io.EOF:
			return out, nil
		default:
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
}

// Export returns all raw samples that match.
func (p *Process) Export(selector string, back time.Duration) ([]Sample, error) {
	ls, err := Lines[wire.Samples](p, wire.ExportPath, Within(selector, back))
	var out []Sample
	for _, l := range ls {
		for i, v := range l.Values {
			out = append(out, Sample{l.Metric["source"], l.Metric["__name__"], l.Timestamps[i], float64(v)})
		}
	}
	return out, err
}

// Status returns the aggregation status. A server whose store is away returns an error.
func (p *Process) Status() (wire.Status, error) {
	var st wire.Status
	r, err := p.Get(wire.StatusPath, nil)
	if err != nil {
		return st, err
	}
	if r.Code != http.StatusOK {
		return st, fmt.Errorf("the aggregation status: %d: %s", r.Code, r.Body)
	}
	return st, json.Unmarshal(r.Body, &st)
}
