package dashboard

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/quern/quern/internal/clock"
)

const (
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

	mu   sync.Mutex
	byID map[string]file // by id; never changed, only replaced
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
		dir: dir, opts: opts, byID: make(map[string]file),
		count:  made.NewGauge(prometheus.GaugeOpts{Name: "quern_dashboard_files", Help: "Dashboards that come from files of --dashboards."}),
		failed: made.NewGauge(prometheus.GaugeOpts{Name: "quern_dashboard_files_failed", Help: "Files of --dashboards that cannot be used as they are now."}),
	}
	if err := f.read(); err != nil {
		return nil, fmt.Errorf("--dashboards %s: %w", dir, err)
	}
	return f, nil
}

// Reload reads the files, and uses those that have changed and can be used; the error says why others cannot. Reload is
// called by one goroutine at a time.
func (f *Files) Reload() (failed error) {
	broke := ""
	if err := f.read(); err != nil {
		f.failed.Set(1)
		if broke = err.Error(); broke != f.broke {
			f.opts.Logger.Error("directory of dashboards cannot be used; the earlier ones stay in use", "dir", f.dir, "err", err)
		}
		failed = fmt.Errorf("--dashboards %s: %w", f.dir, err)
	}
	f.broke = broke
	for _, one := range f.list() {
		if one.Problem != "" {
			failed = errors.Join(failed, fmt.Errorf("%s: %s", filepath.Join(f.dir, one.Origin), one.Problem))
		}
	}
	return failed
}

// get returns what a file has.
func (f *Files) get(id string) (Stored, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	one, ok := f.byID[id]
	return one.Stored, ok
}

// list returns what all files have.
func (f *Files) list() []Head {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]Head, 0, len(f.byID))
	for _, one := range f.byID {
		out = append(out, one.Head)
	}
	return out
}

// read reads all files.
func (f *Files) read() error {
	paths, err := f.paths()
	if err != nil {
		return err
	}
	f.mu.Lock()
	before := f.byID
	f.mu.Unlock()
	next, failed := make(map[string]file), 0
	for _, id := range slices.Sorted(maps.Keys(paths)) {
		if next[id] = f.one(id, paths[id], before[id]); next[id].Problem != "" {
			failed++
		}
	}
	for id, old := range before {
		if _, ok := next[id]; !ok {
			f.opts.Logger.Info("file of a dashboard is gone, and the dashboard with it", "file", old.Origin, "id", id)
		}
	}
	f.mu.Lock()
	f.byID = next
	f.mu.Unlock()
	f.count.Set(float64(len(next)))
	f.failed.Set(float64(failed))
	return nil
}

// paths returns the files to read by id, relative to the directory. Names that begin with a dot are left out: they are
// those of editors, and of Kubernetes, which keeps the content of a volume below one.
func (f *Files) paths() (map[string]string, error) {
	dir, err := filepath.EvalSymlinks(f.dir) // WalkDir follows no links
	if err != nil {
		return nil, err
	}
	out := make(map[string]string)
	return out, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		name, id := strings.TrimPrefix(path, dir+string(filepath.Separator)), ID(strings.TrimSuffix(e.Name(), suffix))
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
		case out[id] != "":
			return fmt.Errorf("the files %s and %s have the same id, %s: rename one", out[id], name, id)
		case len(out) == maxFiles:
			return fmt.Errorf("there are more than %d files of dashboards", maxFiles)
		default:
			out[id] = name
		}
		return nil
	})
}

// one reads one file, and logs what has changed. If the file cannot be used, what there was before stays, with the problem.
func (f *Files) one(id, name string, before file) file {
	next := before
	if before.Origin != name {
		next = file{Stored: Stored{Head: Head{ID: id, Title: id, Origin: name}}}
	}
	text, changedMs, err := readFile(filepath.Join(f.dir, name))
	if err != nil {
		text = []byte(err.Error()) // so that the same problem has the same digest
	}
	digest := sha256.Sum256(text)
	if digest == next.digest {
		return next
	}
	next.digest = digest
	var d *Dashboard
	if err == nil {
		d, err = Decode(text)
	}
	var body []byte
	if err == nil {
		body, err = d.Encode()
	}
	if err != nil {
		next.Problem = err.Error()
		f.opts.Logger.Error("file of a dashboard cannot be used as it is now", "file", name, "err", err, "earlier_in_use", next.Body != nil)
		return next
	}
	next.Body, next.Bytes, next.Title, next.UpdatedMs, next.Problem = body, len(body), d.Title, changedMs, ""
	f.opts.Logger.Info("dashboard read from a file", "file", name, "id", id)
	return next
}

// readFile returns the text of a file, and when it was changed, in Unix ms.
func readFile(path string) (text []byte, changedMs int64, err error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, 0, err
	case !info.Mode().IsRegular():
		return nil, 0, fmt.Errorf("%s is not a file", path) // to open a pipe would wait for a writer
	case info.Size() > MaxBytes:
		return nil, 0, fmt.Errorf("%s is larger than %d MiB", path, MaxBytes>>20)
	}
	text, err = os.ReadFile(path)
	return text, info.ModTime().UnixMilli(), err
}
