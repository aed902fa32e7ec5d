package stores

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gocql/gocql"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/acceptance"
	"github.com/quern/quern/integration/cassandratest"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/cassandra"
)

// littered are the tables that a slice's run empties again.
var littered = []string{"metrics_cache", "metrics_cache_index"}

// TestTombstones runs two days on the same blocks, so that each slice deletes marks and cached
// chunks of the very blocks that the next slice writes. It checks two promises of the design: no
// read crosses what earlier slices have deleted, and the disk space is freed.
//
// A server keeps what was deleted for gc_grace_seconds, three hours in the schema, so that a
// replica that was away learns of it. Here it is 0, so that compaction may drop at once what it
// would drop then. The days are simulated. The server and its compaction are real.
func TestTombstones(t *testing.T) {
	const (
		day         = 24 // slices
		cleanEvery  = 6
		series      = 512 // 32 blocks, whose marks are more than one batch
		lateSeries  = 40
		reportEvery = 20 // minutes
		mostPerRead = 5
	)
	server := ownServer(t)
	var opts cassandra.Options
	sys := acceptance.Start(t, acceptance.Backend{Open: func(t testing.TB, s storage.Settings, r storage.Retention, clk clock.Clock) func() storage.Store {
		opts = cassandra.Options{
			Hosts: server.Hosts(), DirectHosts: server.Way() == cassandratest.WayDocker, Timeout: timeout,
			Settings: s, Clock: clk, Policy: storage.Policy{Retention: r}.Always,
		}
		require.NoError(t, cassandra.ApplySchema(t.Context(), opts, "", func(int, int, string) {}))
		return func() storage.Store {
			st, err := cassandra.Open(context.WithoutCancel(t.Context()), opts)
			require.NoError(t, err)
			return st
		}
	}}, acceptance.Config{
		Start: time.Date(2025, time.November, 21, 0, 0, 0, 0, time.UTC), BlockSize: 16, GroupSize: 16,
		IndexPartitions: 1, Parallel: 8, LeaseSize: series,
	})
	look := &lookout{t: t, server: server, session: connect(t, opts, "quern")}
	t.Cleanup(look.session.Close)
	for _, table := range littered {
		require.NoError(t, look.session.Query("ALTER TABLE "+table+" WITH gc_grace_seconds = 0").Exec())
	}

	start := sys.Clock.Now()
	var used usage
	for slice := range 2 * day {
		begin := start.Add(time.Duration(slice) * time.Hour)
		for minute := reportEvery / 2; minute < 60; minute += reportEvery {
			sys.SetClock(begin.Add(time.Duration(minute) * time.Minute))
			var points []acceptance.Point
			for i := range series {
				points = append(points, acceptance.Point{
					Series: fmt.Sprintf("metric.number.%d", i), TimeMs: sys.Clock.Now().UnixMilli(), Value: float64(slice*series + i),
				})
			}
			for i := range lateSeries { // in the previous slice, whose run is over
				points = append(points, acceptance.Point{
					Series: fmt.Sprintf("metric.number.%d", i*7), TimeMs: begin.Add(-time.Duration(1+minute) * time.Minute).UnixMilli(), Value: 1,
				})
			}
			sys.MustReport(points...)
		}
		sys.SetClock(begin.Add(time.Hour + 2*time.Minute))
		for _, run := range sys.MustRun() {
			require.Empty(t, run.Err)
		}
		for _, table := range littered {
			require.LessOrEqual(t, look.tombstonesPerRead(table), mostPerRead, "%s, after slice %d", table, slice)
		}
		if (slice+1)%cleanEvery == 0 {
			used = look.clean(slice)
		}
	}
	t.Logf("at most %v tombstones in one read, of %v reads", look.most, look.reads)

	for _, table := range littered {
		require.Zero(t, used.after[table], "a day is over, and %s has given back what it took", table)
	}

	sys.Drain()
	sys.MustCheck(acceptance.Raw)
	require.Empty(t, sys.Leftovers())
	log := server.Log()
	require.NotContains(t, log, batchWarning)
	require.NotRegexp(t, tombstoneWarning, log)
	look.wouldSee(t)
}

// What a server logs about a batch over 5 KB of several partitions, and about a read of many
// tombstones.
const batchWarning = "exceeding specified threshold"

var tombstoneWarning = regexp.MustCompile(`(?im)^WARN.*tombstone`)

// ownServer returns a server for this test alone, so that its log, its statistics and its
// compaction concern nothing else.
func ownServer(t *testing.T) *cassandratest.Server {
	t.Helper()
	server, err := cassandratest.Start(t.Context(), cassandratest.Options{Logf: t.Logf})
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	return server
}

