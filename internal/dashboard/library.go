package dashboard

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/quern/quern/internal/admission"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
)

const (
	// Kind is the kind of the documents that hold dashboards.
	Kind = "dashboard"
	// KeptVersions is how many versions of a dashboard are kept, deletions counted.
	KeptVersions = 20
	// BuiltIn is the origin of dashboards that are a part of the program.
	BuiltIn = "built in"
	// maxStored bounds the ids that are stored. Deleted dashboards keep theirs until another needs the room.
	maxStored = 10_000
	// headBytes is about what a head takes in memory, and as JSON.
	headBytes = 4 << 10
)

// Documents are what dashboards are stored in; see storage.Documents.
type Documents interface {
	Document(ctx context.Context, key storage.DocumentKey, version int64) (storage.Document, error)
	Documents(ctx context.Context, kind string) iter.Seq2[storage.DocumentHead, error]
	Versions(ctx context.Context, key storage.DocumentKey) iter.Seq2[storage.DocumentHead, error]
	PutDocument(ctx context.Context, d storage.Document, keep int) error
	ForgetDocument(ctx context.Context, key storage.DocumentKey, version int64) error
}

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
type MissingError struct{ Message string }

// Error implements error.
func (e *MissingError) Error() string { return e.Message }

// FixedError means that a dashboard cannot be changed here, since it comes from elsewhere.
type FixedError struct{ Origin string }

// Error implements error.
func (e *FixedError) Error() string {
	return fmt.Sprintf("this dashboard cannot be changed here, it is from elsewhere (%s): save a copy under another id", e.Origin)
}

// Library joins the dashboards that are stored, in files, and built in. Where several have one id, a file wins over
// what is stored, and that over what is built in: so files say what is shown, and a later version that has more built
// in hides nothing.
type Library struct {
	docs  Documents
	clk   clock.Clock
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
	return &Library{docs: o.Documents, clk: o.Clock, files: o.Files, built: built}, nil
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

func key(id string) storage.DocumentKey { return storage.DocumentKey{Kind: Kind, ID: id} }

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
	of := make(map[string]Head)
	for id, b := range l.built {
		of[id] = b.Head
	}
	for head, err := range l.docs.Documents(ctx, Kind) {
		if err != nil {
			return nil, err
		}
		if err := admission.Charge(ctx, headBytes); err != nil {
			return nil, err
		}
		_, shown := of[head.ID]
		if !head.Deleted || deleted && !shown {
			of[head.ID] = headOf(head)
		}
	}
	if l.files != nil {
		for _, h := range l.files.list() {
			of[h.ID] = h
		}
	}
	out := make([]Head, 0, len(of))
	for _, h := range of {
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b Head) int {
		return cmp.Or(strings.Compare(strings.ToLower(a.Title), strings.ToLower(b.Title)), strings.Compare(a.ID, b.ID))
	})
	return out, nil
}

func headOf(h storage.DocumentHead) Head {
	out := Head{ID: h.ID, Title: h.Title, Version: h.Version, UpdatedMs: h.UpdatedMs, Author: h.Author, Bytes: h.Bytes, Deleted: h.Deleted}
	if h.Damaged {
		out.Title, out.Problem = h.ID, damaged
	}
	return out
}

const damaged = "this version is damaged in the store"

// Get returns a dashboard: a version, or what is shown if version is 0. The memory is charged to the request. Errors
// are a *MissingError, or those of the store.
func (l *Library) Get(ctx context.Context, id string, version int64) (Stored, error) {
	if file, ok := l.file(id); ok {
		return fixedVersion(file, version)
	}
	if err := admission.Charge(ctx, MaxBytes); err != nil {
		return Stored{}, err
	}
	doc, err := l.docs.Document(ctx, key(id), version)
	built, hasBuilt := l.built[id]
	switch {
	case errors.Is(err, storage.ErrNoDocument) && hasBuilt, err == nil && doc.Deleted && hasBuilt && version == 0:
		return fixedVersion(built, version)
	case errors.Is(err, storage.ErrNoDocument):
		return Stored{}, l.missing(ctx, id, version)
	case err != nil:
		return Stored{}, err
	case doc.Deleted:
		return Stored{}, l.missing(ctx, id, version)
	case !json.Valid(doc.Body):
		return Stored{}, fmt.Errorf("%s version %d: %w", doc.DocumentKey, doc.Version, storage.ErrCorrupt)
	}
	return Stored{headOf(doc.DocumentHead), doc.Body}, nil
}

