package terminal

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Escape replaces characters that a terminal may obey, or that change how other text is shown, by escapes
// of JSON such as \u001b. It keeps line feeds, tabs and printable characters. The meaning of JSON stays.
func Escape(s string) string {
	clean := func(r rune) bool { return r == '\n' || r == '\t' || strconv.IsPrint(r) && r != utf8.RuneError }
	if strings.IndexFunc(s, func(r rune) bool { return !clean(r) }) < 0 {
		return s
	}
	var sb strings.Builder
	for _, r := range s { // what is not UTF-8 is utf8.RuneError
		switch {
		case clean(r):
			sb.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&sb, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&sb, `\u%04x`, r)
		}
	}
	return sb.String()
}

// Plain returns a writer that escapes what is written to out. A write must not end within a character.
func Plain(out io.Writer) io.Writer { return plain{out} }

type plain struct{ out io.Writer }

func (p plain) Write(b []byte) (int, error) {
	if _, err := io.WriteString(p.out, Escape(string(b))); err != nil {
		return 0, err
	}
	return len(b), nil
}
