package spool

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/linear"
)

// BenchmarkAppend appends records of 100 bytes from 64 goroutines, to the disk.
func BenchmarkAppend(b *testing.B) {
	s, err := Open(b.TempDir(), Options{Clock: clock.System{}, MaxBytes: 8 << 30})
	if err != nil {
		b.Fatal(err)
	}
	const appenders = 64
	payload := make([]byte, 100)
	now := clock.NowMs(clock.System{})
	var wg sync.WaitGroup
	b.ResetTimer()
	for i := range appenders {
		wg.Go(func() {
			stream := fmt.Sprint("stream ", i)
			for n := i; n < b.N; n += appenders {
				if err := s.Append(b.Context(), Record{Stream: stream, SeqID: uint64(n), TimeMs: now, Payload: payload}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkOpen opens a spool of 1 GiB of records of 4 KB, and reads it. It reports the memory in use by the
// open spool, and what a reader adds to it.
func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	opts := Options{Clock: clock.System{}, MaxBytes: 2 << 30}
	s, err := Open(dir, opts)
	if err != nil {
		b.Fatal(err)
	}
	now := clock.NowMs(clock.System{})
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			payload := make([]byte, 4000)
			for n := range 4096 {
				if err := s.Append(b.Context(), Record{Stream: fmt.Sprint("stream ", i), SeqID: uint64(n), TimeMs: now, Payload: payload}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	before := linear.Heap()
	for b.Loop() {
		if s, err = Open(dir, opts); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		b.ReportMetric(float64(s.Stats().FileBytes), "file-bytes")
		b.ReportMetric(float64(linear.Heap())-float64(before), "heap-bytes")
		c, err := s.Consumer("a", Oldest)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := c.Next(b.Context(), 1<<20); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(linear.Heap())-float64(before), "heap-bytes-reading")
		runtime.KeepAlive(c)
		if err := c.Close(); err != nil {
			b.Fatal(err)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkRead reads 256 MiB in batches of 1 MiB.
func BenchmarkRead(b *testing.B) {
	s, err := Open(b.TempDir(), Options{Clock: clock.System{}, MaxBytes: 2 << 30})
	if err != nil {
		b.Fatal(err)
	}
	now := clock.NowMs(clock.System{})
	const appenders, each, size = 64, 1024, 4000
	var wg sync.WaitGroup
	for i := range appenders {
		wg.Go(func() {
			payload := make([]byte, size)
			for n := range each {
				if err := s.Append(b.Context(), Record{Stream: fmt.Sprint("stream ", i), SeqID: uint64(n), TimeMs: now, Payload: payload}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	c, err := s.Consumer("a", Oldest)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(appenders * each * size)
	for b.Loop() {
		for n := 0; n < appenders*each; {
			batch, err := c.Next(b.Context(), 1<<20)
			if err != nil {
				b.Fatal(err)
			}
			n += len(batch.Records)
		}
		if err := c.Rewind(); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}
