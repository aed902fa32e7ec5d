package api

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// Origins say which web pages may do what: a browser sends requests for any page that it shows, from where nobody else may.
// Requests of other programs, which have no Origin, they do not concern.
type Origins struct {
	// CheckHost refuses requests whose Host is a name, but for localhost and Hosts. A page whose name leads to this
	// machine would otherwise count as this server's own.
	CheckHost bool
	Hosts     []string
	// CORS matches the origins, as a whole, whose pages may read. Nobody else's pages may read or change anything, and these may
	// not change anything either. nil is none.
	CORS *regexp.Regexp
}

// readPaths are the endpoints that change nothing, though they are asked by POST too. What is not among them may be asked so
// from pages of this server only.
var readPaths = map[string]bool{
	"/api/v1/query": true, "/api/v1/query_range": true, "/api/v1/query_exemplars": true, "/api/v1/format_query": true,
	"/api/v1/series": true, "/api/v1/labels": true,
	"/api/v1/export": true, "/api/v1/rollups": true, "/api/v1/points": true, "/api/v1/latest": true, "/api/v1/summary": true,
	"/api/v1/baseline": true, "/api/v1/explain": true,
}

// pages are what a link on another page may lead to: people look at them, and they cost next to nothing.
var pages = map[string]bool{"/": true, "/metrics": true, "/health": true, "/-/healthy": true, "/-/ready": true}

// doorkeeper applies Origins.
type doorkeeper struct {
	Origins
	protection http.CrossOriginProtection
}

// admits answers a request that must go no further, and then it is false.
func (d *doorkeeper) admits(w http.ResponseWriter, r *http.Request) bool {
	if d.CheckHost && !d.knows(r.Host) {
		replyError(w, http.StatusMisdirectedRequest, fmt.Sprintf(
			"this server is not known as %q: if it should be, start it with --allowed-hosts", r.Host))
		return false
	}
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead || readPaths[r.URL.Path]
	origin := r.Header.Get("Origin")
	welcome := reads && origin != "" && d.CORS != nil && d.CORS.MatchString(origin)
	if d.CORS != nil {
		w.Header().Add("Vary", "Origin")
	}
	if welcome || d.preflight(r, origin) {
		w.Header().Set("Access-Control-Allow-Origin", origin)
		w.Header().Set("Access-Control-Expose-Headers", "Date, Retry-After, "+warningHeader)
	}
	if d.preflight(r, origin) {
		w.Header().Set("Access-Control-Allow-Methods", "GET, POST, OPTIONS")
		w.Header().Set("Access-Control-Allow-Headers", "Accept, Authorization, Content-Type, Origin")
		w.Header().Set("Access-Control-Max-Age", "600")
		w.WriteHeader(http.StatusNoContent)
		return false
	}
	if !welcome && !visit(r) && d.foreign(r) {
		replyError(w, http.StatusForbidden, fmt.Sprintf(
			"a web page of another origin, %q, may not send %s to %s: pages that --cors-origin names may read, and no page may write",
			origin, r.Method, r.URL.Path))
		return false
	}
	return true
}

// foreign says whether a browser sends a request for a page of another origin. One that only reads counts as well: the page cannot
// see the answer, but what it costs to make. A browser that sends neither Sec-Fetch-Site nor Origin, as it does with images and frames from plain
// HTTP to another host than this machine, is like any other program.
func (d *doorkeeper) foreign(r *http.Request) bool {
	if r.Method == http.MethodOptions { // it asks whether it may
		return false
	}
	as := *r
	as.Method = http.MethodPost // of which alone it is asked
	return d.protection.Check(&as) != nil
}

// visit says whether somebody follows a link to a page.
func visit(r *http.Request) bool {
	return r.Method == http.MethodGet && pages[r.URL.Path] && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

// preflight says whether a browser asks what a page may read that it asks for.
func (d *doorkeeper) preflight(r *http.Request, origin string) bool {
	if r.Method != http.MethodOptions || origin == "" || d.CORS == nil || !d.CORS.MatchString(origin) {
		return false
	}
	asked := r.Header.Get("Access-Control-Request-Method")
	return asked == http.MethodGet || asked == http.MethodHead || asked == http.MethodPost && readPaths[r.URL.Path]
}

// knows says whether a Host is one of this server's. An address is: no name leads a page elsewhere under it.
func (d *doorkeeper) knows(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if host == "" || host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return slices.ContainsFunc(d.Hosts, func(name string) bool { return strings.EqualFold(name, host) })
}
