package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/documents/shelf"
	"github.com/quern/quern/internal/storage"
)

const (
	// Kind is the kind of the documents that hold dashboards.
	Kind = "dashboard"
	// KeptVersions is how many versions of a dashboard are kept, deletions counted.
	KeptVersions = 20
	// BuiltIn is the origin of dashboards that are a part of the program.
	BuiltIn = "built in"
	// maxStored bounds the ids that are stored; see shelf.Options.
	maxStored = 10_000
)

// Documents are what dashboards are stored in.
type Documents = shelf.Versions

// Head is what a list shows of a dashboard, or of one version of it.
type Head struct {
	ID, Title string
	// Version is 0 for a dashboard that is not stored.
	Version int64
	// UpdatedMs is when the version was made, in Unix ms; of a file when it was changed, and of what is built in 0.
	UpdatedMs int64
	Author    string
	// Origin is empty for what is stored. Otherwise it is BuiltIn, or the name of the file.
	Origin  string
	Bytes   int
	Deleted bool
	// Problem is why what is there now cannot be used, and an earlier one is, or none.
	Problem string
}

// Stored is a dashboard as JSON.
type Stored struct {
	Head
	Body []byte
}

// MissingError means that there is no such dashboard, or not this version.
type MissingError = shelf.MissingError

// FixedError means that a dashboard cannot be changed here, since it comes from elsewhere.
type FixedError = shelf.FixedError

// Library joins the dashboards that are stored, in files, and built in. Where several have one id, a file wins over
// what is stored, and that over what is built in: so files say what is shown, and a later version that has more built
// in hides nothing.
type Library struct {
	shelf *shelf.Shelf
	files *Files
	built map[string]Stored
}

// Options make a Library. Documents and Clock are required.
type Options struct {
	Documents Documents
	Clock     clock.Clock
	// Files are those of a directory, nil for none.
	Files *Files
	// Demo adds the dashboard of the demo's data.
	Demo bool
}

// NewLibrary returns the library.
func NewLibrary(o Options) (*Library, error) {
	built, err := builtIn(o.Demo)
	if err != nil {
		return nil, err
	}
	kept := shelf.New(shelf.Options{Documents: o.Documents, Archive: o.Documents, Clock: o.Clock, Kind: Kind, MaxBytes: MaxBytes, Kept: KeptVersions, Most: maxStored})
	return &Library{shelf: kept, files: o.Files, built: built}, nil
}

// ValidID reports whether a dashboard can have an id.
func ValidID(id string) bool { return storage.DocumentKey{Kind: Kind, ID: id}.Valid() }

// ID makes an id of a title or a file's name: lower case, and - for what an id cannot have.
func ID(text string) string {
	var id strings.Builder
	for _, c := range strings.ToLower(text) {
		switch {
		case id.Len() == storage.MaxDocumentName:
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '_', c == '.', c == '-':
			id.WriteRune(c)
		case id.Len() > 0 && !strings.HasSuffix(id.String(), "-"):
			id.WriteByte('-')
		}
	}
	return cmp.Or(strings.Trim(id.String(), "-"), "dashboard")
}

// file returns what is in a file under an id.
func (l *Library) file(id string) (Stored, bool) {
	if l.files == nil {
		return Stored{}, false
	}
	return l.files.get(id)
}

// List returns all dashboards, by title. deleted adds those that are stored and deleted. The memory is charged to the
// request.
func (l *Library) List(ctx context.Context, deleted bool) ([]Head, error) {
	heads := make(map[string]Head)
	for id, b := range l.built {
		heads[id] = b.Head
	}
	for head, err := range l.shelf.List(ctx) {
		if err != nil {
			return nil, err
		}
		_, shown := heads[head.ID]
		if !head.Deleted || deleted && !shown {
			heads[head.ID] = headOf(head)
		}
	}
	if l.files != nil {
		for _, h := range l.files.list() {
			heads[h.ID] = h
		}
	}
	out := make([]Head, 0, len(heads))
	for _, h := range heads {
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b Head) int {
		return cmp.Or(strings.Compare(strings.ToLower(a.Title), strings.ToLower(b.Title)), strings.Compare(a.ID, b.ID))
	})
	return out, nil
}

func headOf(h storage.DocumentHead) Head {
	return Head{ID: h.ID, Title: h.Title, Version: h.Version, UpdatedMs: h.UpdatedMs, Author: h.Author, Bytes: h.Bytes, Deleted: h.Deleted}
}

// Get returns a dashboard: a version, or what is shown if version is 0. The memory is charged to the request. Errors
// are a *MissingError, or those of the store.
func (l *Library) Get(ctx context.Context, id string, version int64) (Stored, error) {
	if file, ok := l.file(id); ok && version == 0 {
		if file.Body == nil {
			return Stored{}, &MissingError{Message: fmt.Sprintf("the dashboard %q cannot be shown: %s: %s", id, file.Origin, file.Problem)}
		}
		return file, nil
	}
	doc, err := l.shelf.Get(ctx, id, version)
	if built, ok := l.built[id]; ok && version == 0 && errors.As(err, new(*MissingError)) {
		return built, nil
	}
	if err != nil {
		return Stored{}, err
	}
	return Stored{headOf(doc.DocumentHead), doc.Body}, nil
}

// Versions returns the versions that are kept of a dashboard, newest first. One that is not stored has one, 0.
func (l *Library) Versions(ctx context.Context, id string) ([]Head, error) {
	if file, ok := l.file(id); ok {
		return []Head{file.Head}, nil
	}
	var out []Head
	for head, err := range l.shelf.Versions(ctx, id) {
		if err != nil {
			return nil, err
		}
		out = append(out, headOf(head))
	}
	if built, ok := l.built[id]; ok && len(out) == 0 {
		return []Head{built.Head}, nil
	}
	if len(out) == 0 {
		return nil, &MissingError{Message: fmt.Sprintf("there is no dashboard %q", id)}
	}
	return out, nil
}

// change returns a change of what is stored under an id. It may not be made if what is shown comes from elsewhere.
func (l *Library) change(id string, base int64, author string) shelf.Change {
	return shelf.Change{ID: id, Base: base, Author: author, May: func(newest storage.Document) error {
		if file, ok := l.file(id); ok {
			return &FixedError{Kind: Kind, Origin: file.Origin}
		}
		if _, built := l.built[id]; built && (newest.Version == 0 || newest.Deleted) {
			return &FixedError{Kind: Kind, Origin: BuiltIn}
		}
		return nil
	}}
}

// Put stores d as the version after base, which is 0 for a new dashboard, and returns its number; see shelf.Shelf. Errors
// are an *InvalidError, a *FixedError, a *storage.ConflictError, or those of the store.
func (l *Library) Put(ctx context.Context, id string, base int64, d *Dashboard, author string) (int64, error) {
	text, err := d.Encode()
	if err != nil {
		return 0, err
	}
	return l.shelf.Put(ctx, l.change(id, base, author), d.Title, text)
}

// Delete stores the deletion of a dashboard as the version after base, and returns its number. What was stored before
// stays among the versions. Errors are those of Put, and a *MissingError.
func (l *Library) Delete(ctx context.Context, id string, base int64, author string) (int64, error) {
	return l.shelf.Delete(ctx, l.change(id, base, author))
}
