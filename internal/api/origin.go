package api

import (
	"fmt"
	"net/http"
	"regexp"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/api/page"
	"github.com/quern/quern/internal/api/reading"
	"github.com/quern/quern/internal/protocol/respond"
)

// Origins say what web pages may do. A browser sends requests on behalf of any page that it shows,
// also from networks that others cannot reach. Requests of other programs have no Origin header and
// are not restricted.
type Origins struct {
	// CheckHost refuses requests whose Host is a name other than localhost or one of Hosts.
	// Otherwise a page whose name resolves to this machine would count as this server's own.
	CheckHost bool
	Hosts     access.Hosts
	// CORS matches whole origins whose pages may read, but not change anything. Pages of other
	// origins may do neither. nil matches none.
	CORS *regexp.Regexp
}

// pages are the paths that links on other pages may lead to, beside those of the page: people look at them, and they
// cost almost nothing.
var pages = map[string]bool{"/metrics": true, "/health": true, "/-/healthy": true, "/-/ready": true}

// doorkeeper enforces Origins.
type doorkeeper struct {
	Origins
	routes     *route.Table
	protection http.CrossOriginProtection
}

// admits returns whether a request may go on; if not, it has answered the request.
func (d *doorkeeper) admits(w http.ResponseWriter, r *http.Request) bool {
	if d.CheckHost && !d.knows(r.Host) {
		respond.Error(w, http.StatusMisdirectedRequest, fmt.Sprintf(
			"this server does not accept the host name %q: to allow it, start the server with --allowed-hosts", r.Host))
		return false
	}
	origin := r.Header.Get("Origin")
	welcome := d.reads(r, r.Method) && origin != "" && d.CORS != nil && d.CORS.MatchString(origin)
	if d.CORS != nil {
		w.Header().Add("Vary", "Origin")
	}
	if welcome || d.preflight(r, origin) {
		w.Header().Set("Access-Control-Allow-Origin", origin)
		w.Header().Set("Access-Control-Expose-Headers", "Date, Retry-After, "+reading.WarningHeader)
	}
	if d.preflight(r, origin) {
		w.Header().Set("Access-Control-Allow-Methods", "GET, POST, OPTIONS")
		w.Header().Set("Access-Control-Allow-Headers", "Accept, Authorization, Content-Type, Origin")
		w.Header().Set("Access-Control-Max-Age", "600")
		w.WriteHeader(http.StatusNoContent)
		return false
	}
	if !welcome && !visit(r) && d.foreign(r) {
		respond.Error(w, http.StatusForbidden, fmt.Sprintf(
			"a web page of another origin, %q, may not send %s to %s: pages of the origins in --cors-origin may read, and no page may write",
			origin, r.Method, r.URL.Path))
		return false
	}
	return true
}

// foreign returns whether a browser sends the request for a page of another origin. Requests that
// only read count, too: the page cannot see the answer, but it can cause the cost. Some browser
// requests have neither Sec-Fetch-Site nor Origin, for example those for images and frames, over
// plain HTTP, to a host other than localhost. They count as requests of other programs.
func (d *doorkeeper) foreign(r *http.Request) bool {
	if r.Method == http.MethodOptions { // a preflight request
		return false
	}
	simulated := *r
	simulated.Method = http.MethodPost // Check examines only methods that may change something
	return d.protection.Check(&simulated) != nil
}

// visit returns whether somebody follows a link to one of the pages.
func visit(r *http.Request) bool {
	return r.Method == http.MethodGet && (pages[r.URL.Path] || page.IsView(r.URL.Path)) && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

// preflight returns whether the request is an allowed CORS preflight for a read.
func (d *doorkeeper) preflight(r *http.Request, origin string) bool {
	if r.Method != http.MethodOptions || origin == "" || d.CORS == nil || !d.CORS.MatchString(origin) {
		return false
	}
	asked := r.Header.Get("Access-Control-Request-Method")
	return (asked == http.MethodPost || asked == http.MethodGet || asked == http.MethodHead) && d.reads(r, asked)
}

// reads returns whether a request with a method, to the endpoint that r is for, changes nothing. Endpoints for
// readers change nothing by POST either.
func (d *doorkeeper) reads(r *http.Request, method string) bool {
	if method == http.MethodGet || method == http.MethodHead {
		return true
	}
	simulated := *r
	simulated.Method = method
	to, _, ok := d.routes.Find(&simulated)
	return ok && to.Role == access.Read
}

// knows returns whether host names this server. An IP address always does: no name can redirect a
// page to it. Nor does a page send a request without a host.
func (d *doorkeeper) knows(host string) bool {
	_, isAddress := access.Address(host)
	return host == "" || isAddress || d.Hosts.Name(host)
}
