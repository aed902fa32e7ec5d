// Package gate is what tier one runs over a real Cassandra: the storage contract's conformance suite and the real
// programs, both over one node that is started once.
package gate

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/quern/quern/integration/cassandratest"
	"github.com/quern/quern/integration/process"
	"github.com/quern/quern/integration/stores"
	"github.com/quern/quern/internal/storage/storagetest"
)

// programs are the programs under test.
var programs *process.Programs

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(process.Tests{M: cassandratest.Stopping(m), Use: func(p *process.Programs) { programs = p }},
		// gocql waits ten seconds before it connects to a node that has come up, even if the session has been closed.
		goleak.IgnoreAnyFunction("github.com/gocql/gocql.(*Session).handleNodeUp"))
}

func TestConformance(t *testing.T) {
	storagetest.Run(t, stores.Open, storagetest.MissingExpire, storagetest.MissingTTL, storagetest.MissingNewestID)
}
