package app

import (
	"context"
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/shirou/gopsutil/v4/mem"
)

// memory returns the bytes that this process may use: the least of what the machine has, its control
// group may use, and GOMEMLIMIT says. It is 0 if none of them is known.
func memory(ctx context.Context) int64 {
	least := debug.SetMemoryLimit(-1)
	if machine, err := mem.VirtualMemoryWithContext(ctx); err == nil && machine.Total > 0 {
		least = min(least, int64(machine.Total))
	}
	for _, path := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 {
			least = min(least, n)
		}
	}
	if least == math.MaxInt64 {
		return 0
	}
	return least
}
