// Package links holds no code: its test follows the links between the Markdown files of the
// repository, and the mentions of these files in code and alerts.
package links

import (
	"bytes"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	// code matches fenced blocks and inline code, which hold no links.
	code = regexp.MustCompile("(?ms)^ *```.*?^ *```|`[^`\n]*`")
	// link matches a Markdown link and captures its target.
	link = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	// heading matches a heading and captures its text.
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.+)$`)
	fenced  = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	// linked matches a link in a heading and captures its text.
	linked = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	// mention matches a page with its path from the root of the repository, and perhaps an anchor,
	// in a file that is not Markdown.
	mention = regexp.MustCompile(`\b(?:docs|schema)/[\w./-]*\w\.md(?:#[\w-]+)?`)
)

// anchors returns the anchors that GitHub gives to the headings of a page.
func anchors(page string) map[string]bool {
	out := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
		text := linked.ReplaceAllString(m[1], "$1")
		slug := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, strings.TrimSpace(text))
		anchor := slug
		for n := 1; out[anchor]; n++ {
			anchor = fmt.Sprintf("%s-%d", slug, n)
		}
		out[anchor] = true
	}
	return out
}

// broken returns what is wrong with a link in a file, "" if it leads somewhere. from is the folder
// that the link is relative to.
func broken(root fs.FS, file, from, target string) string {
	u, err := url.Parse(target)
	if err != nil {
		return err.Error()
	}
	if u.Scheme != "" {
		return "" // it leaves the repository
	}
	to := file
	if u.Path != "" {
		to = path.Join(from, u.Path)
	}
	if _, err := fs.Stat(root, to); err != nil {
		return "there is no " + to
	}
	if u.Fragment == "" {
		return ""
	}
	page, err := fs.ReadFile(root, to)
	if err != nil {
		return err.Error()
	}
	if !anchors(string(page))[u.Fragment] {
		return fmt.Sprintf("%s has no heading with the anchor #%s", to, u.Fragment)
	}
	return ""
}

func TestLinks(t *testing.T) {
	root := os.DirFS("../../..")
	pages, links := 0, 0
	require.NoError(t, fs.WalkDir(root, ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); name != "." && (name == "testdata" || name == "node_modules" || strings.HasPrefix(name, ".")) {
				return fs.SkipDir
			}
			return nil
		}
		var found []string
		from := "." // mentions start at the root
		switch path.Ext(file) {
		case ".md":
			text, err := fs.ReadFile(root, file)
			if err != nil {
				return err
			}
			pages++
			from = path.Dir(file)
			for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(string(text), "x"), -1) {
				found = append(found, m[1])
			}
		case ".go", ".yml", ".cql":
			text, err := fs.ReadFile(root, file)
			if err != nil {
				return err
			}
			if bytes.Contains(text, []byte(".md")) {
				found = mention.FindAllString(string(text), -1)
			}
		}
		links += len(found)
		for _, target := range found {
			if problem := broken(root, file, from, target); problem != "" {
				t.Errorf("%s: link to %s: %s", file, target, problem)
			}
		}
		return nil
	}))
	// A walk that finds nothing would find no problems either.
	assert.Greater(t, pages, 40)
	assert.Greater(t, links, 300)
}

func TestAnchors(t *testing.T) {
	page := "# One `two`, three\n```sh\n# no heading\n```\n## It's [linked](x.md)\n## Twice\n## Twice\n### raw_metrics\n"
	assert.Equal(t, map[string]bool{
		"one-two-three": true, "its-linked": true, "twice": true, "twice-1": true, "raw_metrics": true,
	}, anchors(page))
}
