package rollup

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/quern/quern/internal/metric"
)

// Reason is a code at the beginning of a stored error, for readers that act on it. The rest of the text is for people.
type Reason string

// Expired: the marks of a slice were dropped, since its input had expired.
const Expired Reason = "input_expired"

// coded returns an error about a slice whose text begins with a code and the slice's start, in Unix ms.
func coded(code Reason, s metric.Slice, format string, args ...any) error {
	return fmt.Errorf("%s %d: %s", code, s.StartMs, fmt.Sprintf(format, args...))
}

// Has reports whether a stored error has this code for a slice. Errors that earlier versions have stored have no code.
func (r Reason) Has(message string, s metric.Slice) bool {
	head, _, found := strings.Cut(message, ": ")
	return found && head == string(r)+" "+strconv.FormatInt(s.StartMs, 10)
}
