// Package collectd serves the write_http plugin of collectd.
package collectd

import (
	"fmt"
	"math"
	"net/http"

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

// decoder decodes an array of value lists. Each value is a measurement; a faulty list
// counts as one rejected measurement.
type decoder struct {
	jsonscan.Scanner
	batch *ingest.Batch

	list    valueList
	labels  []metric.Label
	scratch []byte
	charged int // bytes of the arena charged so far
}

// maxValues bounds the values of one list. No type of collectd comes close.
const maxValues = 1 << 10

// valueList is one reading of one plugin.
type valueList struct {
	host, plugin, pluginInstance, kind, typeInstance string

	values  []float64 // NaN for null
	types   []string
	names   []string
	timeMs  int64
	problem string // why the list is rejected
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
		if !d.valueList() {
			return false
		}
		if d.batch.Charge(int64(len(d.Arena) - d.charged)) {
			d.charged = len(d.Arena)
			d.add()
		}
		if d.batch.TooMany() {
			return true
		}
	}
}

// valueList decodes one value list into d.list.
func (d *decoder) valueList() bool {
	l := &d.list
	*l = valueList{values: l.values[:0], types: l.types[:0], names: l.names[:0], timeMs: ingest.NoTime}
	if d.Pos < len(d.Text) && d.Text[d.Pos] != '{' {
		l.problem = "want a value list, which is an object"
		return d.Skip()
	}
	d.Pos++
	for first := true; ; first = false {
		name, more, ok := d.Member(first)
		if !ok || !more {
			return ok
		}
		switch name {
		case "host":
			ok = d.word(name, &l.host)
		case "plugin":
			ok = d.word(name, &l.plugin)
		case "plugin_instance":
			ok = d.word(name, &l.pluginInstance)
		case "type":
			ok = d.word(name, &l.kind)
		case "type_instance":
			ok = d.word(name, &l.typeInstance)
		case "dstypes":
			ok = d.words(name, &l.types)
		case "dsnames":
			ok = d.words(name, &l.names)
		case "values":
			ok = d.each(name, func() bool {
				if d.tooMany(name, len(l.values)) {
					return d.Skip()
				}
				v := math.NaN()
				if d.begins('n') {
					l.values = append(l.values, v)
					return d.Skip()
				}
				ok := d.float(name, &v)
				l.values = append(l.values, v)
				return ok
			})
		case "time":
			var sec float64
			if ok = d.float(name, &sec); ok && l.problem == "" {
				// collectd writes times with three decimals. A float has about seven here, so
				// rounding to microseconds first gives the exact millisecond.
				l.timeMs = int64(math.Floor(math.Round(min(max(sec, -1), 1e12)*1e6) / 1e3))
			}
		default:
			ok = d.Skip()
		}
		if !ok {
			return false
		}
	}
}

func (d *decoder) begins(c byte) bool { return d.Pos < len(d.Text) && d.Text[d.Pos] == c }

// misfit records a value of the wrong type and skips it.
func (d *decoder) misfit(member, want string) bool {
	if d.list.problem == "" {
		d.list.problem = member + " is " + d.Kind() + ", not " + want
	}
	return d.Skip()
}

// tooMany returns whether a list with n elements of a member is full.
func (d *decoder) tooMany(member string, n int) bool {
	if n < maxValues {
		return false
	}
	if d.list.problem == "" {
		d.list.problem = fmt.Sprintf("more than %d %s", maxValues, member)
	}
	return true
}

func (d *decoder) word(member string, to *string) (ok bool) {
	if !d.begins('"') {
		return d.misfit(member, "a string")
	}
	*to, ok = d.Str()
	return ok
}

func (d *decoder) words(member string, to *[]string) bool {
	return d.each(member, func() bool {
		if d.tooMany(member, len(*to)) {
			return d.Skip()
		}
		*to = append(*to, "")
		return d.word(member, &(*to)[len(*to)-1])
	})
}

func (d *decoder) float(member string, to *float64) bool {
	if d.Kind() != "a number" {
		return d.misfit(member, "a number")
	}
	n, ok := d.Number()
	if !ok {
		return false
	}
	if v, ok := n.Float(); ok {
		*to = v
	} else if d.list.problem == "" {
		d.list.problem = member + " is too large"
	}
	return true
}

func (d *decoder) each(member string, read func() bool) bool {
	if !d.begins('[') {
		return d.misfit(member, "an array")
	}
	d.Pos++
	for first := true; ; first = false {
		if more, ok := d.Element(first); !ok || !more {
			return ok
		}
		if !read() {
			return false
		}
	}
}

// add adds d.list to the batch.
func (d *decoder) add() {
	l := &d.list
	switch {
	case l.problem != "":
	case l.plugin == "" || l.kind == "" || len(l.values) == 0:
		l.problem = "a value list must have plugin, type and values"
	case len(l.plugin)+len(l.kind) > ingest.MaxNameBytes:
		l.problem = fmt.Sprintf("plugin and type have %d bytes, more than the limit of %d", len(l.plugin)+len(l.kind), ingest.MaxNameBytes)
	case len(l.types) != len(l.values) || len(l.names) != len(l.values):
		l.problem = fmt.Sprintf("%d values have %d dstypes and %d dsnames", len(l.values), len(l.types), len(l.names))
	}
	if l.problem != "" {
		d.batch.Reject(ingest.ReasonInvalidValue, "%s", l.problem)
		return
	}
	d.labels = d.labels[:0]
	label := func(name, value string) {
		if value != "" {
			d.labels = append(d.labels, metric.Label{Name: name, Value: value})
		}
	}
	label("instance", l.host)
	label(l.plugin, l.pluginInstance)
	if l.pluginInstance == "" {
		label(l.plugin, l.typeInstance)
	} else {
		label("type", l.typeInstance)
	}
	for i, v := range l.values {
		if math.IsNaN(v) {
			continue
		}
		d.batch.Series(d.name(l, i), d.labels)
		if !d.batch.Add(l.timeMs, v) {
			return
		}
	}
}

// name returns the name that write_prometheus gives the value at i.
func (d *decoder) name(l *valueList, i int) string {
	d.scratch = append(d.scratch[:0], "collectd"...)
	part := func(s string) { d.scratch = append(append(d.scratch, '_'), s...) }
	if l.plugin != l.kind {
		part(l.plugin)
	}
	part(l.kind)
	if l.names[i] != "value" {
		part(l.names[i])
	}
	if l.types[i] == "counter" || l.types[i] == "derive" {
		part("total")
	}
	return d.batch.Own(d.scratch)
}
