// Package documents has the endpoints for what people keep as documents: dashboards and groups of metrics.
package documents

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/documents/shelf"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/protocol/respond"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/wire"
	"github.com/quern/quern/internal/wire/excerpt"
)

const (
	// decodedFactor is how many times the memory of a body is taken by what is made of it, which is most for a list of
	// very many small elements: these are refused after they have been read. bodyBytes is what the smallest takes.
	decodedFactor = 40
	bodyBytes     = 64 << 10
	// sentFactor is how many times the memory of a stored document its answer takes.
	sentFactor = 3
)

// badRequestError says what is wrong with a request, apart from its document.
type badRequestError struct{ message string }

func (e *badRequestError) Error() string { return e.message }

// endpoint returns what a request is answered, as JSON. all are the parameters of its URL: the body is no form, whatever
// its Content-Type says.
type endpoint func(r *http.Request, all url.Values) (data any, err error)

// ServeHTTP implements http.Handler.
func (e endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	all, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		fail(w, r, &badRequestError{"the parameters of the URL cannot be read: " + excerpt.Message(err.Error())})
		return
	}
	data, err := e(r, all)
	if err != nil {
		fail(w, r, err)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	respond.JSON(w, http.StatusOK, wire.Data[any]{Status: wire.Success, Data: data})
}

// collection is what can be done with the documents of one kind.
type collection struct {
	path     string
	maxBytes int64
	list     endpoint
	// get returns the answer with a document, and the bytes of the document.
	get func(ctx context.Context, id string, version int64) (answer any, size int, err error)
	// put and remove return the number of the version that they make from base. put gets the body of the request.
	put    func(ctx context.Context, id string, base int64, text []byte, author string) (int64, error)
	remove func(ctx context.Context, id string, base int64, author string) (int64, error)
}

func (c collection) register(to *route.Table) {
	one := c.path + "/{id}"
	to.Handle(access.Read, route.Refused, "GET "+c.path, c.list)
	to.Handle(access.Read, route.Refused, "GET "+one, endpoint(func(r *http.Request, all url.Values) (any, error) {
		version, _, err := number(all, "version", 1)
		if err != nil {
			return nil, err
		}
		answer, size, err := c.get(r.Context(), r.PathValue("id"), version)
		if err == nil {
			err = limits.Charge(r.Context(), int64(sentFactor*size))
		}
		return answer, err
	}))
	to.Handle(route.Edits, route.Refused, "PUT "+one, change(func(r *http.Request, base int64) (int64, error) {
		text, err := io.ReadAll(r.Body) // the server has read and charged the body itself
		if err == nil {
			err = limits.Charge(r.Context(), int64(bodyBytes+decodedFactor*len(text)))
		}
		if err != nil {
			return 0, err
		}
		return c.put(r.Context(), r.PathValue("id"), base, text, access.FromContext(r.Context()).Name)
	}))
	to.Handle(route.Edits, route.Refused, "DELETE "+one, change(func(r *http.Request, base int64) (int64, error) {
		return c.remove(r.Context(), r.PathValue("id"), base, access.FromContext(r.Context()).Name)
	}))
	to.AllowBody("PUT "+one, c.maxBytes)
}

// change is an endpoint that makes a version of a document from another one.
func change(do func(r *http.Request, base int64) (int64, error)) endpoint {
	return func(r *http.Request, all url.Values) (any, error) {
		base, given, err := number(all, "base", 0)
		if err == nil && !given {
			err = &badRequestError{"say with base=N which version was changed, 0 for a new one: then nobody's change is lost"}
		}
		if err != nil {
			return nil, err
		}
		version, err := do(r, base)
		return wire.DocumentVersion{ID: r.PathValue("id"), Version: version}, err
	}
}

// number returns a parameter that is a number of a version.
func number(all url.Values, name string, least int64) (n int64, given bool, err error) {
	text := all.Get(name)
	if text == "" {
		return 0, false, nil
	}
	if n, err = strconv.ParseInt(text, 10, 64); err != nil || n < least {
		return 0, true, &badRequestError{fmt.Sprintf("%s must be the number of a version, and not %s", name, excerpt.Quoted(text))}
	}
	return n, true, nil
}

// fail answers an error.
func fail(w http.ResponseWriter, r *http.Request, err error) {
	reply := wire.Error{Status: wire.Failure, Error: excerpt.Message(err.Error())}
	var (
		invalid  *shelf.InvalidError
		bad      *badRequestError
		missing  *shelf.MissingError
		fixed    *shelf.FixedError
		conflict *storage.ConflictError
	)
	code, after := 0, ""
	switch {
	case errors.As(err, &invalid), errors.As(err, &bad), errors.Is(err, storage.ErrRefused):
		code, reply.ErrorType = http.StatusBadRequest, wire.BadData
	case errors.Is(err, storage.ErrTooLarge):
		code, reply.ErrorType = http.StatusRequestEntityTooLarge, wire.BadData
	case errors.As(err, &missing):
		code, reply.ErrorType = http.StatusNotFound, wire.NotFound
	case errors.As(err, &fixed):
		code, reply.ErrorType = http.StatusForbidden, wire.Forbidden
	case errors.As(err, &conflict):
		code, reply.ErrorType, reply.Newest = http.StatusConflict, wire.Conflict, &conflict.Newest
	default:
		code, after = respond.Failure(r.Context(), err)
		reply.ErrorType = wire.Internal
		if after != "" {
			w.Header().Set("Retry-After", after)
			reply.ErrorType = wire.Unavailable
		}
	}
	respond.LetGo(r)
	respond.JSON(w, code, reply)
}
