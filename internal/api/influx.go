package api

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/cespare/xxhash/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quern/quern/internal/api/influx"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

// influxVersion is the InfluxDB version reported to clients, which decide by it what they may send.
const influxVersion = "1.8.10-quern"

// influxRequest holds the parameters of a write.
type influxRequest struct {
	influx.Options

	place influxPlace
	body  []byte // set when the body is decoded
}

const (
	// dbLabel is the label for the database of a request, as in VictoriaMetrics.
	dbLabel = "db"
	// defaultPolicy is the retention policy of InfluxDB 1 that applies if a request names none.
	defaultPolicy = "autogen"
)

// influxPlace is the part of a request's target that does not become a label.
type influxPlace struct{ org, bucket string }

func (p influxPlace) String() string {
	return fmt.Sprintf("bucket or retention policy %s of organization %s", shown(p.bucket), shown(p.org))
}

// influxBuckets detects writes to several buckets whose series are stored as those of one, so that
// equal series overwrite each other. The zero value is empty.
type influxBuckets struct {
	mu    sync.Mutex
	first map[uint64]influxPlace // by the hash of the labels that the request adds to its series
}

// maxInfluxBuckets bounds the label sets that are remembered.
const maxInfluxBuckets = 1 << 10

// mixed describes the two places that are stored as one, "" if the request's place is the first or
// the same.
func (b *influxBuckets) mixed(req *influxRequest) string {
	labels := xxhash.Sum64String(metric.Labels(req.Labels).String())
	b.mu.Lock()
	defer b.mu.Unlock()
	first, ok := b.first[labels]
	switch {
	case ok && first == req.place:
		return ""
	case ok:
		return fmt.Sprintf("%s and %s are stored as one, and equal series overwrite each other: "+
			"--influx-bucket-label gives series a label that tells buckets apart", req.place, first)
	case b.first == nil || len(b.first) >= maxInfluxBuckets:
		b.first = make(map[uint64]influxPlace)
	}
	b.first[labels] = influxPlace{org: strings.Clone(req.place.org), bucket: strings.Clone(req.place.bucket)}
	return ""
}

type influxRequestKey struct{}

// registerInflux registers the write endpoints of InfluxDB 1 and 2, and the endpoints that clients
// query before they write. Any credentials are accepted.
func (s *Server) registerInflux(in *intake) error {
	ignored := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "quern_influx_string_fields_ignored_total",
		Help: "Fields of line protocol that are strings, of which nothing is kept.",
	})
	if err := register(s.opts.Registerer, ignored); err != nil {
		return err
	}
	var decoders sync.Pool // *influx.Decoder
	var clashes influx.Clashes
	var buckets influxBuckets
	write := func(refuse refusal) http.Handler {
		return s.influxOptions(refuse, &push{
			intake:  in,
			sources: s.opts.Sources.Influx,
			accepts: func(http.Header) error { return nil }, // clients send lines under many content types
			whole:   influx.Whole,
			decode: func(r *http.Request, body []byte, b *ingest.Batch) error {
				d, ok := decoders.Get().(*influx.Decoder)
				if !ok {
					d = &influx.Decoder{Clashes: &clashes}
				}
				req := influxRequestOf(r)
				req.body = body
				loss := d.Decode(body, req.Options, b)
				decoders.Put(d)
				ignored.Add(float64(loss.Strings))
				in.unkept.note(r, unkeptSameName, loss.SameName, loss.Clash)
				if message := buckets.mixed(req); message != "" {
					in.unkept.note(r, unkeptSeveralBuckets, b.Len(), message)
				}
				return nil
			},
			refuse: refuse,
			reply: func(w http.ResponseWriter, r *http.Request, result ingest.Result, broken error) {
				if message := influxComplaint(influxRequestOf(r), result, broken); message != "" {
					refuse(w, r, http.StatusBadRequest, message)
					return
				}
				w.WriteHeader(http.StatusNoContent)
			},
		})
	}
	s.take(in, write(refuseInflux1), "/write", "/influx/write")
	s.take(in, write(refuseInflux2), "/api/v2/write")
	// Clients derive these URLs from the write URL.
	for _, prefix := range []string{"", "/influx"} {
		s.mux.HandleFunc(prefix+"/query", influxQuery)
		s.mux.HandleFunc("GET "+prefix+"/ping", influxPing)
	}
	s.mux.HandleFunc("GET /health", s.influxHealth)
	return nil
}

