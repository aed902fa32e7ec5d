package process

import (
	"fmt"
	"time"
)

// Row is the part of a line of /api/v1/rollups that tests count by. Package oracle checks the rest.
type Row struct {
	Metric map[string]string `json:"metric"`
	Time   int64             `json:"time"`
}

// LevelName returns the program's name of a level.
func LevelName(width time.Duration) string {
	if width%time.Hour == 0 {
		return fmt.Sprintf("%dh", width/time.Hour)
	}
	return fmt.Sprintf("%ds", width/time.Second)
}
