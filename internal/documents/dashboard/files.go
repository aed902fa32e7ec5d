package dashboard

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/quern/quern/internal/clock"
)

const (
	// Every is the time between two looks at the files.
	Every = 5 * time.Second
	// suffix is that of the files that are read.
	suffix = ".json"
	// maxFiles bounds the files that are read.
	maxFiles = 1000
)

// FilesOptions configure Files. All are required but Metrics.
type FilesOptions struct {
	Clock   clock.Clock
	Logger  *slog.Logger
	Metrics prometheus.Registerer
}

// Files are the dashboards in the files *.json below a directory. A file's name gives the id. Files are read again while the
// process runs. It holds: a file that cannot be used now changes nothing; what it had before stays in use. A file that is
// gone takes its dashboard with it, unless the directory cannot be used.
type Files struct {
	dir    string
	opts   FilesOptions
	failed prometheus.Gauge
	count  prometheus.Gauge
	broke  string // why the directory could not be read the last time

	mu sync.Mutex
	of map[string]file // by id; never changed, only replaced
}

// file is what is known of one file.
type file struct {
	Stored                   // Body is nil if it was never good
	digest [sha256.Size]byte // of what was read last
}

// OpenFiles reads a directory. It returns an error if it cannot be listed, has too many files, or two of one id. A file that cannot be used is logged.
func OpenFiles(dir string, opts FilesOptions) (*Files, error) {
	made := promauto.With(opts.Metrics)
	f := &Files{
		dir: dir, opts: opts, of: make(map[string]file),
		count:  made.NewGauge(prometheus.GaugeOpts{Name: "quern_dashboard_files", Help: "Dashboards that come from files of --dashboards."}),
		failed: made.NewGauge(prometheus.GaugeOpts{Name: "quern_dashboard_files_failed", Help: "Files of --dashboards that cannot be used as they are now."}),
	}
	if err := f.read(); err != nil {
		return nil, fmt.Errorf("--dashboards %s: %w", dir, err)
	}
	return f, nil
}

// Watch looks at the files every few seconds until ctx is done, and at once when something is received from again.
func (f *Files) Watch(ctx context.Context, again <-chan os.Signal) {
	clock.Repeat(ctx, f.opts.Clock, Every, again, func(bool) { f.Reload() })
}

// Reload reads the files, and uses those that have changed and can be used.
func (f *Files) Reload() {
	broke := ""
	if err := f.read(); err != nil {
		f.failed.Set(1)
		if broke = err.Error(); broke != f.broke {
			f.opts.Logger.Error("directory of dashboards cannot be used; the earlier ones stay in use", "dir", f.dir, "err", err)
		}
	}
	f.broke = broke
}

// get returns what a file has.
func (f *Files) get(id string) (Stored, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	one, ok := f.of[id]
	return one.Stored, ok
}

// list returns what all files have.
func (f *Files) list() []Head {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]Head, 0, len(f.of))
	for _, one := range f.of {
		out = append(out, one.Head)
	}
	return out
}

// read reads all files.
func (f *Files) read() error {
	dir, err := filepath.EvalSymlinks(f.dir) // WalkDir follows no links
	if err != nil {
		return err
	}
	all, err := paths(dir)
	if err != nil {
		return err
	}
	f.mu.Lock()
	before := f.of
	f.mu.Unlock()
	next := make(map[string]file)
	for _, path := range all {
		name := path
		if short, err := filepath.Rel(dir, path); err == nil {
			name = filepath.ToSlash(short)
		}
		id := ID(strings.TrimSuffix(filepath.Base(path), suffix))
		if first, taken := next[id]; taken {
			return fmt.Errorf("the files %s and %s have the same id, %s: rename one", first.Origin, name, id)
		}
		old, ok := before[id]
		if !ok || old.Origin != name {
			old = file{Stored: Stored{Head: Head{ID: id, Title: id, Origin: name}}}
		}
		next[id] = f.one(path, old)
	}
	failed := f.say(before, next)
	f.mu.Lock()
	f.of = next
	f.mu.Unlock()
	f.count.Set(float64(len(next)))
	f.failed.Set(float64(failed))
	return nil
}

// say logs what has changed. It returns the number of dashboards with a problem.
func (f *Files) say(before, next map[string]file) (failed int) {
	for _, id := range slices.Sorted(maps.Keys(next)) {
		now, old := next[id], before[id]
		switch {
		case now.Problem != "" && (now.Problem != old.Problem || now.Origin != old.Origin):
			f.opts.Logger.Error("file of a dashboard cannot be used as it is now", "file", now.Origin, "err", now.Problem, "earlier_in_use", now.Body != nil)
		case now.Problem == "" && (now.digest != old.digest || now.Origin != old.Origin):
			f.opts.Logger.Info("dashboard read from a file", "file", now.Origin, "id", id)
		}
		if now.Problem != "" {
			failed++
		}
	}
	for _, id := range slices.Sorted(maps.Keys(before)) {
		if _, ok := next[id]; !ok {
			f.opts.Logger.Info("file of a dashboard is gone, and the dashboard with it", "file", before[id].Origin, "id", id)
		}
	}
	return failed
}

// paths returns the files to read, in order. Names that begin with a dot are left out: they are those of editors, and
// of Kubernetes, which keeps the content of a volume below one.
func paths(dir string) (all []string, err error) {
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path == dir && !e.IsDir():
			return errors.New("it is not a directory")
		case path != dir && strings.HasPrefix(e.Name(), "."):
			if e.IsDir() {
				return filepath.SkipDir
			}
		case e.IsDir() || !strings.HasSuffix(e.Name(), suffix):
		case len(all) == maxFiles:
			return fmt.Errorf("there are more than %d files of dashboards", maxFiles)
		default:
			all = append(all, path)
		}
		return nil
	})
	return all, err
}

// one reads one file. If it cannot be used, it returns what there was before, with the problem.
func (f *Files) one(path string, old file) file {
	text, changedMs, err := readFile(path)
	if err != nil {
		text = []byte(err.Error()) // so that the same problem has the same digest
	}
	digest := sha256.Sum256(text)
	if digest == old.digest {
		return old
	}
	next := old
	next.digest, next.UpdatedMs, next.Problem = digest, changedMs, ""
	if err == nil {
		next.Body, err = use(text, &next.Head)
	}
	if err != nil {
		old.digest, old.Problem = digest, err.Error()
		return old
	}
	return next
}

// use makes a dashboard of a file's text.
func use(text []byte, head *Head) (body []byte, err error) {
	d, err := Decode(text)
	if err != nil {
		return nil, err
	}
	if body, err = d.Encode(); err != nil {
		return nil, err
	}
	if len(body) > MaxBytes { // with all fields it is longer than in the file
		return nil, invalid("the dashboard has %d bytes, at most %d are allowed", len(body), MaxBytes)
	}
	head.Title, head.Bytes = d.Title, len(body)
	return body, nil
}

// readFile returns the text of a file, and when it was changed, in Unix ms.
func readFile(path string) (text []byte, changedMs int64, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%s is not a file", path) // to open a pipe would wait for a writer
	}
	in, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer in.Close() //nolint:errcheck // only read
	var buf bytes.Buffer
	if _, err := buf.ReadFrom(io.LimitReader(in, MaxBytes+1)); err != nil {
		return nil, 0, err
	}
	if buf.Len() > MaxBytes {
		return nil, 0, fmt.Errorf("%s is larger than %d MiB", path, MaxBytes>>20)
	}
	return buf.Bytes(), info.ModTime().UnixMilli(), nil
}
