package cassandra

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/quern/quern/integration/cassandratest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(cassandratest.Stopping(m)) }
