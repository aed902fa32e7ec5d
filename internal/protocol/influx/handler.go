package influx

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/push"
	"github.com/quern/quern/internal/protocol/respond"
)

// version is the InfluxDB version reported to clients, which decide by it what they may send.
const version = "1.8.10-quern"

// request holds the parameters of a write.
type request struct {
	Settings

	lines []int32 // of the measurements, once the body is decoded
}

const (
	// dbLabel is the label for the database of a request, as in VictoriaMetrics.
	dbLabel = "db"
	// defaultPolicy is the retention policy of InfluxDB 1 that applies if a request names none.
	defaultPolicy = "autogen"
)

type requestKey struct{}

// Options configure the endpoints of InfluxDB. All but BucketLabel and Registerer are required.
type Options struct {
	// BucketLabel is the label that holds the bucket of an InfluxDB 2 write, or the retention policy
	// of an InfluxDB 1 write. By default there is no such label, and series of several buckets are
	// one.
	BucketLabel string
	// Unready returns why the process cannot serve, "" if it can.
	Unready    func(context.Context) string
	Registerer prometheus.Registerer
}

// Register registers the write endpoints of InfluxDB 1 and 2, and the endpoints that clients
// query before they write. Any credentials are accepted. take registers a handler that reads its body
// itself.
func Register(in *push.Intake, opts Options, to *route.Table, take func(h http.Handler, paths ...string)) error {
	ignored := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "quern_influx_string_fields_ignored_total",
		Help: "String fields of line protocol, which are not stored.",
	})
	if err := push.Register(opts.Registerer, ignored); err != nil {
		return err
	}
	var decoders sync.Pool // *Decoder
	write := func(refuse push.Refusal) http.Handler {
		return opts.parse(refuse, &push.Endpoint{
			Intake:  in,
			Accepts: func(http.Header) error { return nil }, // clients send lines under many content types
			Whole:   wholeLines,
			Decode: func(r *http.Request, body []byte, b *ingest.Batch) error {
				d, ok := decoders.Get().(*Decoder)
				if !ok {
					d = new(Decoder)
				}
				req := requestOf(r)
				ignored.Add(float64(d.Decode(body, req.Settings, b)))
				req.lines = d.lines
				decoders.Put(d)
				return nil
			},
			Refuse: refuse,
			Reply: func(w http.ResponseWriter, r *http.Request, result ingest.Result, broken error) {
				if message := complaint(requestOf(r), result, broken); message != "" {
					refuse(w, r, http.StatusBadRequest, message)
					return
				}
				w.WriteHeader(http.StatusNoContent)
			},
		})
	}
	take(write(refuse1), "/write", "/influx/write")
	take(write(refuse2), "/api/v2/write")
	// Clients derive these URLs from the write URL.
	for _, prefix := range []string{"", "/influx"} {
		to.HandleFunc(access.Write, route.NoData, prefix+"/query", answerQuery)
		to.HandleFunc(access.Anyone, route.NoData, "GET "+prefix+"/ping", ping)
	}
	to.HandleFunc(access.Anyone, route.NoData, "GET /health", opts.health)
	return nil
}

// parse checks the parameters of a request before its body is read.
func (o *Options) parse(refuse push.Refusal, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		unit, err := parsePrecision(query.Get("precision"))
		if err != nil {
			refuse(w, r, http.StatusBadRequest, err.Error())
			return
		}
		req := &request{Settings: Settings{Unit: unit}}
		if db := query.Get("db"); db != "" {
			req.Labels = append(req.Labels, metric.Label{Name: dbLabel, Value: db})
		}
		// A bucket of InfluxDB 2 corresponds to a database with a retention policy in InfluxDB 1.
		if bucket := cmp.Or(query.Get("bucket"), query.Get("rp")); o.BucketLabel != "" && bucket != "" && bucket != defaultPolicy {
			req.Labels = append(req.Labels, metric.Label{Name: o.BucketLabel, Value: bucket})
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestKey{}, req)))
	})
}

func requestOf(r *http.Request) *request {
	return r.Context().Value(requestKey{}).(*request)
}

// complaint says what was not accepted, "" if everything was. It begins with "partial write",
// by which clients know that sending the same body again is useless.
func complaint(req *request, result ingest.Result, broken error) string {
	var what []string
	if n := len(result.Rejected); n > 0 {
		first := result.Rejected[0]
		what = append(what, fmt.Sprintf("%d rejected, the first in line %d: %s (%s)",
			n, req.lines[first.Index], first.Message, first.Reason))
	}
	if broken != nil {
		what = append(what, fmt.Sprintf("cannot read the body to its end: %s", broken))
	}
	if len(what) == 0 {
		return ""
	}
	return fmt.Sprintf("partial write: %d accepted, %s", result.Accepted, strings.Join(what, ", "))
}

// refuse1 replies with an error in InfluxDB 1's format. Its clients, including Telegraf, drop
// data on any 4xx. So a full queue and a timeout are answered with 503.
func refuse1(w http.ResponseWriter, _ *http.Request, code int, message string) {
	if code == http.StatusTooManyRequests || code == http.StatusRequestTimeout {
		code = http.StatusServiceUnavailable
	}
	w.Header().Set("X-Influxdb-Version", version)
	respond.JSON(w, code, error1{message})
}

type error1 struct {
	Error string `json:"error"`
}

// refuse2 replies with an error in InfluxDB 2's format.
func refuse2(w http.ResponseWriter, _ *http.Request, code int, message string) {
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
	respond.JSON(w, code, error2{word, message})
}

type error2 struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// ping answers clients that check whether the server is there.
func ping(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("X-Influxdb-Version", version)
	w.WriteHeader(http.StatusNoContent)
}

// answerQuery answers CREATE DATABASE, which clients send before they write. It creates nothing.
func answerQuery(w http.ResponseWriter, r *http.Request) {
	q := strings.TrimRight(r.FormValue("q"), "; ")
	words := strings.Fields(q)
	if len(words) < 3 || !strings.EqualFold(words[0], "create") || !strings.EqualFold(words[1], "database") || strings.Contains(q, ";") {
		refuse1(w, r, http.StatusBadRequest,
			"InfluxQL is not supported, except CREATE DATABASE, which does nothing: query with PromQL at /api/v1/query")
		return
	}
	w.Header().Set("X-Influxdb-Version", version)
	respond.JSON(w, http.StatusOK, queryReply{[]statementReply{{}}})
}

type queryReply struct {
	Results []statementReply `json:"results"`
}

type statementReply struct {
	StatementID int `json:"statement_id"`
}

// health is /-/ready for InfluxDB 2 clients.
func (o *Options) health(w http.ResponseWriter, r *http.Request) {
	if reason := o.Unready(r.Context()); reason != "" {
		respond.JSON(w, http.StatusServiceUnavailable, healthReply{"influxdb", reason, "fail", version})
		return
	}
	respond.JSON(w, http.StatusOK, healthReply{"influxdb", "ready for writes", "pass", version})
}

type healthReply struct {
	Name    string `json:"name"`
	Message string `json:"message"`
	Status  string `json:"status"`
	Version string `json:"version"`
}
