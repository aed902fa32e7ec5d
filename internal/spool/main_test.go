package spool

import (
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/clock"
)

var rewriteGolden = flag.Bool("rewrite", false, "rewrite the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var testStart = time.UnixMilli(1_700_000_000_000)

// harness opens spools in one directory of one file system, and records what they report.
type harness struct {
	t     *testing.T
	fs    vfs.FS
	clock *clock.Simulated
	max   int64

	mu     sync.Mutex
	losses []Loss
}

func newHarness(t *testing.T, fs vfs.FS) *harness {
	return &harness{t: t, fs: fs, clock: clock.NewSimulated(testStart), max: 32 << 10}
}

func (h *harness) options() Options {
	return Options{FS: h.fs, Clock: h.clock, MaxBytes: h.max, OnLoss: func(l Loss) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.losses = append(h.losses, l)
	}}
}

func (h *harness) open() *Spool {
	h.t.Helper()
	s, err := Open("/spool", h.options())
	require.NoError(h.t, err)
	return s
}

// lost returns how many records were reported as lost, by stream and reason.
func (h *harness) lost() map[LossKey]uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	got := map[LossKey]uint64{}
	for _, l := range h.losses {
		got[LossKey{l.Stream, l.Reason}] += l.Records
	}
	return got
}

// record returns the n-th record of a stream, whose payload follows from both.
func record(stream string, n int) Record {
	payload := fmt.Appendf(nil, "%s %d ", stream, n)
	for len(payload) < 40+n%60 {
		payload = append(payload, byte(len(payload)*n))
	}
	return Record{Stream: stream, SeqID: uint64(100 * (n + 1)), TimeMs: testStart.UnixMilli() + int64(n), Payload: payload}
}

func (h *harness) append(s *Spool, records ...Record) {
	h.t.Helper()
	for _, r := range records {
		require.NoError(h.t, s.Append(h.t.Context(), r))
	}
}

func records(stream string, from, to int) (rs []Record) {
	for n := from; n < to; n++ {
		rs = append(rs, record(stream, n))
	}
	return rs
}

// rest returns all that the consumer has not read yet.
func rest(t *testing.T, c *Consumer) (got []Record) {
	t.Helper()
	for c.behind() {
		b, err := c.Next(t.Context(), 500)
		require.NoError(t, err)
		got = append(got, b.Records...)
	}
	return got
}

// behind reports whether Next would not wait: a record that is not dropped is left.
func (c *Consumer) behind() bool {
	number := c.number
	for {
		g, _, err := c.segment()
		if err != nil || g == nil {
			return false
		}
		b, err := c.read(g, 1)
		if err != nil || len(b.Records) > 0 {
			c.number = number
			_ = c.close()
			return true
		}
	}
}

func consumer(t *testing.T, s *Spool, name string) *Consumer {
	t.Helper()
	c, err := s.Consumer(name, Oldest)
	require.NoError(t, err)
	return c
}

func testFrame(h header, n int) frame {
	r := record("s", n)
	return frame{Record: r, number: h.first + uint64(n), group: h.first + uint64(n), index: uint32(n), sum: crc32.Checksum(r.Payload, castagnoli)}
}

var errInjected = errors.New("injected")
