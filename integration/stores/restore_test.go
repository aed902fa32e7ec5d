package stores

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/cassandratest"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/commands"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// TestRestored restores tables from snapshots of different moments, as they are if processes run meanwhile: the counter of ids
// and the series are older than the samples. A new series would then get the samples of another. `quern schema restored`
// prevents that.
func TestRestored(t *testing.T) {
	server := cassandratest.Shared(t)
	opts := place(t, storagetest.TestSettings().Ladder)
	open := openAt(t, opts, storagetest.TestSettings(), nil, clock.System{})
	ids, now := blocks.NewIDs(1), time.Now().Truncate(time.Hour).UnixMilli()
	nodetool := func(args ...string) string {
		out, err := server.Nodetool(context.WithoutCancel(t.Context()), args...) // also when the test has ended
		require.NoError(t, err)
		return out
	}
	t.Cleanup(func() { nodetool("clearsnapshot", "--all", "--", opts.Keyspace) })
	// series registers a series, writes a sample of it and takes a snapshot.
	series := func(st storage.Store, name string) metric.ScheduleID {
		leased, err := st.LeaseIDs(t.Context(), 1000) // more than a group, so that each series has a group
		require.NoError(t, err)
		labels, err := metric.NewLabels(metric.Label{Name: metric.NameLabel, Value: name})
		require.NoError(t, err)
		got, err := st.ClaimSchedules(t.Context(), storagetest.ClaimsOf("host", []storage.Schedule{{ID: leased.Start, Labels: labels}}))
		require.NoError(t, err)
		require.NoError(t, st.Write(t.Context(), &storage.Batch{Raw: []storage.RawChunk{{
			Group: blocks.BlockAt(got[0], st.Settings().GroupSize).Start, SliceMs: now, Chunk: storage.Chunk{ID: ids.Next(now), Data: []byte(name)},
		}}}))
		nodetool("snapshot", "-t", name, "--", opts.Keyspace)
		return got[0]
	}
	chunks := func(st storage.Store, r blocks.Range) (found []string) {
		for c, err := range st.RawChunks(t.Context(), r, now, now+1) {
			require.NoError(t, err)
			found = append(found, string(c.Data))
		}
		return found
	}
	st := open()
	first := series(st, "first")
	second := series(st, "second")
	third := series(st, "third")
	require.NoError(t, st.Close())

	session := connect(t, opts, opts.Keyspace)
	t.Cleanup(session.Close)
	paths := nodetool("datapaths", "--", opts.Keyspace)
	for table, snapshot := range map[string]string{"settings": "first", "schedules": "first", "schedules_by_block": "first", "raw_metrics": "third"} {
		path := regexp.MustCompile(`/\S*/` + table + `-[0-9a-f]+`).FindString(paths)
		require.NotEmpty(t, path, paths)
		require.NoError(t, session.Query("TRUNCATE "+table).Exec())
		nodetool("import", "--copy-data", "--", opts.Keyspace, table, fmt.Sprintf("%s/snapshots/%s", path, snapshot))
	}

	st = open()
	require.Equal(t, []string{"first"}, chunks(st, blocks.Range{Start: first, End: first + 1}))
	leased, err := st.LeaseIDs(t.Context(), 1000)
	require.NoError(t, err)
	require.Equal(t, second, leased.Start, "the id that has samples already")
	require.Equal(t, []string{"second"}, chunks(st, blocks.Range{Start: second, End: second + 1}))
	require.NoError(t, st.Close())

	var out bytes.Buffer
	require.NoError(t, commands.SchemaRestored(t.Context(), config.Schema{Cluster: config.Cluster{
		Hosts: opts.Hosts, Keyspace: opts.Keyspace, Consistency: "LOCAL_QUORUM", Timeout: timeout, Direct: opts.DirectHosts,
	}}, &out, &out))
	require.Contains(t, out.String(), "get ids from")
	st = open()
	leased, err = st.LeaseIDs(t.Context(), 1000)
	require.NoError(t, err)
	require.Greater(t, leased.Start, third)
	require.Empty(t, chunks(st, leased))
	// What a process does that meets a series of the snapshot.
	known := 0
	for s, err := range st.SourceSchedules(t.Context(), "host") {
		require.NoError(t, err)
		require.Equal(t, first, s.ID)
		known++
	}
	require.Equal(t, 1, known)
}
