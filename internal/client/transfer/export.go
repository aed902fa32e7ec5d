package transfer

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/quern/quern/internal/client"
	"github.com/quern/quern/internal/wire"
)

// Export says what to export, and where to.
type Export struct {
	Client client.Client
	// Match are selectors.
	Match []string
	// Start and End are the range as requested. They say whether another run continues this export.
	// A time that counts back from now refers to the first run.
	Start, End string
	// StartMs and EndMs are the range [StartMs, EndMs) in Unix ms.
	StartMs, EndMs int64
	// Part is the length of the range of one request.
	Part time.Duration
	// Path is the file, compressed if its name ends in .gz or .zst.
	Path string
	// Stdout is the output if Path is empty. Such an export cannot be continued.
	Stdout io.Writer
	// Annotations exports the annotations that start within the range, too.
	Annotations bool
	// Overwrite starts from the beginning, whatever the file holds.
	Overwrite bool
	// Progress receives what has been exported so far, including the unfinished part. The default
	// does nothing.
	Progress func(Exported)
	// Warn receives messages about damaged data that is left out. The default does nothing.
	Warn func(string)
}

// Exported is the result of an export.
type Exported struct {
	StartMs int64 `json:"start_ms"`
	EndMs   int64 `json:"end_ms"`
	// NextMs is the end of the last whole part.
	NextMs  int64 `json:"next_ms"`
	Samples int64 `json:"samples"`
	// Annotations is the number of annotations.
	Annotations int64 `json:"annotations"`
	// Bytes is the size of the file.
	Bytes int64 `json:"bytes"`
	// Damaged counts the warnings. Each stands for data that is missing from the export.
	Damaged int `json:"damaged"`
}

// exportState is stored beside the file until the export is done.
type exportState struct {
	URL   string   `json:"url"`
	Match []string `json:"match"`
	Start string   `json:"start"`
	End   string   `json:"end"`
	// Without says that annotations are left out.
	Without bool `json:"without_annotations,omitempty"`
	Exported
}

const exportSuffix = ".quern-export"

// Run exports. With an error it also returns what it has exported so far.
func (e *Export) Run(ctx context.Context) (Exported, error) {
	st := exportState{
		URL: e.Client.Name(), Match: e.Match, Start: e.Start, End: e.End, Without: !e.Annotations,
		Exported: Exported{StartMs: e.StartMs, EndMs: e.EndMs, NextMs: e.StartMs},
	}
	if e.Path == "" {
		err := e.parts(ctx, &st, e.Stdout, func() error { return nil })
		return st.Exported, err
	}
	f, err := e.open(&st)
	if err != nil {
		return st.Exported, err
	}
	path := e.Path + exportSuffix
	err = e.parts(ctx, &st, f, func() error { return errors.Join(f.Sync(), save(path, &st)) })
	if err == nil {
		err = remove(path)
	}
	return st.Exported, errors.Join(err, f.Close())
}

// open locks the file, cuts it to its last whole part, and loads its state into st. No other export
// can open the file until it is closed.
func (e *Export) open(st *exportState) (f *os.File, err error) {
	defer func() {
		if err != nil && f != nil {
			_ = f.Close()
		}
	}()
	path := e.Path + exportSuffix
	var before exportState
	found := false
	if !e.Overwrite {
		if found, err = load(path, &before); err != nil {
			return nil, fmt.Errorf("%w; --overwrite starts over", err)
		}
	}
	info, err := os.Stat(e.Path)
	switch {
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return nil, err
	case !found && err == nil && !e.Overwrite:
		return nil, fmt.Errorf("%s already exists, but there is no %s to continue from; --overwrite starts over", e.Path, path)
	case found && (before.URL != st.URL || !slices.Equal(before.Match, st.Match) || before.Start != st.Start || before.End != st.End || before.Without != st.Without):
		return nil, fmt.Errorf("%s is part of another export, of --url %s --match %q --start %s --end %s --annotations=%t: use the same flags to continue, or start over with --overwrite",
			e.Path, before.URL, before.Match, before.Start, before.End, !before.Without)
	case found && before.Bytes > 0 && (err != nil || info.Size() < before.Bytes):
		return nil, fmt.Errorf("%s is shorter than the %d bytes recorded in %s; --overwrite starts over", e.Path, before.Bytes, path)
	}
	if err == nil {
		if f, err = e.take(0); err != nil {
			return f, err
		}
	}
	if found {
		st.Exported = before.Exported
	} else if err := save(path, st); err != nil {
		return f, fmt.Errorf("cannot save the progress: %w", err)
	}
	// The state is written first, so that a file without a state never belongs to an export under
	// way.
	if f == nil {
		if f, err = e.take(os.O_CREATE); err != nil {
			return f, err
		}
	}
	if err := f.Truncate(st.Bytes); err != nil {
		return f, err
	}
	_, err = f.Seek(st.Bytes, io.SeekStart)
	return f, err
}