// influxOptions checks the parameters of a request before its body is read.
func (s *Server) influxOptions(refuse refusal, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		unit, err := influx.ParsePrecision(query.Get("precision"))
		if err != nil {
			refuse(w, r, http.StatusBadRequest, err.Error())
			return
		}
		req := &influxRequest{Options: influx.Options{Unit: unit}}
		if db := query.Get("db"); db != "" {
			req.Labels = append(req.Labels, metric.Label{Name: dbLabel, Value: db})
		}
		// A bucket of InfluxDB 2 corresponds to a database with a retention policy in InfluxDB 1.
		bucket := cmp.Or(query.Get("bucket"), query.Get("rp"))
		if bucket == defaultPolicy {
			bucket = ""
		}
		if name := s.opts.InfluxBucketLabel; name != "" && bucket != "" {
			req.Labels = append(req.Labels, metric.Label{Name: name, Value: bucket})
			bucket = ""
		}
		req.place = influxPlace{org: cmp.Or(query.Get("org"), query.Get("orgID")), bucket: bucket}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), influxRequestKey{}, req)))
	})
}

func influxRequestOf(r *http.Request) *influxRequest {
	return r.Context().Value(influxRequestKey{}).(*influxRequest)
}

// influxComplaint says what was not accepted, "" if everything was. It begins with "partial write",
// by which clients know that sending the same body again is useless.
func influxComplaint(req *influxRequest, result ingest.Result, broken error) string {
	var what []string
	if n := len(result.Rejected); n > 0 {
		first := result.Rejected[0]
		what = append(what, fmt.Sprintf("%d rejected, the first in line %d: %s (%s)",
			n, influx.Line(req.body, req.Options, first.Index), first.Message, first.Reason))
	}
	if broken != nil {
		what = append(what, fmt.Sprintf("the body cannot be read to its end: %s", broken))
	}
	if len(what) == 0 {
		return ""
	}
	return fmt.Sprintf("partial write: %d accepted, %s", result.Accepted, strings.Join(what, ", "))
}

// refuseInflux1 replies with an error in InfluxDB 1's format. Its clients, including Telegraf, drop
// data on any 4xx. So a full queue and a timeout are answered with 503.
func refuseInflux1(w http.ResponseWriter, _ *http.Request, code int, message string) {
	if code == http.StatusTooManyRequests || code == http.StatusRequestTimeout {
		code = http.StatusServiceUnavailable
	}
	w.Header().Set("X-Influxdb-Version", influxVersion)
	replyJSON(w, code, influx1Error{message})
}

type influx1Error struct {
	Error string `json:"error"`
}

// refuseInflux2 replies with an error in InfluxDB 2's format.
func refuseInflux2(w http.ResponseWriter, _ *http.Request, code int, message string) {
	word, ok := map[int]string{
		http.StatusBadRequest:            "invalid",
		http.StatusRequestEntityTooLarge: "request too large",
		http.StatusUnsupportedMediaType:  "unsupported media type",
		http.StatusRequestTimeout:        "unavailable",
		http.StatusTooManyRequests:       "too many requests",
		http.StatusServiceUnavailable:    "unavailable",
	}[code]
	if !ok {
		word = "internal error"
	}
	replyJSON(w, code, influx2Error{word, message})
}

type influx2Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// influxPing answers clients that check whether the server is there.
func influxPing(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("X-Influxdb-Version", influxVersion)
	w.WriteHeader(http.StatusNoContent)
}

// influxQuery answers CREATE DATABASE, which clients send before they write. It creates nothing.
func influxQuery(w http.ResponseWriter, r *http.Request) {
	q := strings.TrimRight(r.FormValue("q"), "; ")
	words := strings.Fields(q)
	if len(words) < 3 || !strings.EqualFold(words[0], "create") || !strings.EqualFold(words[1], "database") || strings.Contains(q, ";") {
		refuseInflux1(w, r, http.StatusBadRequest,
			"InfluxQL is not served but for CREATE DATABASE, of which nothing comes: query with PromQL at /api/v1/query")
		return
	}
	w.Header().Set("X-Influxdb-Version", influxVersion)
	replyJSON(w, http.StatusOK, influxResults{[]influxResult{{}}})
}

type influxResults struct {
	Results []influxResult `json:"results"`
}

type influxResult struct {
	StatementID int `json:"statement_id"`
}

// influxHealth is /-/ready for InfluxDB 2 clients.
func (s *Server) influxHealth(w http.ResponseWriter, r *http.Request) {
	if reason := s.unready(r.Context()); reason != "" {
		replyJSON(w, http.StatusServiceUnavailable, influxHealthReply{"influxdb", reason, "fail", influxVersion})
		return
	}
	replyJSON(w, http.StatusOK, influxHealthReply{"influxdb", "ready for writes", "pass", influxVersion})
}

type influxHealthReply struct {
	Name    string `json:"name"`
	Message string `json:"message"`
	Status  string `json:"status"`
	Version string `json:"version"`
}
