package annotations

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/protocol/jsonscan"
	"github.com/quern/quern/internal/protocol/push"
	"github.com/quern/quern/internal/protocol/respond"
	"github.com/quern/quern/internal/wire"
)

const (
	// maxAtOnce is the number of annotations that one request may send.
	maxAtOnce = 10_000
	// batchSize and batchBytes bound what is made durable together.
	batchSize  = 256
	batchBytes = 1 << 20
	// memory is what a request takes besides its body, at most: a batch, and the reply.
	memory = 8 << 20
	// reason is why an annotation is rejected; the message says more.
	reason = "invalid_annotation"
	// forbidden is why one is rejected that the client may not store.
	forbidden = string(ingest.ReasonForbidden)
)

// putting is one request that sends annotations.
type putting struct {
	h      *handler
	r      *http.Request
	ctx    context.Context
	grant  access.Grant
	reply  wire.PutAnnotations
	all    int // that were read
	batch  []Draft
	index  []int // of each in the batch
	bytes  int
	checks *Checks
	err    error // why the request cannot go on, of the store for example
	// changed are the ids of annotations that are replaced or moved.
	changed []string
}

// put takes annotations in JSON: one, or an array.
func (h *handler) put(w http.ResponseWriter, r *http.Request) {
	h.receive(w, r, func(p *putting, s *jsonscan.Scanner) bool {
		switch s.Space() {
		case 0:
			return s.Fail(0, "the body is empty, want an annotation")
		case '[':
			return p.list(s, "an annotation", decode) && p.end(s)
		}
		return p.one(s, "an annotation", decode) && p.end(s)
	})
}

// alert takes a notification of Alertmanager. Each alert is an
func (h *handler) alert(w http.ResponseWriter, r *http.Request) {
	h.receive(w, r, func(p *putting, s *jsonscan.Scanner) bool {
		all, ok := alertsOf(s)
		if !ok {
			return false
		}
		s.Text, s.Pos = all, 0
		return p.list(s, "an alert", decodeAlert)
	})
}

// receive reads a body, and answers what decode makes of it. decode returns false after a fault, or after an error of
// the store.
func (h *handler) receive(w http.ResponseWriter, r *http.Request, decode func(*putting, *jsonscan.Scanner) bool) {
	refuse := func(w http.ResponseWriter, _ *http.Request, code int, message string) {
		answer(w, code, wire.PutAnnotations{Error: message})
	}
	h.in.Receive(w, r, push.CheckJSON, push.Identity, refuse, func(b *push.Received) {
		if allowance := h.in.Allowance(r, b); !allowance.Take(memory + int64(len(b.Data))) { // texts are copies
			w.Header().Set("Retry-After", respond.RetryBusy)
			refuse(w, r, http.StatusTooManyRequests, respond.ErrNoRoom.Error())
			return
		}
		s := jsonscan.Scanner{Text: b.Data, Depth: h.in.Limits.Depth}
		ctx := r.Context()
		if b.Broken != nil {
			lasting, done := ingest.Outlive(ctx) // it is cancelled already, and what has arrived is kept
			defer done()
			ctx = lasting
		}
		p := &putting{h: h, r: r, ctx: b.Charged(ctx), grant: access.FromContext(r.Context())}
		p.checks = NewChecks(func(ctx context.Context) (func(), error) { return h.turns.Take(ctx, r.RemoteAddr) })
		ok := decode(p, &s)
		if p.err == nil {
			p.flush()
		}
		p.answer(w, &s, ok, b.Broken)
	})
}

// list reads an array of what decode makes drafts of.
func (p *putting) list(s *jsonscan.Scanner, what string, decode func([]byte, int64) (Draft, string)) bool {
	s.Pos++
	for first := true; ; first = false {
		more, ok := s.Element(first)
		if !ok || !more {
			return ok
		}
		if p.all == maxAtOnce {
			return s.Fail(s.Pos, "a request may send %d annotations: send this one and those behind it in another request", maxAtOnce)
		}
		if !p.one(s, what, decode) {
			return false
		}
	}
}

// one reads one of them.
func (p *putting) one(s *jsonscan.Scanner, what string, decode func([]byte, int64) (Draft, string)) bool {
	if s.Space() != '{' {
		return s.Unexpected(what + ", which is an object")
	}
	begin := s.Pos
	if !s.Skip() {
		return false
	}
	draft, why := decode(s.Text[begin:s.Pos], p.h.book.NowMs())
	return p.take(&draft, why)
}

// end returns whether nothing follows.
func (p *putting) end(s *jsonscan.Scanner) bool {
	if s.Space() != 0 || s.Pos < len(s.Text) {
		return s.Unexpected("the end of the body")
	}
	return true
}

