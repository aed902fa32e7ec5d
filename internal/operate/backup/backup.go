// Package backup makes backups of the embedded store while it runs, and restores them. A place for backups has:
//
//	backups/NAME.json    the manifest of a backup, written last. NAME has its time, store and checksum
//	objects/SHA256       the files of the store, named by their content
//	busy/…               says that objects are being added, or removed
package backup

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/storage/durable"
	"github.com/quern/quern/internal/wire"
)

// Manifest says what a backup has. A change of its meaning is a new format.
type Manifest struct {
	Format int    `json:"format"`
	Store  string `json:"store"`
	Schema int    `json:"schema"` // of what the store keeps
	Quern  string `json:"quern"`  // the program's version
	Bytes  int64  `json:"bytes"`
	Files  []file `json:"files"`
}

type file struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// ErrRunning is the error of a backup while another one runs.
var ErrRunning = errors.New("a backup is running: wait until it has ended")

// Store is what a Maker needs of a store; see pebble.Store.
type Store interface {
	Checkpoint(ctx context.Context) (dir, store string, schema int, err error)
	RemoveCheckpoint() error
}

// Maker makes backups of a store, one at a time.
type Maker struct {
	Store          Store
	Place, Version string
	Clock          clock.Clock

	busy sync.Mutex
}

// Create makes a backup of all that the store acknowledged before. It reads at most so many bytes a second; 0 is no limit.
func (m *Maker) Create(ctx context.Context, rate int, progress func(wire.Backup) error) (made wire.Backup, err error) {
	if !m.busy.TryLock() {
		return made, ErrRunning
	}
	defer m.busy.Unlock()
	to, err := Open(m.Place)
	if err != nil {
		return made, err
	}
	defer finally(&err, m.Store.RemoveCheckpoint)
	dir, store, schema, err := m.Store.Checkpoint(ctx)
	if err != nil {
		return made, err
	}
	names, objects, release, err := to.claim(ctx, "backup-"+store)
	if err != nil {
		return made, err
	}
	defer finally(&err, release)
	if i := slices.IndexFunc(names, func(n string) bool { return !strings.Contains(n, store) }); i >= 0 {
		return made, fmt.Errorf("%s has a backup of another store, %s: give this one, %s, a place of its own", to.Name, names[i], store)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return made, err
	}
	pace := limits.NewPace(m.Clock, rate)
	whole := Manifest{Format: 1, Store: store, Schema: schema, Quern: m.Version}
	for i, e := range entries {
		made.Done, made.Total = i, len(entries)
		if err := errors.Join(ctx.Err(), progress(made)); err != nil {
			return made, err
		}
		f, sent, err := to.send(ctx, pace, filepath.Join(dir, e.Name()), objects)
		if err != nil {
			return made, err
		}
		whole.Files = append(whole.Files, f)
		whole.Bytes, made.Sent = whole.Bytes+f.Bytes, made.Sent+sent
	}
	content, err := json.Marshal(whole)
	if err != nil {
		return made, err
	}
	made.Name = m.Clock.Now().UTC().Format("20060102T150405.000Z-") + store + "-" + checksum(content)
	made.Bytes, made.Status = whole.Bytes, wire.Success
	return made, to.put(ctx, "backups/"+made.Name+".json", bytes.NewReader(content), int64(len(content)))
}

// finally keeps the error of what is done last, unless there is one.
func finally(err *error, do func() error) {
	if last := do(); *err == nil {
		*err = last
	}
}

// send makes a file an object, unless it is one.
func (p *Place) send(ctx context.Context, pace *limits.Pace, path string, objects map[string]int64) (f file, sent int64, err error) {
	in, err := os.Open(path)
	if err != nil {
		return f, 0, err
	}
	defer in.Close() //nolint:errcheck // it was only read
	hash, from := sha256.New(), paced{ctx, in, pace}
	if f.Bytes, err = io.Copy(hash, from); err == nil {
		_, err = in.Seek(0, io.SeekStart)
	}
	f.Name, f.SHA256 = filepath.Base(path), fmt.Sprintf("%x", hash.Sum(nil))
	if size, ok := objects[f.SHA256]; err != nil || ok && size == f.Bytes {
		return f, 0, err
	}
	objects[f.SHA256] = f.Bytes
	return f, f.Bytes, p.put(ctx, "objects/"+f.SHA256, from, f.Bytes)
}

// paced is a reader that takes its time.
type paced struct {
	ctx  context.Context
	from io.Reader
	pace *limits.Pace
}

func (p paced) Read(b []byte) (int, error) {
	n, err := p.from.Read(b)
	return n, cmp.Or(err, p.pace.Wait(p.ctx, n))
}

