// Package adaptor turns what a host has into streams of samples. Each type of adaptor is a file, and a row of types.
package adaptor

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/quern/quern/internal/metric"
)

// Adaptor reads something on the host.
type Adaptor interface {
	// Run reads until ctx ends. What goes wrong it tells the output, and goes on.
	Run(ctx context.Context, out *Output)
	// String returns its type, and what it reads. The names of its streams begin with that.
	String() string
}

// configured is an Adaptor that a file can have.
type configured interface {
	Adaptor
	// check checks the settings. The error begins with the key that is wrong.
	check() error
}

// types has an adaptor of each type, with its defaults.
var types = map[string]func() configured{
	"host":   func() configured { return &Host{Interval: span(10 * time.Second)} },
	"exec":   func() configured { return &Exec{Interval: span(time.Minute)} },
	"http":   func() configured { return &HTTP{} },
	"scrape": func() configured { return &Scrape{} },
	"tail":   func() configured { return &Tail{} },
	"tcp":    func() configured { return &Socket{kind: "tcp", network: "tcp"} },
	"udp":    func() configured { return &Socket{kind: "udp", network: "udp"} },
	"unix":   func() configured { return &Socket{kind: "unix", network: "unixgram"} },
}

// reader is an adaptor whose settings are in another file, too.
type reader interface{ content() []byte }

// Configured is an adaptor with what its file, or files, say of it.
type Configured struct {
	Adaptor
	Node  *yaml.Node
	Text  string // that of the node, and of a file that it names
	Added bool   // by a client, not by the agent's own file
}

// ID returns what names an adaptor in the paths of an API.
func (c *Configured) ID() string { return fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(c.String()))) }

// RunsCommands reports whether it does.
func (c *Configured) RunsCommands() bool {
	_, runs := c.Adaptor.(*Exec)
	return runs
}

// Parse returns the adaptors of a YAML list in a file. The error has a line for each mistake, with its place.
func Parse(file string, list *yaml.Node) (adaptors []Configured, err error) {
	if list.Kind != yaml.SequenceNode || len(list.Content) == 0 {
		return nil, fmt.Errorf("%s, line %d: adaptors: must be a list, such as [{type: host}]", file, list.Line)
	}
	var errs []error
	seen := map[string]int{} // the line of each
	for _, node := range list.Content {
		a, err := parse(node)
		if err == nil {
			if name := a.String(); !utf8.ValidString(name) {
				err = fmt.Errorf("line %d: %q is not UTF-8", node.Line, name)
			} else if seen[name] > 0 {
				err = fmt.Errorf("line %d: %s: line %d reads the same: remove one of them", node.Line, name, seen[name])
			} else {
				seen[name] = node.Line
			}
		}
		if err != nil {
			errs = append(errs, errors.New(file+", "+strings.ReplaceAll(err.Error(), "\n", "\n"+file+", ")))
		}
		text, _ := yaml.Marshal(node) // it was read from text
		if r, more := a.(reader); more {
			text = append(text, r.content()...)
		}
		adaptors = append(adaptors, Configured{Adaptor: a, Node: node, Text: string(text)})
	}
	return adaptors, errors.Join(errs...)
}

func parse(node *yaml.Node) (configured, error) {
	lines := map[string]int{} // of the keys
	kind := ""
	if node.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(node.Content); i += 2 {
			key, value := node.Content[i], node.Content[i+1]
			lines[key.Value] = key.Line
			if key.Value == "type" {
				kind = value.Value
			}
		}
	}
	known := strings.Join(slices.Sorted(maps.Keys(types)), ", ")
	if types[kind] == nil {
		return nil, fmt.Errorf("line %d: type %q: an adaptor must have one of the types %s, as in {type: host}", node.Line, kind, known)
	}
	a := types[kind]()
	keys := keysOf(reflect.TypeOf(a).Elem())
	for _, key := range slices.Sorted(maps.Keys(lines)) {
		if key != "type" && !slices.Contains(keys, key) {
			return nil, fmt.Errorf("line %d: %s: unknown key %q; it has %s", lines[key], kind, key, strings.Join(keys, ", "))
		}
	}
	if err := node.Decode(a); err != nil {
		text := err.Error()
		if wrong := (*yaml.TypeError)(nil); errors.As(err, &wrong) {
			text = strings.Join(wrong.Errors, "\n")
		}
		return nil, errors.New(text)
	}
	if err := a.check(); err != nil {
		key, _, _ := strings.Cut(err.Error(), ":")
		line := node.Line
		if lines[key] > 0 {
			line = lines[key]
		}
		return nil, fmt.Errorf("line %d: %s: %w", line, kind, err)
	}
	return a, nil
}

// keysOf returns the keys in YAML of a struct.
func keysOf(t reflect.Type) (keys []string) {
	for i := range t.NumField() {
		name, inline, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		switch {
		case inline == "inline":
			keys = append(keys, keysOf(t.Field(i).Type)...)
		case name != "":
			keys = append(keys, name)
		}
	}
	return keys
}

// span is a duration in YAML, such as 10s.
type span time.Duration

// UnmarshalYAML implements yaml.Unmarshaler.
func (s *span) UnmarshalYAML(node *yaml.Node) error {
	d, err := metric.ParseSpan(node.Value)
	if err != nil {
		return fmt.Errorf("line %d: %w", node.Line, err)
	}
	*s = span(d)
	return nil
}
