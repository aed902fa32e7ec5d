package integration

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
)

// client keeps no connections: a server that drains would wait for those that are new.
var client = &http.Client{Timeout: limit, Transport: &http.Transport{DisableKeepAlives: true}}

type reply struct {
	code   int
	header http.Header
	body   []byte
}

func do(req *http.Request) (reply, error) {
	resp, err := client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, body}, err
}

func (p *process) get(path string, query url.Values) (reply, error) {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, p.url+path+"?"+query.Encode(), nil)
	if err != nil {
		return reply{}, err
	}
	return do(req)
}

func (p *process) post(path string, body []byte, header ...string) (reply, error) {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, p.url+path, bytes.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return do(req)
}

// sample is one value of the series metric of source.
type sample struct {
	source, metric string
	ms             int64
	value          float64
}

// report sends samples of one source and is nil when all were acknowledged.
func (p *process) report(samples []sample) (reply, error) {
	type measurement struct {
		Metric string  `json:"metric"`
		Time   int64   `json:"time"`
		Value  float64 `json:"value"`
	}
	body := struct {
		Source       string        `json:"source"`
		Measurements []measurement `json:"measurements"`
	}{Source: samples[0].source}
	for _, s := range samples {
		body.Measurements = append(body.Measurements, measurement{s.metric, s.ms, s.value})
	}
	text, err := json.Marshal(body)
	if err != nil {
		return reply{}, err
	}
	r, err := p.post("/api/v1/reports", text)
	if err == nil && (r.code != http.StatusOK || !strings.Contains(string(r.body), fmt.Sprintf(`"accepted":%d,`, len(samples)))) {
		err = fmt.Errorf("%d: %s", r.code, r.body)
	}
	return r, err
}

// ofTests selects every series that report makes.
const ofTests = `{__name__=~"it_.*"}`

// within asks for all that is near now.
func within(selector string, back time.Duration) url.Values {
	return url.Values{
		"match[]": {selector},
		"start":   {strconv.FormatInt(time.Now().Add(-back).UnixMilli(), 10)},
		"end":     {strconv.FormatInt(time.Now().Add(10*time.Minute).UnixMilli(), 10)},
	}
}

// lines reads a reply of NDJSON.
func lines[T any](p *process, path string, query url.Values) ([]T, error) {
	r, err := p.get(path, query)
	if err != nil {
		return nil, err
	}
	if r.code != http.StatusOK {
		return nil, fmt.Errorf("%s: %d: %s", path, r.code, r.body)
	}
	var out []T
	for d := json.NewDecoder(bytes.NewReader(r.body)); ; {
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

// export is all raw samples that match.
func (p *process) export(selector string, back time.Duration) ([]sample, error) {
	type line struct {
		Metric     map[string]string `json:"metric"`
		Values     []float64         `json:"values"`
		Timestamps []int64           `json:"timestamps"`
	}
	ls, err := lines[line](p, "/api/v1/export", within(selector, back))
	var out []sample
	for _, l := range ls {
		for i, v := range l.Values {
			out = append(out, sample{l.Metric["source"], l.Metric["__name__"], l.Timestamps[i], v})
		}
	}
	return out, err
}

// status is the part of the aggregation status that tests look at.
type status struct {
	Buckets []struct {
		Bucket      string `json:"bucket"`
		Outstanding []struct {
			Slice int64 `json:"slice"`
			Marks int   `json:"marks"`
		} `json:"outstanding"`
		LagSeconds float64 `json:"lag_seconds"`
	} `json:"buckets"`
	Runs []struct {
		Bucket string `json:"bucket"`
		Slice  int64  `json:"slice"`
		Late   int    `json:"late"`
	} `json:"runs"`
	Errors []struct {
		Message string `json:"message"`
	} `json:"errors"`
}

func (p *process) status() (status, error) {
	var st status
	r, err := p.get("/api/v1/status/aggregation", nil)
	if err != nil {
		return st, err
	}
	return st, json.Unmarshal(r.body, &st)
}
