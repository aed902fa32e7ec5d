package app

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
)

// newBar returns a progress bar, visible only on a terminal.
func newBar(out io.Writer, total int64, what string) *progressbar.ProgressBar {
	return progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(out), progressbar.OptionSetVisibility(isTerminal(out)), progressbar.OptionSetDescription(what),
		progressbar.OptionSetWidth(40), progressbar.OptionSetPredictTime(true),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionOnCompletion(func() { fmt.Fprintln(out) }))
}

// isTerminal reports whether out is a terminal. In a log a progress bar would be thousands of
// lines.
func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
