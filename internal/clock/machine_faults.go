//go:build faults

package clock

import (
	"os"
	"sync"
	"time"
)

// now returns the time plus QUERN_CLOCK_OFFSET, such as -400ms. So several processes on one machine
// have clocks that differ, as on several machines.
func now() time.Time { return time.Now().Add(offset()) }

var offset = sync.OnceValue(func() time.Duration {
	text := os.Getenv("QUERN_CLOCK_OFFSET")
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		panic(err)
	}
	return d
})
