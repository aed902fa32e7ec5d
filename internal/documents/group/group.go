// Package group has groups of metrics: a name for some metrics and sources, which people choose to see less at once.
// A group is no series and limits no rights.
package group

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/documents/shelf"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/wire/excerpt"
)

const (
	// Kind is the kind of the documents that hold groups.
	Kind = "group"
	// MaxBytes bounds the JSON of a group.
	MaxBytes = 256 << 10
	// MaxNames bounds the metrics of a group, and its sources. MaxName bounds one of them, and the group's name, in bytes.
	MaxNames = 1000
	MaxName  = 1 << 10
	// keptVersions is how many versions of a group are kept, maxStored how many ids of groups a store holds; see shelf.Options.
	keptVersions = 20
	maxStored    = 1000
)

// Group names some metrics and sources. An empty list stands for all.
type Group struct {
	Name    string   `json:"name"`
	Metrics []string `json:"metrics"`
	Sources []string `json:"sources"`
}

func invalid(format string, args ...any) error {
	return &shelf.InvalidError{Message: fmt.Sprintf(format, excerpt.Args(args)...)}
}

// Decode reads a group. The error is a *shelf.InvalidError. Names are sorted, and there once.
func Decode(text []byte) (*Group, error) {
	if len(text) > MaxBytes {
		return nil, invalid("the group has %d bytes, at most %d are allowed", len(text), MaxBytes)
	}
	if !utf8.Valid(text) {
		return nil, invalid("the group is not valid UTF-8")
	}
	in := json.NewDecoder(bytes.NewReader(text))
	// What a later version of Quern has more would be lost.
	in.DisallowUnknownFields()
	var g Group
	if err := in.Decode(&g); err != nil {
		return nil, invalid("the group is not valid JSON: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := in.Token(); !errors.Is(err, io.EOF) {
		return nil, invalid("there is more than one JSON object")
	}
	if err := valid("the name", g.Name); err != nil {
		return nil, err
	}
	if len(g.Metrics)+len(g.Sources) == 0 {
		return nil, invalid("the group has no metrics and no sources: name some")
	}
	for _, l := range []struct {
		what  string
		names *[]string
	}{{"metrics", &g.Metrics}, {"sources", &g.Sources}} {
		if len(*l.names) > MaxNames {
			return nil, invalid("the group has %d %s, at most %d are allowed", len(*l.names), l.what, MaxNames)
		}
		for i, name := range *l.names {
			if err := valid(fmt.Sprintf("number %d of the %s", i+1, l.what), name); err != nil {
				return nil, err
			}
		}
		slices.Sort(*l.names)
		*l.names = slices.Compact(*l.names)
		if *l.names == nil {
			*l.names = []string{}
		}
	}
	return &g, nil
}

// Encode returns the JSON of a group.
func (g *Group) Encode() ([]byte, error) { return json.Marshal(g) }

func valid(what, name string) error {
	switch {
	case strings.TrimSpace(name) == "":
		return invalid("%s is empty", what)
	case len(name) > MaxName:
		return invalid("%s has %d bytes, at most %d are allowed", what, len(name), MaxName)
	case strings.ContainsFunc(name, unicode.IsControl):
		return invalid("%s has a line break, or another control character", what)
	}
	return nil
}

// Library keeps groups.
type Library struct{ shelf *shelf.Shelf }

// NewLibrary returns the library of the groups in docs.
func NewLibrary(docs shelf.Documents, clk clock.Clock) *Library {
	return &Library{shelf.New(shelf.Options{Documents: docs, Clock: clk, Kind: Kind, MaxBytes: MaxBytes, Kept: keptVersions, Most: maxStored})}
}

// List returns the heads of all groups, by name.
func (l *Library) List(ctx context.Context) ([]storage.DocumentHead, error) {
	var out []storage.DocumentHead
	for head, err := range l.shelf.List(ctx) {
		if err != nil {
			return nil, err
		}
		if !head.Deleted {
			out = append(out, head)
		}
	}
	slices.SortFunc(out, func(a, b storage.DocumentHead) int {
		if c := strings.Compare(strings.ToLower(a.Title), strings.ToLower(b.Title)); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return out, nil
}

// Get returns the newest version of a group. Its body is the JSON of a Group.
func (l *Library) Get(ctx context.Context, id string) (storage.Document, error) {
	return l.shelf.Get(ctx, id, 0)
}

// Put stores a group as the version after base, and returns its number; see shelf.Shelf.
func (l *Library) Put(ctx context.Context, id string, base int64, g *Group, author string) (int64, error) {
	text, err := g.Encode()
	if err != nil {
		return 0, err
	}
	return l.shelf.Put(ctx, shelf.Change{ID: id, Base: base, Author: author}, g.Name, text)
}

// Delete stores the deletion of a group as the version after base, and returns its number; see shelf.Shelf.
func (l *Library) Delete(ctx context.Context, id string, base int64, author string) (int64, error) {
	return l.shelf.Delete(ctx, shelf.Change{ID: id, Base: base, Author: author})
}
