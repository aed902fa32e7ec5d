package app

import (
	"cmp"
	"fmt"
	"math"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/quern/quern/internal/protocol/graphite"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/storage/pebble"
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

const (
	// maxConnections is how many HTTP connections may be open.
	maxConnections = 8192
	// otherFiles is how many files and connections the process may need besides those of clients and of an embedded store:
	// logs, listeners, a refused connection, a backup, and the connections to the nodes of a cluster.
	otherFiles = 192
	// leastConnections is how many connections a server must be able to accept, of HTTP and of Graphite each.
	leastConnections = 16
)

// connections are how many connections may be open.
type connections struct{ http, graphite int }

// connectionsFor returns how many connections a process may accept that may open so many files, 0 for any number. Beyond
// that the store could open no file, which ends the process. What is left besides the store's files is shared.
func connectionsFor(files uint64, maxHTTP int, embedded, lines bool) (connections, error) {
	want := connections{http: maxHTTP}
	least := uint64(leastConnections)
	if lines {
		want.graphite = graphite.Connections
		least += leastConnections
	}
	kept := uint64(otherFiles)
	if embedded {
		kept += pebble.MaxOpenFiles
	}
	needs := kept + uint64(want.http+want.graphite)
	switch {
	case files == 0 || files >= needs:
		return want, nil
	case files < kept+least:
		return want, fmt.Errorf("this process may open %d files and needs %d at least: raise its limit of open files to %d, "+
			"as by LimitNOFILE= in a unit of systemd, or by ulimit -n", files, kept+least, needs)
	}
	left := int(files - kept)
	got := connections{graphite: min(want.graphite, left/2)}
	got.http = min(want.http, left-got.graphite)
	return got, nil
}

// limitConnections decides how many connections may be open, and says so if they are fewer than the settings allow.
func (s *server) limitConnections() error {
	files, lines := s.mayOpen(), s.lines != nil
	got, err := connectionsFor(files, maxConnections, !s.shared(), lines)
	if err != nil {
		return err
	}
	if want, _ := connectionsFor(0, maxConnections, !s.shared(), lines); got != want {
		s.log.Warn("this process may open too few files for all connections that it could accept: raise its limit of open "+
			"files, as by LimitNOFILE= in a unit of systemd, or by ulimit -n",
			"files", files, "http_connections", got.http, "max_connections", want.http,
			"graphite_connections", got.graphite, "max_graphite_connections", want.graphite)
	}
	s.accepts = got
	return nil
}
