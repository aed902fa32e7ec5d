package api

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/quern/quern/internal/protocol/respond"
)

const (
	// maxHeaderBytes bounds the request line, with its URL, and the header fields. Longer parameters are sent as a form.
	maxHeaderBytes = 16 << 10
	// maxHeaderFields bounds the number of header fields, each of which takes far more memory than its bytes.
	maxHeaderFields = 100
)

// usedHeaders are the header fields that handlers look at.
var usedHeaders = []string{
	"Accept", "Accept-Encoding", "Access-Control-Request-Method", "Authorization", "Content-Encoding", "Content-Type", "Cookie",
	"Forwarded", "If-None-Match", "Origin",
	"Sec-Fetch-Dest", "Sec-Fetch-Mode", "Sec-Fetch-Site", "User-Agent", "Via", "X-Forwarded-For",
}

// boundHeaders refuses a request with very many header fields. Of another it lets those go that nobody looks at: a request
// lasts as long as its body takes to arrive, and its header fields are charged to nobody.
func boundHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fields := len(r.Trailer) // the names in the field Trailer
		for _, values := range r.Header {
			fields += len(values)
		}
		all := r.Header
		// The server holds this request, too, so no copy of it would do.
		r.Header, r.Trailer = make(http.Header, len(usedHeaders)), nil
		if fields > maxHeaderFields {
			w.Header().Set("Connection", "close") // the body is not read
			respond.Error(w, http.StatusRequestHeaderFieldsTooLarge, fmt.Sprintf("the request has %d header fields, more than the limit of %d", fields, maxHeaderFields))
			return
		}
		for _, name := range usedHeaders {
			if values := all[name]; len(values) > 0 {
				r.Header[name] = slices.Clone(values)
			}
		}
		next.ServeHTTP(w, r)
	})
}
