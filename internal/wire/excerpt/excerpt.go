// Package excerpt shortens text of clients for messages. A client may send a name, a number or a line of many
// megabytes; a message that repeats it takes that memory again, for as long as the message is kept or being read.
package excerpt

import (
	"fmt"
	"strconv"
	"unicode/utf8"
	"unsafe"
)

const (
	// maxBytes is how much of one text of a client a message repeats.
	maxBytes = 80
	// MaxMessageBytes is the size of the longest message, without the note that it was shortened.
	MaxMessageBytes = 4 << 10
)

// Shorten returns s, or its beginning and an ellipsis. The result may share the memory of s, so it is to be formatted or
// copied at once.
func Shorten(s string) string {
	if len(s) <= maxBytes {
		return s
	}
	return begin(s, maxBytes) + "…"
}

// Quoted returns s in quotes, or its beginning in quotes and an ellipsis.
func Quoted(s string) string {
	if len(s) <= maxBytes {
		return strconv.Quote(s)
	}
	return strconv.Quote(begin(s, maxBytes)) + "…"
}

// Args shortens the texts among the arguments of a message, in place, and returns them.
func Args(args []any) []any {
	for i, arg := range args {
		switch arg := arg.(type) {
		case string:
			args[i] = Shorten(arg)
		case []byte:
			args[i] = Shorten(unsafe.String(unsafe.SliceData(arg), len(arg)))
		}
	}
	return args
}

// Message shortens the message of an error, which may repeat a whole expression. A shortened message keeps nothing of
// the long one in memory.
func Message(s string) string {
	if len(s) <= MaxMessageBytes {
		return s
	}
	kept := begin(s, MaxMessageBytes)
	return fmt.Sprintf("%s… (and %d bytes more)", kept, len(s)-len(kept))
}

// begin returns at most the first n bytes of s, without a part of a character at the end.
func begin(s string, n int) string {
	end := n
	for end > n-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}
