package respond

import (
	"fmt"
	"unicode/utf8"
)

// maxShownBytes limits how much of the client's text a message repeats.
const maxShownBytes = 40

// Shown quotes client text for a message.
func Shown(s string) string {
	if len(s) > maxShownBytes {
		return fmt.Sprintf("%q…", s[:maxShownBytes])
	}
	return fmt.Sprintf("%q", s)
}

// Clip is Shown without quotes, for numbers.
func Clip(s string) string {
	if len(s) > maxShownBytes {
		return s[:maxShownBytes] + "…"
	}
	return s
}

// maxMessageBytes limits the message of an error in a reply: an error of a parser may repeat a whole
// expression.
const maxMessageBytes = 4 << 10

// Message shortens the message of an error to what a reply holds. A shortened message keeps
// nothing of the long one in memory.
func Message(s string) string {
	if len(s) <= maxMessageBytes {
		return s
	}
	end := maxMessageBytes
	for end > maxMessageBytes-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return fmt.Sprintf("%s… (and %d bytes more)", s[:end], len(s)-end)
}
