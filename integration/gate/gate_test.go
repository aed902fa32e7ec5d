// Package gate is what tier one runs over a real Cassandra: the storage contract's conformance suite and the real
// programs, both over one node that is started once.
package gate

import (
	"fmt"
	"os"
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
	os.Exit(process.Main(func(p *process.Programs) int {
		programs = p
		code := cassandratest.Main(m)
		if code == 0 {
			// gocql waits ten seconds before it connects to a node that has come up, even if the session has been closed.
			if err := goleak.Find(goleak.IgnoreAnyFunction("github.com/gocql/gocql.(*Session).handleNodeUp")); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
		return code
	}))
}

func TestConformance(t *testing.T) {
	storagetest.Run(t, stores.Open, storagetest.MissingExpire, storagetest.MissingTTL, storagetest.MissingNewestID)
}