// fixedVersion returns what has no versions.
func fixedVersion(s Stored, version int64) (Stored, error) {
	switch {
	case s.Body == nil:
		return Stored{}, &MissingError{fmt.Sprintf("the dashboard %q cannot be shown: %s: %s", s.ID, s.Origin, s.Problem)}
	case version != 0:
		return Stored{}, &MissingError{fmt.Sprintf("the dashboard %q has no versions: it is not stored, but %s", s.ID, whence(s.Origin))}
	}
	return s, nil
}

func whence(origin string) string {
	if origin == BuiltIn {
		return origin
	}
	return "from the file " + origin
}

// missing says what there is in place of a dashboard, or of a version.
func (l *Library) missing(ctx context.Context, id string, version int64) error {
	newest, deleted := int64(0), false
	var kept []string
	for head, err := range l.docs.Versions(ctx, key(id)) {
		if err != nil {
			return err
		}
		if newest == 0 {
			newest, deleted = head.Version, head.Deleted
		}
		if !head.Deleted {
			kept = append(kept, fmt.Sprint(head.Version))
		}
	}
	slices.Reverse(kept)
	which := "no version of it is kept"
	if len(kept) > 0 {
		which = "these versions are kept: " + strings.Join(kept, ", ")
	}
	switch {
	case newest == 0:
		return &MissingError{fmt.Sprintf("there is no dashboard %q", id)}
	case version == 0 && deleted:
		return &MissingError{fmt.Sprintf("the dashboard %q was deleted; %s", id, which)}
	}
	return &MissingError{fmt.Sprintf("the dashboard %q has no version %d; %s", id, version, which)}
}

// Versions returns the versions that are kept of a dashboard, newest first. One that is not stored has one, 0.
func (l *Library) Versions(ctx context.Context, id string) ([]Head, error) {
	if file, ok := l.file(id); ok {
		return []Head{file.Head}, nil
	}
	var out []Head
	for head, err := range l.docs.Versions(ctx, key(id)) {
		if err != nil {
			return nil, err
		}
		if err := admission.Charge(ctx, headBytes); err != nil {
			return nil, err
		}
		out = append(out, headOf(head))
	}
	if built, ok := l.built[id]; ok && len(out) == 0 {
		return []Head{built.Head}, nil
	}
	if len(out) == 0 {
		return nil, &MissingError{fmt.Sprintf("there is no dashboard %q", id)}
	}
	return out, nil
}

// writable returns the newest version that is stored under an id, which has version 0 if there is none. It returns a
// *FixedError if what is shown is not stored.
func (l *Library) writable(ctx context.Context, id string) (storage.Document, error) {
	if file, ok := l.file(id); ok {
		return storage.Document{}, &FixedError{file.Origin}
	}
	doc, err := l.docs.Document(ctx, key(id), 0)
	switch {
	case errors.Is(err, storage.ErrNoDocument):
		doc, err = storage.Document{}, nil
	case errors.Is(err, storage.ErrCorrupt):
		// The next version takes the place of a damaged one.
		for head, err := range l.docs.Versions(ctx, key(id)) {
			return storage.Document{DocumentHead: head}, err
		}
		return storage.Document{}, err
	}
	if _, built := l.built[id]; err == nil && built && (doc.Version == 0 || doc.Deleted) {
		return doc, &FixedError{BuiltIn}
	}
	return doc, err
}

