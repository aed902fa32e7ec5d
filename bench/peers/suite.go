package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const (
	// suiteVersion is the version of the Time Series Benchmark Suite, which generates data and queries.
	suiteModule, suiteVersion = "github.com/timescale/tsbs", "v0.0.0-20230921131859-37fced794d56"
	suiteHosts                = 100
	suiteSpan                 = 19 * time.Hour
	suiteRepeats              = 30
)

// suiteQueries are the types of queries that the suite has in PromQL.
var suiteQueries = strings.Fields(`single-groupby-1-1-1 single-groupby-1-1-12 single-groupby-1-8-1 single-groupby-5-1-1
	single-groupby-5-1-12 single-groupby-5-8-1 cpu-max-all-1 cpu-max-all-8 double-groupby-1 double-groupby-5 double-groupby-all`)

// suite is cpu-only of the Time Series Benchmark Suite, with its queries, and a dashboard of it.
func suite(ctx context.Context, opts options, end time.Time) (set, error) {
	dir := filepath.Join(opts.dir, "suite")
	if err := buildModule(ctx, dir, suiteModule, suiteVersion, []string{"cmd/tsbs_generate_data", "cmd/tsbs_generate_queries"}); err != nil {
		return set{}, err
	}
	start := end.Add(-suiteSpan)
	generate := func(program string, args ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, filepath.Join(dir, program), append(args,
			"--use-case=cpu-only", "--seed=123", fmt.Sprintf("--scale=%d", suiteHosts), "--format=victoriametrics",
			"--timestamp-start="+start.Format(time.RFC3339), "--timestamp-end="+end.Format(time.RFC3339))...)
		var messages bytes.Buffer
		cmd.Stderr = &messages
		out, err := cmd.Output()
		if err != nil {
			err = fmt.Errorf("%s: %w\n%s", cmd, err, messages.Bytes())
		}
		return out, err
	}
	lines, err := generate("tsbs_generate_data", "--log-interval=10s")
	if err != nil {
		return set{}, err
	}
	s := set{load: linesOf(lines), disk: "a value of TSBS cpu-only"}
	for _, kind := range suiteQueries {
		out, err := generate("tsbs_generate_queries", "--query-type="+kind, fmt.Sprintf("--queries=%d", warmUps+suiteRepeats))
		if err != nil {
			return set{}, err
		}
		requests, err := suiteRequests(out)
		if err != nil {
			return set{}, fmt.Errorf("%s: %w", kind, err)
		}
		s.queries = append(s.queries, query{"TSBS " + kind, suiteRepeats, func(i int) []string { return requests[i%len(requests)] }})
	}
	s.queries = append(s.queries, dashboard(end))
	return s, nil
}

// linesOf splits Influx lines with ten fields each into requests over two connections.
func linesOf(data []byte) load {
	const conns, batch, fields = 2, 10_000, 10
	l := load{name: "TSBS cpu-only", influx: true, header: http.Header{"Content-Type": {"text/plain"}}, byConn: make([][]request, conns)}
	for step := 0; len(data) > 0; step++ {
		n, size := 0, 0
		for n < batch && size < len(data) {
			next := bytes.IndexByte(data[size:], '\n')
			if next < 0 {
				break
			}
			n, size = n+1, size+next+1
		}
		if n == 0 {
			break
		}
		c := step % conns
		l.byConn[c] = append(l.byConn[c], request{data[:size], n * fields})
		data = data[size:]
	}
	return l
}

// severalMetrics is how the suite selects several metrics at once. PromQL refuses that within a
// function that drops the name, so such a query becomes one request for each metric.
var severalMetrics = regexp.MustCompile(`\{__name__=~'cpu_\(([^)]*)\)'(?:, *)?`)

// suiteRequests returns the requests of each generated query.
func suiteRequests(generated []byte) (all [][]string, err error) {
	for in := gob.NewDecoder(bufio.NewReader(bytes.NewReader(generated))); ; {
		var q struct{ Path []byte }
		switch err := in.Decode(&q); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		}
		u, err := url.Parse(string(q.Path))
		if err != nil {
			return nil, err
		}
		values := u.Query()
		values.Set("nocache", "1")
		promql := values.Get("query")
		several := severalMetrics.FindStringSubmatch(promql)
		if several == nil {
			all = append(all, []string{u.Path + "?" + values.Encode()})
			continue
		}
		var requests []string
		for metric := range strings.SplitSeq(several[1], "|") {
			values.Set("query", strings.Replace(promql, several[0], "cpu_"+metric+"{", 1))
			requests = append(requests, u.Path+"?"+values.Encode())
		}
		all = append(all, requests)
	}
}

// dashboard is 20 panels over the last hour, ten of one host and ten of all, which are asked for
// again for every 10 s that pass, at times that are multiples of the step. It is the only query that
// VictoriaMetrics answers from its cache.
func dashboard(end time.Time) query {
	const step = 15 * time.Second
	names := strings.Fields("user system idle nice iowait irq softirq steal guest guest_nice")
	return query{"dashboard of 20 panels over 1 h, refreshed after 10 s", 60, func(i int) []string {
		to := end.Add(-time.Hour + time.Duration(i)*10*time.Second).Truncate(step)
		var requests []string
		for _, name := range names {
			for _, promql := range []string{fmt.Sprintf(`cpu_usage_%s{hostname="host_7"}`, name), fmt.Sprintf(`avg(cpu_usage_%s)`, name)} {
				requests = append(requests, "/api/v1/query_range?"+url.Values{
					"query": {promql}, "start": {unix(to.Add(-time.Hour))}, "end": {unix(to)}, "step": {strconv.Itoa(int(step.Seconds()))},
				}.Encode())
			}
		}
		return requests
	}}
}
