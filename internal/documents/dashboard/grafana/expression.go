package grafana

import (
	"regexp"
	"strings"

	"github.com/quern/quern/internal/wire/excerpt"
)

// provided are the variables that each dashboard has without declaring them.
var provided = map[string]bool{"__range": true, "__interval": true, "__rate_interval": true}

// reference is a variable in an expression of Grafana: $name, ${name}, ${name:format} or [[name]].
var reference = regexp.MustCompile(`\$(\w+)|\$\{(\w+)(?::([^}]*))?\}|\[\[(\w+)(?::([^\]]*))?\]\]`)

// expression writes the variables of an expression as Quern does, and says which there are none of.
func (c *converter) expression(where, expr string) string {
	unknown := ""
	out := reference.ReplaceAllStringFunc(expr, func(text string) string {
		part := reference.FindStringSubmatch(text)
		name, format := part[1]+part[2]+part[4], part[3]+part[5]
		switch format {
		case "", "regex", "pipe":
		default:
			c.note("%s: the form %s of $%s is left out", where, excerpt.Quoted(format), excerpt.Of(name))
		}
		switch {
		case provided[name]:
			return "$" + name
		case c.known[name]:
			if part[1] != "" {
				return text
			}
			return "${" + name + "}"
		case strings.Trim(name, "0123456789") == "":
			return text // a group of a regular expression, as in label_replace
		}
		unknown = name
		return text
	})
	if unknown != "" {
		c.note("%s: there is no variable $%s", where, excerpt.Of(unknown))
	}
	return out
}
