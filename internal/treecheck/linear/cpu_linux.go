package linear

import (
	"time"

	"golang.org/x/sys/unix"
)

// cpu returns the CPU time of the calling thread.
func cpu() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err) // only a wrong argument causes it
	}
	return time.Duration(t.Nano())
}
