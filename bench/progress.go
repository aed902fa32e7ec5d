package main

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

func (b *bench) progress(format string, args ...any) {
	fmt.Fprintf(b.stderr, "%-24s %s\n", b.name, fmt.Sprintf(format, args...))
}

// bar shows the progress of a long part of a step: as a bar on a terminal, and as a line every few
// seconds in a log. It is safe for concurrent use.
type bar struct {
	shown *progressbar.ProgressBar

	mu       sync.Mutex
	b        *bench
	what     string
	done     int
	total    int
	reported time.Time
}

const barLines = 5 * time.Second

func (b *bench) bar(total int, what string) *bar {
	out := &bar{b: b, what: what, total: total, reported: time.Now()}
	if f, ok := b.stderr.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			out.shown = progressbar.NewOptions(total,
				progressbar.OptionSetWriter(f), progressbar.OptionSetDescription(fmt.Sprintf("%-24s %s", b.name, what)),
				progressbar.OptionSetWidth(30), progressbar.OptionSetPredictTime(true), progressbar.OptionShowCount(),
				progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
		}
	}
	return out
}

func (p *bar) add(n int) {
	if p.shown != nil {
		// A bar that cannot be drawn does not matter.
		_ = p.shown.Add(n)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += n
	if time.Since(p.reported) > barLines {
		p.reported = time.Now()
		p.b.progress("%s of %s %s", count(float64(p.done)), count(float64(p.total)), p.what)
	}
}

// end removes an unfinished bar.
func (p *bar) end() {
	if p.shown != nil {
		_ = p.shown.Finish()
	}
}