// take opens the file, unless another export is writing it.
func (e *Export) take(flags int) (*os.File, error) {
	f, err := os.OpenFile(e.Path, os.O_WRONLY|flags, 0o600)
	if err == nil && !lock(f) {
		err = fmt.Errorf("another export is writing %s: wait until it ends, or name another file", e.Path)
	}
	return f, err
}

// parts exports what is left, and calls keep after each part.
func (e *Export) parts(ctx context.Context, st *exportState, to io.Writer, keep func() error) error {
	for st.NextMs < st.EndMs {
		next := st.Exported
		next.NextMs = min(st.NextMs+e.Part.Milliseconds(), st.EndMs)
		if err := e.part(ctx, st.NextMs, &next, to); err != nil {
			return err
		}
		st.Exported = next
		if err := keep(); err != nil {
			return err
		}
		e.tell(st.Exported)
	}
	return nil
}

func (e *Export) tell(x Exported) {
	if e.Progress != nil {
		e.Progress(x)
	}
}

// toldLines is the number of lines between two calls of Progress.
const toldLines = 256

// part exports from startMs until x.NextMs, and adds to the counts in x.
func (e *Export) part(ctx context.Context, startMs int64, x *Exported, to io.Writer) error {
	form := url.Values{
		"match[]": e.Match, "start": {unixMs(startMs)}, "end": {unixMs(x.NextMs)},
		"exact": {"true"}, // so that stale markers are exported unchanged
	}
	if e.Annotations {
		form.Set("annotations", "true")
	}
	resp, err := e.Client.Do(ctx, http.MethodPost, wire.ExportPath, form)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	out, err := compressor(e.Path, io.MultiWriter(to, &counter{&x.Bytes}))
	if err != nil {
		return err
	}
	in := &lines{Reader: bufio.NewReaderSize(resp.Body, 256<<10)}
	var line []byte
	for n := 1; ; n++ {
		var size int64
		line, size, err = in.next(line[:0])
		switch {
		case errors.Is(err, io.EOF) && size == 0:
			for _, w := range slices.Concat(resp.Header.Values(warningHeader), resp.Trailer.Values(warningHeader)) {
				x.Damaged++
				if e.Warn != nil {
					e.Warn(w)
				}
			}
			return out.Close()
		case err != nil || size > maxLine || line[len(line)-1] != '\n':
			return fmt.Errorf("the server's answer ended early: %w", cmp.Or(err, io.ErrUnexpectedEOF))
		}
		if bytes.HasPrefix(line, []byte(`{"annotation"`)) {
			x.Annotations++
		} else {
			samples, err := samplesOf(line)
			if err != nil {
				return err
			}
			x.Samples += samples
		}
		if _, err := out.Write(line); err != nil {
			return err
		}
		if n%toldLines == 0 {
			soFar := *x
			soFar.NextMs = startMs
			e.tell(soFar)
		}
	}
}

// warningHeader names what is missing from a response.
const warningHeader = "Quern-Warning"

// samplesOf counts the samples of a line as servers write it, with the times last. If the line is
// an error message instead, it returns the error.
func samplesOf(line []byte) (int64, error) {
	if bytes.HasPrefix(line, []byte(`{"metric"`)) {
		times := line[bytes.LastIndexByte(line, '[')+1:]
		return int64(bytes.Count(times, []byte{','})) + 1, nil
	}
	var reply struct{ Error string }
	if err := json.Unmarshal(line, &reply); err != nil || reply.Error == "" {
		return 0, fmt.Errorf("the server's answer is not a Quern response: %.80q", line)
	}
	return 0, errors.New(reply.Error)
}

// unixMs formats a time for requests. Servers read a number below 1e11 as seconds.
func unixMs(ms int64) string {
	if ms < 1e11 {
		return strconv.FormatFloat(float64(ms)/1000, 'f', 3, 64)
	}
	return strconv.FormatInt(ms, 10)
}
