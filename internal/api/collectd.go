package api

import (
	"fmt"
	"math"
	"net/http"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

const collectdPath = "/api/v1/push/collectd"

// newCollectdHandler serves collectd's write_http plugin with Format JSON:
// https://www.collectd.org/documentation/manpages/collectd.conf.html. Series have the names that
// collectd's write_prometheus plugin gives them.
func newCollectdHandler(in *intake, opts *Options) http.Handler {
	return &push{
		intake: in, sources: opts.Sources.Graphite,
		accepts: checkReportType,
		decode: func(_ *http.Request, body []byte, b *ingest.Batch) error {
			d := &collectdDecoder{batch: b}
			d.reset(body, opts.Limits.Depth)
			if !d.lists() {
				return fmt.Errorf("at byte %d: %s", d.at, d.fault)
			}
			return nil
		},
		refuse: func(w http.ResponseWriter, _ *http.Request, code int, message string) {
			replyJSON(w, code, reportsReply{Status: "error", Error: message, Rejected: []rejectionReply{}})
		},
		reply: func(w http.ResponseWriter, _ *http.Request, result ingest.Result, broken error) {
			replyResult(w, &opts.Limits, result, broken)
		},
	}
}

// replyResult replies in the format of reports.
func replyResult(w http.ResponseWriter, limits *Limits, result ingest.Result, broken error) {
	reply := reportsReply{Accepted: result.Accepted, Rejected: []rejectionReply{}}
	for _, rej := range result.Rejected[:min(len(result.Rejected), limits.Rejections)] {
		reply.Rejected = append(reply.Rejected, rejectionReply(rej))
	}
	if n := len(result.Rejected); n > len(reply.Rejected) {
		reply.RejectedTotal = n
	}
	code := http.StatusOK
	switch {
	case broken != nil:
		code, reply.Error = http.StatusBadRequest, broken.Error()
	case result.Accepted == 0 && len(result.Rejected) > 0:
		first := result.Rejected[0]
		code = http.StatusBadRequest
		reply.Error = fmt.Sprintf("every measurement was rejected, measurement %d because: %s (%s)", first.Index, first.Message, first.Reason)
	}
	if reply.Error != "" {
		reply.Status = "error"
	}
	replyJSON(w, code, reply)
}

// collectdDecoder decodes an array of value lists. Each value is a measurement; a faulty list
// counts as one rejected measurement.
type collectdDecoder struct {
	scanner
	batch *ingest.Batch

	list    collectdList
	labels  []metric.Label
	scratch []byte
	charged int // bytes of the arena charged so far
}

// maxCollectdValues bounds the values of one list. No type of collectd comes close.
const maxCollectdValues = 1 << 10

// collectdList is one reading of one plugin.
type collectdList struct {
	host, plugin, pluginInstance, kind, typeInstance string

	values  []float64 // NaN for null
	types   []string
	names   []string
	timeMs  int64
	problem string // why the list is rejected
}

func (d *collectdDecoder) lists() bool {
	if d.space() != '[' {
		return d.unexpected("an array of value lists")
	}
	d.i++
	for first := true; ; first = false {
		if more, ok := d.element(first); !ok || !more {
			if ok && d.space() != 0 {
				return d.unexpected("the end of the body")
			}
			return ok
		}
		if !d.valueList() {
			return false
		}
		if d.batch.Charge(int64(len(d.arena) - d.charged)) {
			d.charged = len(d.arena)
			d.add()
		}
		if d.batch.TooMany() {
			return true
		}
	}
}

// valueList decodes one value list into d.list.
func (d *collectdDecoder) valueList() bool {
	l := &d.list
	*l = collectdList{values: l.values[:0], types: l.types[:0], names: l.names[:0], timeMs: ingest.NoTime}
	if d.i < len(d.b) && d.b[d.i] != '{' {
		l.problem = "want a value list, which is an object"
		return d.skip()
	}
	d.i++
	for first := true; ; first = false {
		name, more, ok := d.member(first)
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
					return d.skip()
				}
				v := math.NaN()
				if d.is('n') {
					l.values = append(l.values, v)
					return d.skip()
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
			ok = d.skip()
		}
		if !ok {
			return false
		}
	}
}

func (d *collectdDecoder) is(c byte) bool { return d.i < len(d.b) && d.b[d.i] == c }

// misfit records a value of the wrong type and skips it.
func (d *collectdDecoder) misfit(member, want string) bool {
	if d.list.problem == "" {
		d.list.problem = member + " is " + d.kind() + ", not " + want
	}
	return d.skip()
}

// tooMany returns whether a list with n elements of a member is full.
func (d *collectdDecoder) tooMany(member string, n int) bool {
	if n < maxCollectdValues {
		return false
	}
	if d.list.problem == "" {
		d.list.problem = fmt.Sprintf("more than %d %s", maxCollectdValues, member)
	}
	return true
}

func (d *collectdDecoder) word(member string, to *string) (ok bool) {
	if !d.is('"') {
		return d.misfit(member, "a string")
	}
	*to, ok = d.str()
	return ok
}

func (d *collectdDecoder) words(member string, to *[]string) bool {
	return d.each(member, func() bool {
		if d.tooMany(member, len(*to)) {
			return d.skip()
		}
		*to = append(*to, "")
		return d.word(member, &(*to)[len(*to)-1])
	})
}

func (d *collectdDecoder) float(member string, to *float64) bool {
	if d.kind() != "a number" {
		return d.misfit(member, "a number")
	}
	n, ok := d.number()
	if !ok {
		return false
	}
	if v, ok := n.float(); ok {
		*to = v
	} else if d.list.problem == "" {
		d.list.problem = member + " is too large"
	}
	return true
}

func (d *collectdDecoder) each(member string, read func() bool) bool {
	if !d.is('[') {
		return d.misfit(member, "an array")
	}
	d.i++
	for first := true; ; first = false {
		if more, ok := d.element(first); !ok || !more {
			return ok
		}
		if !read() {
			return false
		}
	}
}

// add adds d.list to the batch.
func (d *collectdDecoder) add() {
	l := &d.list
	switch {
	case l.problem != "":
	case l.plugin == "" || l.kind == "" || len(l.values) == 0:
		l.problem = "a value list has plugin, type and values"
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
func (d *collectdDecoder) name(l *collectdList, i int) string {
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