// Put stores d as the version after base, which is 0 for a new dashboard, and returns its number. If d is what is
// stored already, it returns the number of that and stores nothing, so that a put can be repeated. Errors are an
// *InvalidError, a *FixedError, a *storage.ConflictError, or those of the store.
func (l *Library) Put(ctx context.Context, id string, base int64, d *Dashboard, author string) (int64, error) {
	if !ValidID(id) {
		return 0, invalid("an id has 1 to %d of the characters a-z, 0-9, _, . and -, not %q", storage.MaxDocumentName, id)
	}
	text, err := d.Encode()
	if err != nil {
		return 0, err
	}
	if len(text) > MaxBytes {
		return 0, fmt.Errorf("the dashboard has %d bytes with all of its fields, at most %d are allowed: %w", len(text), MaxBytes, storage.ErrTooLarge)
	}
	if err := admission.Charge(ctx, MaxBytes); err != nil {
		return 0, err
	}
	now, err := l.writable(ctx, id)
	switch {
	case err != nil:
		return 0, err
	case now.Version > 0 && !now.Deleted && string(now.Body) == string(text):
		return now.Version, nil
	case now.Version != base:
		return 0, &storage.ConflictError{Key: key(id), Newest: now.Version}
	}
	if base == 0 {
		if err := l.roomForOne(ctx); err != nil {
			return 0, err
		}
	}
	next := storage.Document{DocumentHead: l.next(id, base, author), Body: text}
	next.Title = d.Title
	return next.Version, l.docs.PutDocument(ctx, next, KeptVersions)
}

func (l *Library) next(id string, base int64, author string) storage.DocumentHead {
	if len(author) > storage.MaxDocumentAuthor {
		author = author[:storage.MaxDocumentAuthor]
	}
	return storage.DocumentHead{DocumentKey: key(id), Version: base + 1, UpdatedMs: clock.NowMs(l.clk), Author: strings.ToValidUTF8(author, "")}
}

// roomForOne makes room for a new id: if the store is full, it forgets the dashboard that was deleted first. It returns
// an error if none is deleted.
func (l *Library) roomForOne(ctx context.Context) error {
	var oldest storage.DocumentHead
	n := 0
	for head, err := range l.docs.Documents(ctx, Kind) {
		if err != nil {
			return err
		}
		n++
		if head.Deleted && !head.Damaged && (oldest.Version == 0 || head.UpdatedMs < oldest.UpdatedMs) {
			oldest = head
		}
	}
	switch {
	case n < maxStored:
		return nil
	case oldest.Version == 0:
		return invalid("the store has %d dashboards and takes no more: delete one, or replace one", n)
	}
	err := l.docs.ForgetDocument(ctx, oldest.DocumentKey, oldest.Version)
	if errors.Is(err, storage.ErrConflict) {
		err = nil // it was put again a moment ago, and one more does no harm
	}
	return err
}

// Delete stores the deletion of a dashboard as the version after base, and returns its number. What was stored before
// stays among the versions. Errors are those of Put, and a *MissingError.
func (l *Library) Delete(ctx context.Context, id string, base int64, author string) (int64, error) {
	if err := admission.Charge(ctx, MaxBytes); err != nil {
		return 0, err
	}
	now, err := l.writable(ctx, id)
	switch {
	case err != nil:
		return 0, err
	case now.Deleted && now.Version == base+1:
		return now.Version, nil // repeated
	case now.Version == 0 || now.Deleted:
		return 0, l.missing(ctx, id, 0)
	case now.Version != base:
		return 0, &storage.ConflictError{Key: key(id), Newest: now.Version}
	}
	gone := l.next(id, base, author)
	gone.Deleted, gone.Title = true, now.Title
	return gone.Version, l.docs.PutDocument(ctx, storage.Document{DocumentHead: gone}, KeptVersions)
}
