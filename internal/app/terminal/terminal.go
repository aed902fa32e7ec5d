// Package terminal shows progress to people who watch a command.
package terminal

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
)

// NewBar returns a progress bar, visible only on a terminal.
func NewBar(out io.Writer, total int64, what string) *progressbar.ProgressBar {
	return progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(out), progressbar.OptionSetVisibility(IsTerminal(out)), progressbar.OptionSetDescription(what),
		progressbar.OptionSetWidth(40), progressbar.OptionSetPredictTime(true),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionOnCompletion(func() { fmt.Fprintln(out) }))
}

// IsTerminal reports whether out is a terminal. In a log a progress bar would be thousands of
// lines.
func IsTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
