package reading

import (
	"encoding/json"
	"math"
	"net/http"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/operate/backup"
	"github.com/quern/quern/internal/operate/explain"
	"github.com/quern/quern/internal/operate/reaggregate"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/wire"
)

// Operate has the endpoints for operators: explaining a row, and recomputing rows.
type Operate struct {
	opts OperateOptions
}

// OperateOptions configure Operate.
type OperateOptions struct {
	// Explainer explains rows. Required.
	Explainer *explain.Explainer
	// Reaggregator recomputes rows. Required.
	Reaggregator *reaggregate.Reaggregator
	// TakeBack lets clients have rows taken back. Such a row may be all that is left of its time, so
	// this is like deleting.
	TakeBack bool
	// Backups makes backups, nil where it cannot.
	Backups *backup.Maker
	// Clock is what "now" in a request means. Required.
	Clock clock.Clock
	// Turns bound how many requests are answered at once. The default bounds nothing.
	Turns Turns
}

// NewOperate makes the endpoints.
func NewOperate(opts OperateOptions) *Operate { return &Operate{opts} }

// Register implements api.Registrar. Endpoints that change data accept POST only.
func (h *Operate) Register(to *route.Table) {
	to.Handle(access.Read, route.Filtered, wire.ExplainPath, h.opts.Turns.query(document(h.explain), "match[]", "time", "limit"))
	to.Handle(access.Admin, route.Refused, "POST "+wire.ReaggregatePath, h.opts.Turns.export(h.reaggregate, "match[]", "start", "end", "take_back"))
	to.Handle(access.Admin, route.Refused, "POST "+wire.BackupPath, h.opts.Turns.answering(nil, 0, h.backup, "rate"))
}

func (h *Operate) backup(out *lines, r *http.Request) error {
	if h.opts.Backups == nil {
		return &query.RequestError{Message: "the server has no place for backups: start it with --backup-dest; docs/backup.md has this, and how to back up a cluster"}
	}
	rate, err := number(r, "rate", 0, math.MaxInt)
	if err != nil {
		return err
	}
	made, err := h.opts.Backups.Create(r.Context(), rate, func(b wire.Backup) error {
		if err := out.document(b); err != nil {
			return err
		}
		return out.flush()
	})
	if err != nil {
		return err
	}
	return out.document(made)
}

const takeBackOff = "take_back, which deletes rows, is turned off: start the server with --enable-admin-api"

func (h *Operate) explain(r *http.Request) (any, error) {
	selectors, err := query.ParseSelectors(r.Context(), r.Form["match[]"])
	if err != nil {
		return nil, err
	}
	nowMs := clock.NowMs(h.opts.Clock)
	at, err := parseTime(r.Form, "time", nowMs, nowMs)
	if err != nil {
		return nil, err
	}
	limit, err := number(r, "limit", explain.Limit, explain.MaxSeries)
	if err != nil {
		return nil, err
	}
	return h.opts.Explainer.Explain(r.Context(), selectors, at, limit)
}

func (h *Operate) reaggregate(out *lines, r *http.Request) error {
	selectors, err := query.ParseSelectors(r.Context(), r.Form["match[]"])
	if err != nil {
		return err
	}
	if r.Form.Get("start") == "" {
		return &query.RequestError{Message: "start is missing: give the start of the rows to recompute, such as start=-6h"}
	}
	nowMs := clock.NowMs(h.opts.Clock)
	startMs, err := parseTime(r.Form, "start", nowMs, 0)
	if err != nil {
		return err
	}
	endMs, err := parseTime(r.Form, "end", nowMs, nowMs)
	if err != nil {
		return err
	}
	takeBack, err := flag(r, "take_back")
	if err != nil {
		return err
	}
	if takeBack && !h.opts.TakeBack {
		return &forbiddenError{takeBackOff}
	}
	sum, err := h.opts.Reaggregator.Run(r.Context(), selectors, startMs, endMs, takeBack, func(p reaggregate.Progress) error {
		if err := out.document(p); err != nil {
			return err
		}
		return out.flush()
	})
	if err != nil {
		return err
	}
	return out.document(reaggregate.Reply{Status: wire.Success, Summary: sum})
}

// document writes v as a line of JSON.
func (l *lines) document(v any) error {
	enc := json.NewEncoder(l)
	enc.SetEscapeHTML(false) // replies never become part of HTML, and people read them
	if err := enc.Encode(v); err != nil {
		return err
	}
	return l.full()
}

// flush sends the buffered lines at once.
func (l *lines) flush() error {
	if err := l.send(); err != nil {
		return err
	}
	return http.NewResponseController(l.to).Flush()
}
