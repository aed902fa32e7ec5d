package adaptor

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"

	"github.com/quern/quern/internal/agent/spool"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/remotewrite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var begin = time.UnixMilli(1763683200000)

// sample is one that came to the spool.
type sample struct {
	Source, Metric string
	Labels         map[string]string // nil if there are none
	Time           int64
	Value          float64
}

func (s sample) String() string {
	labels := ""
	for name, value := range s.Labels {
		labels += " " + name + "=" + value
	}
	return fmt.Sprintf("%s %s%s %v @%d", s.Source, s.Metric, labels, s.Value, s.Time)
}

// spooled returns the samples of a spool in their order, and the chunks that they came in.
func spooled(t *testing.T, s *spool.Spool) (samples []sample, chunks []spool.Chunk) {
	t.Helper()
	ended, stop := context.WithCancel(t.Context())
	stop()
	var at spool.Position
	for {
		next, behind, err := s.Next(ended, at, 1)
		if err != nil {
			require.ErrorIs(t, err, context.Canceled)
			return samples, chunks
		}
		at = behind
		for _, c := range next {
			chunks = append(chunks, c)
			samples = append(samples, decoded(t, c)...)
		}
	}
}

// decoded returns the samples of a chunk.
func decoded(t *testing.T, c spool.Chunk) (samples []sample) {
	t.Helper()
	z, err := zstd.NewReader(nil)
	require.NoError(t, err)
	defer z.Close()
	body, err := z.DecodeAll(c.Data, nil)
	require.NoError(t, err)
	var b ingest.Batch
	require.NoError(t, remotewrite.Decode(body, &b))
	for _, r := range b.Reports() {
		for _, m := range r.Measurements {
			one := sample{Source: r.Source, Metric: m.Metric, Time: m.TimeMs, Value: m.Value}
			for _, l := range m.Labels {
				if one.Labels == nil {
					one.Labels = map[string]string{}
				}
				one.Labels[l.Name] = l.Value
			}
			samples = append(samples, one)
		}
	}
	require.Len(t, samples, c.Samples)
	return samples
}

// rig is an output with a spool and a log.
type rig struct {
	*Output
	disk  spool.Options
	clock *clock.Simulated
	log   *bytes.Buffer
}

func newRig(t *testing.T) *rig {
	r := &rig{clock: clock.NewSimulated(begin), log: new(bytes.Buffer)}
	r.disk = spool.Options{FS: spool.Memory(), Clock: r.clock, Logger: slog.New(slog.DiscardHandler)}
	r.open(t)
	t.Cleanup(func() { require.NoError(t, r.Spool.Close()) })
	return r
}

func (r *rig) open(t *testing.T) {
	t.Helper()
	s, err := spool.Open("/spool", r.disk)
	require.NoError(t, err)
	r.Output = NewOutput(s, r.clock, slog.New(slog.NewTextHandler(r.log, nil)), "web-1")
}

// reopen is a restart of the process.
func (r *rig) reopen(t *testing.T) {
	t.Helper()
	require.NoError(t, r.Spool.Close())
	r.open(t)
}

// pass lets time pass.
func (r *rig) pass(d time.Duration) { r.clock.Set(r.clock.Now().Add(d)) }

// list parses the adaptors of a file.
func list(text string) ([]Configured, error) {
	var file struct{ Adaptors yaml.Node }
	if err := yaml.Unmarshal([]byte(text), &file); err != nil {
		return nil, err
	}
	return Parse("a.yaml", &file.Adaptors)
}

