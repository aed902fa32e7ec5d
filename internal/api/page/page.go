// Package page serves the page that people see in a browser. It consists of files that are built from web/ and checked
// in, so Go alone builds a server with them. It asks the endpoints of the API for everything that it shows.
//
// A document of the page carries a policy by which the browser runs only scripts of these files, takes styles only from
// them or from who knows a secret of this one document, and asks no other server for anything. What the page shows of
// the store, such as names and messages, is text: under the policy no text can become markup.
package page

import (
	"crypto/rand"
	"embed"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"
)

// Views are the addresses of the page. What is below them is the page's, too: it says when there is nothing.
var Views = []string{"/explore", "/grinding", "/metrics-explorer", "/dashboards", "/send"}

// IsView returns whether the page shows something at a path.
func IsView(p string) bool {
	if p == "/" {
		return true
	}
	for _, view := range Views {
		if p == view || strings.HasPrefix(p, view+"/") {
			return true
		}
	}
	return false
}

//go:embed dist
var dist embed.FS

var mimes = map[string]string{
	".js":  "text/javascript; charset=utf-8",
	".css": "text/css; charset=utf-8",
	".svg": "image/svg+xml",
	".txt": "text/plain; charset=utf-8",
}

var document = sync.OnceValue(func() string {
	contents, err := dist.ReadFile("dist/index.html")
	if err != nil {
		panic(err)
	}
	return string(contents)
})

// policy is what the browser may do for a document. The editor of expressions makes its styles while it runs, so these
// need a nonce. Pictures are drawn in the page, and saved from there.
const policy = "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{{nonce}}'; connect-src 'self'; img-src 'self' data: blob:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// Wanted returns whether whoever sends the request can show the page. Browsers name HTML when somebody follows a link or
// types an address; other programs do not.
func Wanted(r *http.Request) bool {
	for _, header := range r.Header.Values("Accept") {
		for kind := range strings.SplitSeq(header, ",") {
			kind, params, _ := strings.Cut(kind, ";")
			if strings.EqualFold(strings.TrimSpace(kind), "text/html") && strings.ReplaceAll(params, " ", "") != "q=0" {
				return true
			}
		}
	}
	return false
}

// Document sends the document, which is the same for all views.
func Document(w http.ResponseWriter, r *http.Request) {
	nonce := rand.Text()
	fill := strings.NewReplacer("{{nonce}}", nonce)
	secure(w.Header())
	w.Header().Set("Content-Security-Policy", fill.Replace(policy))
	w.Header().Set("X-Frame-Options", "DENY")
	w.Header().Set("Cross-Origin-Opener-Policy", "same-origin")
	// A document from a cache would have the nonce of another answer.
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(fill.Replace(document())))
}

// Assets sends the files that the document names. They never change: their names have the hashes of their contents.
func Assets(w http.ResponseWriter, r *http.Request) {
	secure(w.Header())
	kind, known := mimes[path.Ext(r.URL.Path)]
	file, err := dist.Open("dist" + r.URL.Path)
	if !known || err != nil || path.Dir(r.URL.Path) != "/assets" {
		// Such as that of a page that was opened before the server was upgraded.
		http.Error(w, "there is no such file: load the page again", http.StatusNotFound)
		return
	}
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	w.Header().Set("Content-Type", kind)
	http.ServeContent(w, r, "", time.Time{}, file.(io.ReadSeeker)) // as those of an embed.FS are
}

func secure(h http.Header) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}
