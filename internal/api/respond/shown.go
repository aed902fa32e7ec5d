package respond

import "fmt"

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
