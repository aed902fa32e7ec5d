// Package documents has what the endpoints for documents share: their parameters, bodies, replies and failures.
package documents

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/quern/quern/internal/documents/shelf"
	"github.com/quern/quern/internal/limits/admission"
	"github.com/quern/quern/internal/protocol/respond"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/wire"
	"github.com/quern/quern/internal/wire/excerpt"
)

const (
	// decodedFactor is how many times the memory of a body is taken by what is made of it: the copies of its parts, the
	// document, and its JSON. bodyBytes is what the smallest takes.
	decodedFactor = 8
	bodyBytes     = 64 << 10
	// sentFactor is how many times the memory of a stored document its answer takes.
	sentFactor = 3
)

// BadRequestError says what is wrong with a request, apart from its document.
type BadRequestError struct{ Message string }

func (e *BadRequestError) Error() string { return e.Message }

// Parameters returns those of the URL. The body is no form, whatever its Content-Type says.
func Parameters(r *http.Request) (url.Values, error) {
	all, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, &BadRequestError{Message: "the parameters of the URL cannot be read: " + excerpt.Message(err.Error())}
	}
	return all, nil
}

// Charge charges an answer with a stored document of so many bytes.
func Charge(r *http.Request, bytes int) error {
	return admission.Charge(r.Context(), int64(sentFactor*bytes))
}

// Number returns a parameter that is a number of a version.
func Number(all url.Values, name string, least int64) (n int64, there bool, err error) {
	text := all.Get(name)
	if text == "" {
		return 0, false, nil
	}
	if n, err = strconv.ParseInt(text, 10, 64); err != nil || n < least {
		return 0, true, &BadRequestError{Message: fmt.Sprintf("%s must be the number of a version, and not %s", name, excerpt.Quoted(text))}
	}
	return n, true, nil
}

// Base returns the version that a change was made from.
func Base(r *http.Request) (int64, error) {
	all, err := Parameters(r)
	if err != nil {
		return 0, err
	}
	n, there, err := Number(all, "base", 0)
	if err == nil && !there {
		err = &BadRequestError{Message: "say with base=N which version was changed, 0 for a new one: then nobody's change is lost"}
	}
	return n, err
}

// Body reads the body, after it has charged what will be made of it.
func Body(r *http.Request) ([]byte, error) {
	// The server has read and charged the body itself.
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	return text, admission.Charge(r.Context(), int64(bodyBytes+decodedFactor*len(text)))
}

// Answer answers data.
func Answer[T any](w http.ResponseWriter, data T) {
	w.Header().Set("Cache-Control", "no-store")
	respond.JSON(w, http.StatusOK, wire.Data[T]{Status: wire.Success, Data: data})
}

// Fail answers an error.
func Fail(w http.ResponseWriter, r *http.Request, err error) {
	reply := wire.Error{Status: wire.Failure, Error: excerpt.Message(err.Error())}
	var (
		invalid  *shelf.InvalidError
		bad      *BadRequestError
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
