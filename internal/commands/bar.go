package commands

import (
	"fmt"
	"io"

	"github.com/schollz/progressbar/v3"

	"github.com/quern/quern/internal/app/terminal"
)

// bar shows progress on a terminal, and nothing elsewhere. A bar that cannot be drawn is no reason to end.
type bar struct {
	out io.Writer
	bar *progressbar.ProgressBar
}

// at shows how much is done, and what.
func (b *bar) at(done, total int64, what string) {
	if b.bar == nil {
		if !terminal.IsTerminal(b.out) {
			return
		}
		b.bar = terminal.NewBar(b.out, total, what)
	}
	if !b.bar.IsFinished() {
		b.bar.ChangeMax64(total)
		b.bar.Describe(what)
		_ = b.bar.Set64(done)
	}
}

// clear makes place for a line.
func (b *bar) clear() {
	if b.bar != nil {
		_ = b.bar.Clear()
	}
}

// tell prints a line in the place of the bar.
func (b *bar) tell(out io.Writer, line string) {
	b.clear()
	fmt.Fprintln(terminal.Plain(out), line)
}

func (b *bar) end() {
	if b.bar != nil && !b.bar.IsFinished() {
		_ = b.bar.Exit()
		fmt.Fprintln(b.out)
	}
	b.bar = nil
}
