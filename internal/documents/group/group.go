// Package group has groups of metrics: a name for some metrics and sources, which people choose to see less at once.
// A group is no series and limits no rights.
package group

import (
	"bytes"
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

// Shelf returns the groups in docs.
func Shelf(docs shelf.Versions, clk clock.Clock) *shelf.Shelf {
	return shelf.New(shelf.Options{Documents: docs, Archive: docs, Clock: clk, Kind: Kind, MaxBytes: MaxBytes, Kept: keptVersions, Most: maxStored})
}

// Decode reads a group. It returns its name, and its one form in JSON, in which names are sorted and there once. The error
// is a *shelf.InvalidError.
func Decode(text []byte) (name string, body []byte, err error) {
	if len(text) > MaxBytes {
		return "", nil, invalid("the group has %d bytes, at most %d are allowed", len(text), MaxBytes)
	}
	if !utf8.Valid(text) {
		return "", nil, invalid("the group is not valid UTF-8")
	}
	in := json.NewDecoder(bytes.NewReader(text))
	// What a later version of Quern has more would be lost.
	in.DisallowUnknownFields()
	var g Group
	if err := in.Decode(&g); err != nil {
		return "", nil, invalid("the group is not valid JSON: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := in.Token(); !errors.Is(err, io.EOF) {
		return "", nil, invalid("there is more than one JSON object")
	}
	if err := valid("the name", g.Name); err != nil {
		return "", nil, err
	}
	if len(g.Metrics)+len(g.Sources) == 0 {
		return "", nil, invalid("the group has no metrics and no sources: name some")
	}
	for _, l := range []struct {
		what  string
		names *[]string
	}{{"metrics", &g.Metrics}, {"sources", &g.Sources}} {
		if len(*l.names) > MaxNames {
			return "", nil, invalid("the group has %d %s, at most %d are allowed", len(*l.names), l.what, MaxNames)
		}
		for i, name := range *l.names {
			if err := valid(fmt.Sprintf("number %d of the %s", i+1, l.what), name); err != nil {
				return "", nil, err
			}
		}
		slices.Sort(*l.names)
		*l.names = slices.Compact(*l.names)
		if *l.names == nil {
			*l.names = []string{}
		}
	}
	body, err = json.Marshal(g)
	return g.Name, body, err
}

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
