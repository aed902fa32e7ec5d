package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/cassandratest"
	"github.com/quern/quern/integration/process"
)

// TestForgottenIDs makes the only copy forget its last moments while two processes continue. It
// forgets leases of ids, series that were given ids, and the samples. No two series may ever share
// an id. Data acknowledged later must be there with its labels, whichever process meets a series
// first.
func TestForgottenIDs(t *testing.T) {
	t.Parallel()
	server := ownServer(t, cassandratest.Options{CommitlogSync: cassandratest.CommitlogBatch})
	pl := placeIn(server.Hosts())
	pl.apply(t, "--group-size", "64", "--index-partitions", "4")
	ingests := []*process.Process{pl.ingest(t), pl.ingest(t)}
	ready(ingests...)
	var sent, gone ledger
	send := func(sent *ledger, to int, source string) {
		t.Helper()
		now := time.Now().UnixMilli()
		var batch []process.Sample
		for i := range 5 {
			batch = append(batch, process.Sample{Source: source, Metric: fmt.Sprintf("it_%d", i), Ms: now, Value: float64(i)})
		}
		process.Eventually(t, source+" to be acknowledged", func() error {
			_, err := sent.Report(t.Context(), ingests[to], batch)
			return err
		})
	}
	again := func() {
		t.Helper()
		require.NoError(t, server.Restart(t.Context()))
		become(t, 200, ingests...)
	}
	send(&sent, 0, "before")
	require.NoError(t, server.Kill())
	rewind, err := server.Keep()
	require.NoError(t, err)
	again()

	// What is forgotten: series of the first process, under a lease that stays, and series of the
	// second, under a lease that is forgotten too.
	lost := []string{"first-0", "first-1", "second-0", "second-1"}
	for i, source := range lost {
		send(&gone, i/2, source)
	}
	require.NoError(t, server.Kill())
	require.NoError(t, rewind())
	again()

	// A third process leases the ids that the second holds and the server has forgotten.
	third := pl.ingest(t)
	ready(third)
	ingests = append(ingests, third)
	send(&sent, 2, "third-0")
	for i, source := range append(lost, "first-2", "first-3", "second-2", "second-3") {
		send(&sent, i/2%2, source)
	}
	send(&sent, 2, "third-1")
	send(&sent, 0, "second-0")
	send(&sent, 1, "first-0")

	sameIDs(t, pl, 5+10*5)
	process.Eventually(t, "everything", func() error { return sent.Raw(third) })
	running(t, ingests...)
	assert.NotContains(t, ingests[0].Stderr.String(), "there is only one copy of each row")
}

// TestOneCopyThatForgets: schema apply and each process warn of a single copy that acknowledges
// before its data is on disk.
func TestOneCopyThatForgets(t *testing.T) {
	t.Parallel()
	pl := sharedPlace(t)
	apply := pl.quern(t, "schema", "apply")
	pl.applied(t, apply)
	p := pl.ingest(t)
	p.Ready()
	for _, p := range []*process.Process{apply, p} {
		assert.Contains(t, p.Stderr.String(), "there is only one copy of each row, and the servers acknowledge it before it is on disk")
	}
}
