package spool

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/linear"
)

// image returns the bytes of a segment with n records, and its footer.
func image(n int) (b []byte, h header, f footer) {
	h = header{salt: 0x1122334455667788, first: 7, before: 6}
	b = h.append(nil)
	f = footer{durable: h.first + uint64(n), next: h.first + uint64(n), streams: map[string]tally{}}
	for i := range n {
		fr := testFrame(h, i)
		b = fr.append(b, h, int64(len(b)))
		t := f.streams[fr.Stream]
		t.add(frameSize(&fr.Record))
		f.streams[fr.Stream] = t
		f.records++
		f.newestMs = fr.TimeMs
	}
	f.end = int64(len(b))
	b = append(b, make([]byte, 5)...)
	return f.append(b, h.salt), h, f
}

// TestGolden fixes the bytes of a segment and of the positions.
func TestGolden(t *testing.T) {
	b, h, f := image(2)
	p := []byte(hex.Dump(b))
	const path = "testdata/segment.golden"
	if *rewriteGolden {
		require.NoError(t, os.WriteFile(path, p, 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(p), "a change of a stored format needs a new version")

	got, err := decodeHeader(b)
	require.NoError(t, err)
	require.Equal(t, h, got)
	foot, ok := readFooter(bytes.NewReader(b), int64(len(b)), h)
	require.True(t, ok)
	require.Equal(t, f, foot)
	sc := newScanner(bytes.NewReader(b), h, f.end, f.records, f.durable)
	for n := range 2 {
		fr, bad, err := sc.next()
		require.NoError(t, err)
		require.Nil(t, bad)
		require.Equal(t, testFrame(h, n), fr)
	}
	_, _, err = sc.next()
	require.ErrorIs(t, err, io.EOF)
}

// TestPayloadsThatLookLikeRecords damages the header of a record whose payload is a segment.
func TestPayloadsThatLookLikeRecords(t *testing.T) {
	inner, _, _ := image(3)
	h := header{salt: 99, first: 0}
	b := h.append(nil)
	f := frame{Record: Record{Stream: "s", Payload: inner}, sum: crc32.Checksum(inner, castagnoli)}
	b = f.append(b, h, int64(len(b)))
	f.number, f.index = 1, 1
	f.Payload, f.sum = []byte("after"), crc32.Checksum([]byte("after"), castagnoli)
	b = f.append(b, h, int64(len(b)))
	b[headerBytes+20] ^= 1
	sc := newScanner(bytes.NewReader(b), h, int64(len(b)), 2, 2)
	_, bad, err := sc.next()
	require.NoError(t, err)
	require.Equal(t, &damage{offset: headerBytes, bytes: int64(frameBytes + 1 + len(inner)), records: 1}, bad)
	got, bad, err := sc.next()
	require.NoError(t, err)
	require.Nil(t, bad)
	require.Equal(t, "after", string(got.Payload))
}

// TestScanIsLinear scans segments that consist of starts of records.
func TestScanIsLinear(t *testing.T) {
	h := header{salt: 1}
	linear.Check(t, 1<<16, func(n int) []byte {
		b := h.append(nil)
		for len(b) < n {
			f := frame{Record: Record{Stream: strings.Repeat("s", 255), Payload: make([]byte, n-len(b))}}
			b = append(b, f.append(nil, h, int64(len(b)))[:60]...)
		}
		return b
	}, func(b []byte) { scanAll(t, b, h) })
}

func scanAll(t *testing.T, b []byte, h header) (frames []frame) {
	t.Helper()
	sc := newScanner(bytes.NewReader(b), h, int64(len(b)), 0, 0)
	at := int64(headerBytes)
	for {
		f, bad, err := sc.next()
		if errors.Is(err, io.EOF) {
			return frames
		}
		if err != nil {
			t.Fatal(err)
		}
		if bad != nil {
			if bad.offset != at || bad.bytes <= 0 {
				t.Fatalf("a damage at %d of %d bytes, after %d", bad.offset, bad.bytes, at)
			}
			at += bad.bytes
			continue
		}
		at += frameSize(&f.Record)
		if at > int64(len(b)) || int64(cap(sc.window)) > int64(len(b)) {
			t.Fatalf("%d bytes and a window of %d from %d", at, cap(sc.window), len(b))
		}
		f.Payload = bytes.Clone(f.Payload)
		frames = append(frames, f)
	}
}

// FuzzSegment decodes arbitrary bytes. What it finds must be, byte by byte, where it was found.
func FuzzSegment(f *testing.F) {
	for n := range 4 {
		b, _, _ := image(n)
		f.Add(b)
		f.Add(b[:len(b)/2])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeHeader(b)
		if err != nil {
			h = header{salt: 0x1122334455667788, first: 7} // the rest is worth a look
		}
		if foot, ok := readFooter(bytes.NewReader(b), int64(len(b)), h); ok {
			again := foot.append(nil, h.salt)
			if !bytes.HasSuffix(b, again) && len(foot.streams) > 0 {
				// A footer may name a stream twice or out of order; what it says must survive.
				other, ok := readFooter(bytes.NewReader(append(bytes.Clone(b[:foot.end]), again...)), foot.end+int64(len(again)), h)
				if !ok || fmt.Sprint(other) != fmt.Sprint(foot) {
					t.Fatalf("%v became %v", foot, other)
				}
			}
		}
		if len(b) <= headerBytes {
			return
		}
		for _, fr := range scanAll(t, b, h) {
			if fr.number < h.first || crc32.Checksum(fr.Payload, castagnoli) != fr.sum || len(fr.Stream) == 0 {
				t.Fatalf("%+v", fr)
			}
		}
	})
}
