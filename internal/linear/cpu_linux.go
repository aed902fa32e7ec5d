package linear

import (
	"time"

	"golang.org/x/sys/unix"
)

// cpu is the time that the calling thread has used.
func cpu() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err) // it has no cause but a wrong argument
	}
	return time.Duration(t.Nano())
}