// claim returns what is there, and keeps out who would remove the objects that the caller adds, or add what it removes: of two
// at once each sees the mark of the other.
func (p *Place) claim(ctx context.Context, name string) (names []string, objects map[string]int64, release func() error, err error) {
	if err := p.put(ctx, "busy/"+name, strings.NewReader(""), 0); err != nil {
		return nil, nil, nil, err
	}
	release = func() error { return p.delete(ctx, "busy/"+name) }
	busy, err := p.list(ctx, "busy")
	for other := range busy {
		if strings.TrimSuffix(other, ".part") != name {
			err = fmt.Errorf("%s is under way at %s, or was cut off: let one end there, or remove %[2]s/busy/%[1]s", other, p.Name)
		}
	}
	names, unnamed := p.Names(ctx)
	objects, unlisted := p.list(ctx, "objects")
	if err = cmp.Or(err, unnamed, unlisted); err != nil {
		finally(&err, release)
	}
	return names, objects, release, err
}

// Names returns the names of the backups, oldest first.
func (p *Place) Names(ctx context.Context) (names []string, err error) {
	files, err := p.list(ctx, "backups")
	for name := range files {
		if name, ok := strings.CutSuffix(name, ".json"); ok { // otherwise it was cut off
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, err
}

// Read returns the manifest of a backup.
func (p *Place) Read(ctx context.Context, name string) (m Manifest, err error) {
	in, err := p.get(ctx, "backups/"+name+".json")
	if err != nil {
		return m, err
	}
	defer in.Close()
	content, err := io.ReadAll(in)
	if sum := checksum(content); err == nil && !strings.HasSuffix(name, "-"+sum) {
		err = fmt.Errorf("the manifest has the checksum %s, not that of its name: take another backup", sum)
	}
	if err == nil {
		err = json.Unmarshal(content, &m)
	}
	if err == nil && m.Format != 1 {
		err = fmt.Errorf("format %d is not known: use Quern %s", m.Format, m.Quern)
	}
	if err != nil {
		err = fmt.Errorf("%s/backups/%s.json: %w", p.Name, name, err)
	}
	return m, err
}

// checksum returns as much of a checksum as names have.
func checksum(content []byte) string { return fmt.Sprintf("%x", sha256.Sum256(content))[:16] }

// Restore writes the files of a backup to a directory that is empty or missing, and checks them. It gets its name when it is whole.
func (p *Place) Restore(ctx context.Context, m Manifest, to string, progress func(done, total int)) (err error) {
	if err := syscall.Rmdir(to); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s: %w: restore to a directory that does not exist", to, err)
	}
	part := filepath.Clean(to) + ".restoring"
	if err := errors.Join(os.RemoveAll(part), os.Mkdir(part, 0o700)); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(part)
		}
	}()
	for i, f := range m.Files {
		progress(i, len(m.Files))
		path := filepath.Join(part, filepath.Base(f.Name))
		if err := p.fetch(ctx, f, func(from io.Reader) error { return durable.Write(path, from) }); err != nil {
			return err
		}
	}
	if err := durable.Names(part); err != nil {
		return err
	}
	return durable.Rename(part, filepath.Clean(to))
}

// Verify reads a backup. The error names each object that is missing or damaged.
func (p *Place) Verify(ctx context.Context, m Manifest, progress func(done, total int)) (err error) {
	for i := 0; i < len(m.Files) && ctx.Err() == nil; i++ {
		progress(i, len(m.Files))
		err = errors.Join(err, p.fetch(ctx, m.Files[i], func(from io.Reader) error {
			_, err := io.Copy(io.Discard, from)
			return err
		}))
	}
	return cmp.Or(ctx.Err(), err)
}

// fetch reads an object.
func (p *Place) fetch(ctx context.Context, f file, read func(io.Reader) error) error {
	in, err := p.get(ctx, "objects/"+f.SHA256)
	if err != nil {
		return err
	}
	defer in.Close()
	hash := sha256.New()
	if err := read(io.TeeReader(in, hash)); err != nil {
		return fmt.Errorf("%s/objects/%s: %w", p.Name, f.SHA256, err)
	}
	if sum := fmt.Sprintf("%x", hash.Sum(nil)); sum != f.SHA256 {
		return fmt.Errorf("%s/objects/%s is damaged, it has the checksum %s: restore another backup, and remove the object: the next backup sends it again", p.Name, f.SHA256, sum)
	}
	return ctx.Err()
}

// Prune removes all backups but the newest, and the objects that only these had.
func (p *Place) Prune(ctx context.Context, keep int) (removed []string, err error) {
	names, objects, release, err := p.claim(ctx, "prune")
	if err != nil {
		return nil, err
	}
	defer finally(&err, release)
	removed = names[:max(0, len(names)-keep)]
	for _, name := range names[len(removed):] {
		m, rerr := p.Read(ctx, name)
		err = errors.Join(err, rerr) // then nothing is removed
		for _, f := range m.Files {
			delete(objects, f.SHA256)
		}
	}
	for _, name := range removed {
		if err == nil {
			err = p.delete(ctx, "backups/"+name+".json")
		}
	}
	for name := range objects {
		if err == nil {
			err = p.delete(ctx, "objects/"+name)
		}
	}
	return removed, err
}