// lookout reads the server's own figures.
type lookout struct {
	t       testing.TB
	server  *cassandratest.Server
	session *gocql.Session

	// most is, by table, the highest number of tombstones that a read has crossed. reads is the
	// number of reads.
	most, reads map[string]int
}

// tombstonesPerRead returns the highest number of tombstones that a read of the table has crossed
// lately; 1 may also mean none. The server counts every client's reads, and forgets them within
// minutes, so call it often.
func (l *lookout) tombstonesPerRead(table string) int {
	var count int64
	var most float64
	require.NoError(l.t, l.session.Query(
		"SELECT count, max FROM system_views.tombstones_per_read WHERE keyspace_name = 'quern' AND table_name = ?", table).Scan(&count, &most))
	if l.most == nil {
		l.most, l.reads = map[string]int{}, map[string]int{}
	}
	l.most[table], l.reads[table] = max(l.most[table], int(most)), int(count)
	return int(most)
}

// usage is the size on disk by table, in bytes, before and after compaction.
type usage struct{ before, after map[string]int64 }

// clean makes the server write everything to disk and compact it.
func (l *lookout) clean(slice int) usage {
	var u usage
	l.nodetool("flush", "quern")
	u.before = l.onDisk()
	l.nodetool(append([]string{"compact", "quern"}, littered...)...)
	require.Eventually(l.t, func() bool {
		u.after = l.onDisk()
		return u.after != nil
	}, time.Minute, 100*time.Millisecond, "files that are no longer needed stay")
	l.t.Logf("slice %d: %v bytes on disk, %v after compaction", slice, u.before, u.after)
	return u
}

// onDisk returns the size of all files of each table, in bytes, or nil while there are obsolete
// files.
func (l *lookout) onDisk() map[string]int64 {
	var names []string
	for _, table := range littered {
		names = append(names, "quern."+table)
	}
	text := l.nodetool(append([]string{"tablestats", "--format", "json"}, names...)...)
	var all map[string]json.RawMessage
	require.NoError(l.t, json.Unmarshal([]byte(text), &all), text)
	var keyspace struct {
		Tables map[string]struct {
			Live  string `json:"space_used_live"`
			Total string `json:"space_used_total"`
		} `json:"tables"`
	}
	require.NoError(l.t, json.Unmarshal(all["quern"], &keyspace), text)
	out := map[string]int64{}
	for _, table := range littered {
		stats, ok := keyspace.Tables[table]
		require.True(l.t, ok, text)
		if stats.Live != stats.Total {
			return nil
		}
		total, err := strconv.ParseInt(stats.Total, 10, 64)
		require.NoError(l.t, err)
		out[table] = total
	}
	return out
}

func (l *lookout) nodetool(args ...string) string {
	out, err := l.server.Nodetool(l.t.Context(), args...)
	require.NoError(l.t, err)
	return out
}

// wouldSee breaks the promises on purpose, to show that the test would notice.
func (l *lookout) wouldSee(t *testing.T) {
	const table, rows = "metrics_cache", 20
	b := l.session.NewBatch(gocql.UnloggedBatch)
	for i := range rows { // in two partitions: servers ignore a batch of one
		b.Query("INSERT INTO metrics_cache (bucket, time_slice, start_schedule_id, chunk_id, data) VALUES (0, 0, ?, ?, ?)",
			i%2, gocql.UUID(blocks.KeyID(1, uint64(i/2))), make([]byte, 500))
	}
	require.NoError(t, l.session.ExecuteBatch(b))
	require.Eventually(t, func() bool { return strings.Contains(l.server.Log(), batchWarning) }, time.Minute, 100*time.Millisecond)
	// A read counts a tombstone only as long as its grace lasts, so on a busy machine the first one may come too late.
	seen := 0
	for range 20 {
		b := l.session.NewBatch(gocql.UnloggedBatch)
		for i := range rows {
			b.Query("DELETE FROM metrics_cache WHERE bucket = 0 AND time_slice = 0 AND start_schedule_id = 0 AND chunk_id = ?",
				gocql.UUID(blocks.KeyID(1, uint64(i))))
		}
		require.NoError(t, l.session.ExecuteBatch(b))
		require.NoError(t, l.session.Query("SELECT * FROM metrics_cache WHERE bucket = 0 AND time_slice = 0 AND start_schedule_id = 0").Exec())
		if seen = l.tombstonesPerRead(table); seen >= rows {
			break
		}
	}
	require.GreaterOrEqual(t, seen, rows)
}
