package api

import (
	"fmt"
	"net/http"

	"github.com/quern/quern/internal/protocol/respond"
)

const (
	// maxHeaderBytes bounds the request line, with its URL, and the header fields. Longer parameters are sent as a form.
	maxHeaderBytes = 16 << 10
	// maxHeaderFields bounds the number of header fields, each of which takes far more memory than its bytes.
	maxHeaderFields = 100
)

// boundHeaders refuses a request with very many header fields.
func boundHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fields := len(r.Trailer) // the names in the field Trailer
		for _, values := range r.Header {
			fields += len(values)
		}
		if fields > maxHeaderFields {
			w.Header().Set("Connection", "close") // the body is not read
			respond.Error(w, http.StatusRequestHeaderFieldsTooLarge, fmt.Sprintf("the request has %d header fields, more than the limit of %d", fields, maxHeaderFields))
			return
		}
		next.ServeHTTP(w, r)
	})
}
