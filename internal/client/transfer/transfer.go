// Package transfer moves raw samples and annotations between servers and files, as the NDJSON that servers export
// and import.
//
// Its invariants:
//
//  1. Whole parts: the state of an exported file names an offset only if everything before it is on
//     the disk, holds all samples up to some time, and ends with a whole line. In a compressed file
//     it also ends with a whole gzip member or zstd frame.
//  2. Nothing is left out: an import's state counts a line only if the server has acknowledged or
//     rejected all of its samples, or has refused the line when it was sent alone.
//  3. Restartable: the process may be killed at any point, and the same command continues. An
//     import may send samples twice, which count once.
package transfer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/quern/quern/internal/storage/durable"
)

// load reads the state at path, if there is one.
func load(path string, state any) (found bool, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(text, state); err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	return true, nil
}

// save writes the state to path. When it returns, the state is on the disk. A crash before that
// leaves the previous state.
func save(path string, state any) error {
	text, err := json.Marshal(state)
	if err != nil {
		return err
	}
	if err := durable.Write(path+".new", bytes.NewReader(append(text, '\n'))); err != nil {
		return err
	}
	return durable.Rename(path+".new", path)
}

// remove removes the state at path, if there is one.
func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// compressor returns a writer that compresses as the end of path says. Its output ends with Close,
// and another may follow in the same file.
func compressor(path string, to io.Writer) (io.WriteCloser, error) {
	switch {
	case strings.HasSuffix(path, ".gz"):
		return gzip.NewWriter(to), nil
	case strings.HasSuffix(path, ".zst"):
		return zstd.NewWriter(to, zstd.WithEncoderConcurrency(1))
	}
	return plain{to}, nil
}

type plain struct{ io.Writer }

func (plain) Close() error { return nil }

// decompressor detects the compression of a stream from its first bytes.
func decompressor(from peeker) (io.ReadCloser, error) {
	magic, err := from.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		return gzip.NewReader(from)
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		r, err := zstd.NewReader(from, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return r.IOReadCloser(), nil
	}
	return io.NopCloser(from), nil
}

type peeker interface {
	io.Reader
	Peek(n int) ([]byte, error)
}
