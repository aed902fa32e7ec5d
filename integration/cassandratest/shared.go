package cassandratest

import (
	"context"
	"sync"
	"testing"
	"time"
)

// startLimit is how long a shared server may take: the fetch of an image or jars, and a start on a
// loaded machine.
const startLimit = 20 * time.Minute

// shared is the one server of this process, since a start takes longer than most tests.
var shared struct {
	sync.Mutex
	stops   bool // TestMain will stop the server
	started bool
	server  *Server
	err     error
}

// Shared returns a server with the default options, which all tests of a package share. The first
// call starts it. The package's TestMain runs Stopping, which stops it. With -short, the test is
// skipped.
func Shared(t testing.TB) *Server {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes a Cassandra, and -short is for tests without")
	}
	shared.Lock()
	defer shared.Unlock()
	if !shared.stops {
		t.Fatal("cassandratest.Shared: nothing would stop the server; run cassandratest.Stopping in TestMain")
	}
	if !shared.started {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), startLimit)
		defer cancel()
		shared.started = true
		shared.server, shared.err = Start(ctx, Options{Logf: t.Logf})
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.server
}

// Runner runs tests: *testing.M, or a stand-in.
type Runner interface{ Run() int }

// Stopping returns m, followed by the stop of the server that its tests share, if there is one. Goroutines that are left
// then belong to the tests.
func Stopping(m Runner) Runner { return runAndStop{m} }

type runAndStop struct{ m Runner }

func (r runAndStop) Run() int {
	shared.Lock()
	shared.stops = true
	shared.Unlock()
	defer stopShared()
	return r.m.Run()
}

func stopShared() {
	closeKeyspaces()
	shared.Lock()
	defer shared.Unlock()
	if shared.server != nil {
		shared.server.Stop()
	}
	shared.stops, shared.started, shared.server, shared.err = false, false, nil, nil
}
