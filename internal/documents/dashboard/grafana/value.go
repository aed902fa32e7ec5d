package grafana

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
)

// value is a part of Grafana's JSON. What is not there, or has another type, is zero: the files were written by many
// versions of Grafana and of its plugins.
type value struct{ v any }

// parse returns zero for a text that is no JSON.
func parse(text []byte) value {
	var v any
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber() // numbers stay as they were written
	if !json.Valid(text) || dec.Decode(&v) != nil {
		return value{}
	}
	return value{v}
}

// at returns a member, or one within members: names with dots between them.
func (f value) at(path string) value {
	for name := range strings.SplitSeq(path, ".") {
		object, _ := f.v.(map[string]any)
		f = value{object[name]}
	}
	return f
}

// has reports whether there is a member that is not empty.
func (f value) has(path string) bool {
	switch v := f.at(path).v.(type) {
	case nil:
		return false
	case map[string]any:
		return len(v) > 0
	case []any:
		return len(v) > 0
	default:
		return v != false && v != ""
	}
}

// list returns the elements of a member.
func (f value) list(path string) []value {
	all, _ := f.at(path).v.([]any)
	out := make([]value, len(all))
	for i, v := range all {
		out[i] = value{v}
	}
	return out
}

// text returns a member that is a string.
func (f value) text(path string) string {
	text, _ := f.at(path).v.(string)
	return text
}

// flag returns a member that is true or false.
func (f value) flag(path string) bool { return f.at(path).v == true }

// word returns a string or a number as text.
func (f value) word() string {
	switch v := f.v.(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	}
	return ""
}

// number returns a member that is a number, which may be written as a string.
func (f value) number(path string) *float64 { return number(f.at(path).word()) }

func number(text string) *float64 {
	n, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
		return nil
	}
	return &n
}

// whole returns a member that is a number of 1 or more, at most most.
func (f value) whole(path string, absent, most int) int {
	n := f.number(path)
	if n == nil || *n < 1 {
		return absent
	}
	return int(math.Min(*n, float64(most)))
}