func TestParse(t *testing.T) {
	all, err := list(`
adaptors:
  - {type: host, interval: 30s, collectors: [cpu, loadavg]}
  - type: tail
    path: /var/log/app/*.log
    format: json
    source: web-7
    labels: {service: shop}
`)
	require.NoError(t, err)
	require.Equal(t, span(30*time.Second), all[0].Adaptor.(*Host).Interval)
	require.Equal(t, map[string]string{"service": "shop", metric.SourceLabel: "web-7"}, all[1].Adaptor.(*Tail).allLabels())

	_, err = list(`
adaptors:
  - {type: host, interval: 30}
  - {type: host, interval: 0s}
  - {type: host, collectors: [cpu, gpu]}
  - {type: hots}
  - host
  - type: tail
    path: /var/log/app/*.log
    format: json
    fromat: json
  - {type: tail, path: "[", format: json}
  - {type: tail, format: json}
  - {type: tail, path: [1], format: json}
  - {type: tail, path: /a, format: graphite}
  - {type: tail, path: /a, format: json}
  - {type: host}
  - type: tail
    path: /b
    format: json5
  - {type: exec, format: json}
  - {type: exec, shell: a, command: [a], format: json}
  - {type: exec, shell: a, format: json, timeout: 2m}
  - {type: exec, shell: a, format: nagios, count: lines}
  - {type: udp, listen: 8125, format: statsd}
  - {type: unix, listen: quern.sock, format: statsd}
  - {type: tcp, listen: ":2003", format: json}
  - {type: udp, listen: "127.0.0.1:8089", format: influx, interval: 10s}
  - {type: udp, listen: "127.0.0.1:8125", format: statsd, interval: 500ms}
  - {type: udp, listen: "127.0.0.1:8125", format: statsd, count: lines}
  - {type: http, listen: ":9095"}
`)
	require.EqualError(t, err, strings.TrimSpace(`
a.yaml, line 3: "30" is not a duration such as 90m, 24h, 7d or 1y
a.yaml, line 4: host: interval: must be whole milliseconds, at least 1ms
a.yaml, line 5: host: collectors: "gpu" is none of cpu, meminfo, swap, filesystem, diskstats, netdev, loadavg, uptime, processes
a.yaml, line 6: type "hots": an adaptor must have one of the types exec, host, http, scrape, tail, tcp, udp, unix, as in {type: host}
a.yaml, line 7: type "": an adaptor must have one of the types exec, host, http, scrape, tail, tcp, udp, unix, as in {type: host}
a.yaml, line 11: tail: unknown key "fromat"; it has path, source, format, labels, prefix, time-field, time-layout, label-fields, value-fields, metric-field, count, columns, separator, pattern
a.yaml, line 12: tail: path: must be a pattern of files, such as /var/log/app/*.log
a.yaml, line 13: tail: path: must be a pattern of files, such as /var/log/app/*.log
a.yaml, line 14: cannot unmarshal !!seq into string
a.yaml, line 16: tail /a: line 15 reads the same: remove one of them
a.yaml, line 20: tail: format: "json5" is none of json, logfmt, csv, access, regexp, influx, graphite
a.yaml, line 21: exec: command: give either it, as in command: [/bin/cat, /proc/loadavg], or shell, as in shell: df -P | tail -n +2
a.yaml, line 22: exec: command: give either it, as in command: [/bin/cat, /proc/loadavg], or shell, as in shell: df -P | tail -n +2
a.yaml, line 23: exec: timeout: must not be longer than the interval
a.yaml, line 24: exec: format: nagios uses only labels, prefix and source
a.yaml, line 25: udp: listen: must be an address and a port, such as 127.0.0.1:8125, or the path of a Unix socket, such as /run/quern/statsd.sock
a.yaml, line 26: unix: listen: must be an address and a port, such as 127.0.0.1:8125, or the path of a Unix socket, such as /run/quern/statsd.sock
a.yaml, line 27: tcp: format: "json" is none of statsd, graphite, influx
a.yaml, line 28: udp: interval: must be whole seconds, at least 1s, and only the format statsd has one
a.yaml, line 29: udp: interval: must be whole seconds, at least 1s, and only the format statsd has one
a.yaml, line 30: udp: unknown key "count"; it has listen, interval, format, source, labels, prefix
a.yaml, line 31: http: token-file: other machines reach this address: name a file that holds the token which they must send, or listen on 127.0.0.1
`))
	for _, text := range []string{"adaptors: []", "adaptors: {type: host}", "adaptors: host"} {
		_, err = list(text)
		require.EqualError(t, err, "a.yaml, line 1: adaptors: must be a list, such as [{type: host}]")
	}
}

// ended runs an adaptor for a time.
func ended(t *testing.T, a Adaptor, out *Output, d time.Duration) {
	ctx, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.Run(ctx, out)
	}()
	time.Sleep(d)
	synctest.Wait()
	end()
	<-done
}
