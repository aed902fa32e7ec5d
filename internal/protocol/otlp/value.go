package otlp

import (
	"errors"
	"math"
	"slices"
	"strings"

	"github.com/go-faster/jx"
)

// maxDepth and maxBytes limit attribute values other than plain strings. They are far above what
// may be stored.
const (
	maxDepth = 32
	maxBytes = 64 << 10
)

var errTooComplex = errors.New("the value is too large or nests too deep")

// The fields of AnyValue.
var (
	anyString = bytesTag(1)
	anyBool   = varintTag(2)
	anyInt    = varintTag(3)
	anyDouble = fixed64Tag(4)
	anyArray  = bytesTag(5)
	anyMap    = bytesTag(6)
	anyBytes  = bytesTag(7)
)

// text returns an AnyValue as text, by OpenTelemetry's rules for protocols with only text: strings
// as they are, bytes in base64, all else as JSON. An absent value is "".
func (d *decoder) text(value []byte) (string, error) {
	v, err := readAny(value)
	if err != nil {
		return "", err
	}
	if v.kind == anyString {
		return view(v.content), nil
	}
	if len(v.content) > maxBytes {
		return "", errTooComplex
	}
	d.json.Reset()
	if err := appendValue(&d.json, v, 0); err != nil {
		return "", err
	}
	s := d.json.Buf
	if v.kind == anyBytes || v.kind == anyDouble && len(s) > 0 && s[0] == '"' {
		s = s[1 : len(s)-1] // a single string needs no quotes
	}
	return d.b.Own(s), nil
}

// anyValue is a decoded AnyValue; kind is the tag of the field that is set.
type anyValue struct {
	kind    tag
	bits    uint64
	content []byte
}

func readAny(b []byte) (v anyValue, err error) {
	f := fields{rest: b}
	for f.next() {
		v = anyValue{f.tag, f.bits, f.bytes} // the last field counts
	}
	return v, f.err
}

// appendValue writes an AnyValue as JSON. An absent value is nothing at the top level and null
// below it.
func appendValue(w *jx.Writer, v anyValue, depth int) error {
	if depth > maxDepth {
		return errTooComplex
	}
	switch v.kind {
	case anyString:
		w.Str(view(v.content))
	case anyBool:
		w.Bool(v.bits != 0)
	case anyInt:
		w.Int64(int64(v.bits))
	case anyDouble:
		appendDouble(w, math.Float64frombits(v.bits))
	case anyArray:
		return appendArray(w, v.content, depth)
	case anyMap:
		return appendMap(w, v.content, depth)
	case anyBytes:
		w.Base64(v.content)
	default:
		if depth > 0 {
			w.Null()
		}
	}
	return nil
}

func appendDouble(w *jx.Writer, v float64) {
	switch {
	case math.IsNaN(v):
		w.Str("NaN")
	case math.IsInf(v, 1):
		w.Str("Infinity")
	case math.IsInf(v, -1):
		w.Str("-Infinity")
	default:
		w.Float64(v)
	}
}

func appendNested(w *jx.Writer, value []byte, depth int) error {
	v, err := readAny(value)
	if err != nil {
		return err
	}
	return appendValue(w, v, depth+1)
}

func appendArray(w *jx.Writer, array []byte, depth int) error {
	w.ArrStart()
	first := true
	f := fields{rest: array}
	for f.next() {
		if f.tag != arrayValues {
			continue
		}
		if !first {
			w.Comma()
		}
		first = false
		if err := appendNested(w, f.bytes, depth); err != nil {
			return err
		}
	}
	w.ArrEnd()
	return f.err
}

// appendMap writes a map in the order of its keys, so that equal maps have equal texts.
func appendMap(w *jx.Writer, content []byte, depth int) error {
	type entry struct {
		key   string
		value []byte
	}
	var entries []entry
	f := fields{rest: content}
	for f.next() {
		if f.tag != mapEntries {
			continue
		}
		key, value, err := keyValue(f.bytes)
		if err != nil {
			return err
		}
		entries = append(entries, entry{key, value})
	}
	if f.err != nil {
		return f.err
	}
	slices.SortStableFunc(entries, func(a, b entry) int { return strings.Compare(a.key, b.key) })
	w.ObjStart()
	for i, e := range entries {
		if i > 0 {
			w.Comma()
		}
		w.FieldStart(e.key)
		if err := appendNested(w, e.value, depth); err != nil {
			return err
		}
	}
	w.ObjEnd()
	return nil
}

var (
	arrayValues = bytesTag(1)
	mapEntries  = bytesTag(1)
	keyName     = bytesTag(1)
	keyContent  = bytesTag(2)
)

// keyValue splits a KeyValue; value is an encoded AnyValue.
func keyValue(b []byte) (key string, value []byte, err error) {
	f := fields{rest: b}
	for f.next() {
		switch f.tag {
		case keyName:
			key = view(f.bytes)
		case keyContent:
			value = f.bytes
		}
	}
	return key, value, f.err
}
