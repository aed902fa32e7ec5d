//go:build !faults

package clock

import "time"

func now() time.Time { return time.Now() }
