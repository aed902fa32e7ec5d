package app

import (
	"cmp"
	"fmt"
	"math"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/quern/quern/internal/query"
)

// limitMemory sets Go's memory limit to nine tenths of what the machine and the control group have, unless GOMEMLIMIT is set,
// and from it what has no limit of its own.
func (s *setup) limitMemory() error {
	limit, err := memlimit.Set(memlimit.WithProvider(machineMemory))
	if err != nil {
		return fmt.Errorf("cannot set the memory limit of the process: %w", err)
	}
	if limit != math.MaxInt64 {
		s.memoryLimit = limit
	}
	if s.cfg.Query.MaxSamples == 0 {
		s.cfg.Query.MaxSamples = defaultMaxSamples(s.memoryLimit, s.cfg.Query.Concurrency)
	}
	return nil
}

// machineMemory is the least of what the machine has and what the control group may use.
func machineMemory() (uint64, error) {
	machine, err := memlimit.FromSystem()
	group, groupErr := memlimit.FromCgroup()
	least := uint64(math.MaxUint64)
	if err == nil {
		least = machine
	}
	if groupErr == nil {
		least = min(least, group)
	}
	if least == math.MaxUint64 {
		return 0, memlimit.ErrNoLimit
	}
	return least, nil
}

// defaultMaxSamples is how many samples a query may hold if that is not set: as many as fit into a quarter of the memory, if so
// many queries at once hold as many. Labels of series may take half of it, so a quarter is left for bodies, the store and
// garbage. A limit of 0 is none.
func defaultMaxSamples(limit int64, queries int) int {
	const most = 50_000_000
	if limit == 0 {
		return most
	}
	return int(max(1, min(most, limit/4/int64(cmp.Or(queries, 1))/query.SampleBytes)))
}