// take adds an annotation to the batch, or to those that are rejected. It returns false if the request cannot go on.
func (p *putting) take(draft *Draft, why string) bool {
	index := p.all
	p.all++
	if why == "" {
		p.h.book.Complete(draft, p.grant.Name)
		if why, p.err = p.checks.Check(p.ctx, &draft.Annotation); p.err != nil {
			return false
		}
	}
	switch {
	case why != "":
		p.reject(index, reason, why)
		return true
	case draft.Moves() && !p.edits():
		p.reject(index, forbidden, "to move an annotation takes the roles read and write")
		return true
	}
	if draft.Moves() {
		p.changed = append(p.changed, draft.ID)
	}
	p.batch, p.index = append(p.batch, *draft), append(p.index, index)
	p.bytes += len(draft.Text) + len(draft.Selector)
	for _, tag := range draft.Tags {
		p.bytes += len(tag)
	}
	if len(p.batch) < batchSize && p.bytes < batchBytes {
		return true
	}
	return p.flush()
}

func (p *putting) reject(index int, reason, why string) {
	if len(p.reply.Rejected) < p.h.in.Limits.Rejections {
		p.reply.Rejected = append(p.reply.Rejected, wire.Rejection{Index: index, Reason: reason, Message: why})
	}
	p.reply.RejectedTotal++
}

// edits returns whether the client may change what is stored. Others only add to it.
func (p *putting) edits() bool { return p.grant.Roles.Has(route.Edits) }

// sift takes out of the batch what the client may not store. It returns false if the request cannot go on.
func (p *putting) sift() bool {
	refused := make(map[int]bool)
	i := 0
	for old, err := range p.h.book.Replaced(p.ctx, p.batch) {
		if p.err = err; err != nil {
			return false
		}
		for p.batch[i].ID != old.ID || p.batch[i].StartMs != old.StartMs {
			i++
		}
		switch {
		case p.batch[i].Repeats(&old): // it is sent once more
		case p.r.URL.Path == wire.AlertsPath && old.Author == p.grant.Name: // the alert goes on
		case p.edits():
			p.changed = append(p.changed, old.ID)
		default:
			refused[i] = true
			p.reject(p.index[i], forbidden, "there is one with this id and start: to replace it takes the roles read and write")
		}
		i++
	}
	batch, index := p.batch, p.index
	p.batch, p.index = nil, nil
	for i := range batch {
		if !refused[i] {
			p.batch, p.index = append(p.batch, batch[i]), append(p.index, index[i])
		}
	}
	return true
}

// flush makes the batch durable.
func (p *putting) flush() bool {
	if len(p.batch) == 0 {
		return true
	}
	if !p.sift() {
		return false
	}
	if p.err = p.h.book.Put(p.ctx, p.batch); p.err != nil {
		return false
	}
	for i, d := range p.batch {
		p.reply.Accepted = append(p.reply.Accepted, wire.AcceptedAnnotation{Index: p.index[i], ID: d.ID, Start: d.StartMs})
	}
	p.batch, p.index, p.bytes = nil, nil, 0
	return true
}

func (p *putting) answer(w http.ResponseWriter, s *jsonscan.Scanner, whole bool, broken error) {
	path := p.r.URL.Path
	p.h.in.Rejects(path, p.reply.RejectedTotal)
	slices.SortFunc(p.reply.Rejected, func(a, b wire.Rejection) int { return a.Index - b.Index })
	if path == wire.AlertsPath && p.reply.RejectedTotal > 0 {
		first := p.reply.Rejected[0]
		p.h.in.Unkept.Note(p.r, first.Reason, p.reply.RejectedTotal, fmt.Sprintf("alert %d: %s", first.Index, first.Message))
	}
	code := http.StatusOK
	switch {
	case p.err != nil:
		code, p.reply.Error = p.h.in.Failed(w, p.r, p.err), p.err.Error()
	case errors.Is(broken, io.ErrUnexpectedEOF):
		code, p.reply.Error = http.StatusBadRequest, "the body ends early"
	case broken != nil:
		code, p.reply.Error = http.StatusBadRequest, "the body cannot be read to its end: "+broken.Error()
	case !whole:
		code, p.reply.Error = http.StatusBadRequest, fmt.Sprintf("at byte %d: %s", s.At, s.Fault)
	case len(p.reply.Accepted) == 0 && p.reply.RejectedTotal > 0:
		first := p.reply.Rejected[0]
		if code = http.StatusBadRequest; first.Reason == forbidden {
			code = http.StatusForbidden
		}
		p.reply.Error = fmt.Sprintf("every annotation was rejected, annotation %d because: %s", first.Index, first.Message)
	}
	if p.reply.RejectedTotal == len(p.reply.Rejected) {
		p.reply.RejectedTotal = 0
	}
	if n := len(p.changed); n > 0 {
		p.h.audit.Did(p.r, p.grant, "POST "+path, code, "replaced_or_moved", n, "first", p.changed[0])
	}
	answer(w, code, p.reply)
}

func answer(w http.ResponseWriter, code int, reply wire.PutAnnotations) {
	if reply.Error != "" {
		reply.Status = wire.Failure
	}
	if reply.Accepted == nil {
		reply.Accepted = []wire.AcceptedAnnotation{}
	}
	if reply.Rejected == nil {
		reply.Rejected = []wire.Rejection{}
	}
	respond.JSON(w, code, reply)
}
