// Package collectd serves the write_http plugin of collectd.
package collectd

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"unicode/utf8"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/jsonscan"
	"github.com/quern/quern/internal/protocol/push"
)

// Path is where collectd sends.
const Path = "/api/v1/push/collectd"

// New serves collectd's write_http plugin with Format JSON:
// https://www.collectd.org/documentation/manpages/collectd.conf.html. Series have the names that
// collectd's write_prometheus plugin gives them.
func New(in *push.Intake) http.Handler {
	return &push.Endpoint{
		Intake:  in,
		Accepts: push.CheckJSON,
		Decode: func(_ *http.Request, body []byte, b *ingest.Batch) error {
			d := &decoder{batch: b}
			d.Reset(body, in.Limits.Depth)
			if !d.lists() {
				return fmt.Errorf("at byte %d: %s", d.At, d.Fault)
			}
			return nil
		},
		Refuse: push.RefuseJSON,
		Reply: func(w http.ResponseWriter, _ *http.Request, result ingest.Result, broken error) {
			code, fault := http.StatusOK, ""
			if broken != nil {
				code, fault = http.StatusBadRequest, broken.Error()
			}
			push.WriteReply(w, &in.Limits, result, len(result.Rejected), code, fault)
		},
	}
}

// maxList bounds the text of a value list. No list of collectd comes close.
const maxList = 64 << 10

// valueList is one reading of one plugin.
type valueList struct {
	Host           string     `json:"host"`
	Plugin         string     `json:"plugin"`
	PluginInstance string     `json:"plugin_instance"`
	Type           string     `json:"type"`
	TypeInstance   string     `json:"type_instance"`
	Values         []*float64 `json:"values"`
	Types          []string   `json:"dstypes"`
	Names          []string   `json:"dsnames"`
	Time           *float64   `json:"time"` // in seconds
}

// decoder decodes an array of value lists. Each value is a measurement; a faulty list
// counts as one rejected measurement.
type decoder struct {
	jsonscan.Scanner
	batch *ingest.Batch

	labels  []metric.Label
	scratch []byte
}

func (d *decoder) lists() bool {
	if d.Space() != '[' {
		return d.Unexpected("an array of value lists")
	}
	d.Pos++
	for first := true; ; first = false {
		if more, ok := d.Element(first); !ok || !more {
			if ok && d.Space() != 0 {
				return d.Unexpected("the end of the body")
			}
			return ok
		}
		begin := d.Pos
		if !d.Skip() {
			return false
		}
		text := d.Text[begin:d.Pos]
		if !d.batch.Charge(int64(len(text))) { // its texts are copies
			return true
		}
		if l, problem := read(text); problem != "" {
			d.batch.Reject(ingest.ReasonInvalidValue, "%s", problem)
		} else {
			d.add(&l)
		}
		if d.batch.TooMany() {
			return true
		}
	}
}

// read decodes a value list. problem is why it is rejected.
func read(text []byte) (l valueList, problem string) {
	switch {
	case text[0] != '{':
		return l, "want a value list, which is an object"
	case len(text) > maxList:
		return l, fmt.Sprintf("the value list has %d bytes, more than the limit of %d", len(text), maxList)
	case !utf8.Valid(text):
		return l, "the value list is not valid UTF-8"
	}
	var kind *json.UnmarshalTypeError
	if err := json.Unmarshal(text, &l); errors.As(err, &kind) {
		return l, fmt.Sprintf("%s must not be a %.40s", kind.Field, kind.Value)
	} else if err != nil {
		return l, err.Error()
	}
	switch {
	case l.Plugin == "" || l.Type == "" || len(l.Values) == 0:
		return l, "a value list must have plugin, type and values"
	case len(l.Plugin)+len(l.Type) > ingest.MaxNameBytes:
		return l, fmt.Sprintf("plugin and type have %d bytes, more than the limit of %d", len(l.Plugin)+len(l.Type), ingest.MaxNameBytes)
	case len(l.Types) != len(l.Values) || len(l.Names) != len(l.Values):
		return l, fmt.Sprintf("%d values have %d dstypes and %d dsnames", len(l.Values), len(l.Types), len(l.Names))
	}
	return l, ""
}

// add adds a value list to the batch.
func (d *decoder) add(l *valueList) {
	timeMs := ingest.NoTime
	if l.Time != nil {
		// collectd writes times with three decimals. A float has about seven here, so
		// rounding to microseconds first gives the exact millisecond.
		timeMs = int64(math.Floor(math.Round(min(max(*l.Time, -1), 1e12)*1e6) / 1e3))
	}
	d.labels = d.labels[:0]
	label := func(name, value string) {
		if value != "" {
			d.labels = append(d.labels, metric.Label{Name: name, Value: value})
		}
	}
	label("instance", l.Host)
	label(l.Plugin, l.PluginInstance)
	if l.PluginInstance == "" {
		label(l.Plugin, l.TypeInstance)
	} else {
		label("type", l.TypeInstance)
	}
	for i, v := range l.Values {
		if v == nil {
			continue
		}
		d.batch.Series(d.name(l, i), d.labels)
		if !d.batch.Add(timeMs, *v) {
			return
		}
	}
}

// name returns the name that write_prometheus gives the value at i.
func (d *decoder) name(l *valueList, i int) string {
	d.scratch = append(d.scratch[:0], "collectd"...)
	part := func(s string) { d.scratch = append(append(d.scratch, '_'), s...) }
	if l.Plugin != l.Type {
		part(l.Plugin)
	}
	part(l.Type)
	if l.Names[i] != "value" {
		part(l.Names[i])
	}
	if l.Types[i] == "counter" || l.Types[i] == "derive" {
		part("total")
	}
	return d.batch.Copy(d.scratch)
}
