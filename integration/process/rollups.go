package process

import (
	"fmt"
	"time"
)

// LevelName returns the program's name of a level.
func LevelName(width time.Duration) string {
	if width%time.Hour == 0 {
		return fmt.Sprintf("%dh", width/time.Hour)
	}
	return fmt.Sprintf("%ds", width/time.Second)
}
