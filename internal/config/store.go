package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/metric"
)

// Made holds what a store is made with. All but the block size is fixed then. Only `quern schema apply` has flags for
// the group size and the index partitions.
type Made struct {
	Ladder          metric.Ladder
	BlockSize       int
	GroupSize       int
	IndexPartitions int
}

// Schema holds the validated options of `quern schema apply`.
type Schema struct {
	Cluster Cluster
	// Made is stored when the schema is made. The zero value, for a flag that is not given, means
	// the stored value, or the default if nothing is stored.
	Made
	// Policy has the retention, and the timing that decides how short it may be. The first process that opens the store
	// stores the full policy.
	Policy Policy
	// Replication is the number of copies in each data centre, such as "dc1=3,dc2=3".
	Replication string
	Log
}

// SchemaFlags and FromSchema are of `quern schema apply`.
var SchemaFlags, FromSchema = command(func(o *options, s *Schema) {
	o.configFile()
	givenNumber(o.store(), &s.GroupSize, "group-size", 128, 4096, "number of schedules in one storage partition; fixed when the schema is created")
	givenNumber(o.store(), &s.IndexPartitions, "index-partitions", 16, 1024, "number of shards of the index, and so of aggregators that share the work; fixed when the schema is created")
	parsed(o.store(), &s.Replication, "replication", "", "copies in each data centre, as `DC=COPIES,…` (default: 3 in the local one, or one per node if it has fewer nodes)", parseReplication)
	s.Cluster.addRows(o)
	s.addLadder(o)
	s.Policy.addRetention(o)
	s.addBlockSize(o)
	s.Policy.addTiming(o)
	s.Log.addRows(o)
})

// RestoredFlags and FromRestored are of `quern schema restored`.
var RestoredFlags, FromRestored = command(func(o *options, s *Schema) {
	o.configFile()
	s.Cluster.addRows(o)
	s.Log.addRows(o)
})

func parseReplication(text string) (string, error) {
	if text == "" {
		return "", nil
	}
	for part := range strings.SplitSeq(text, ",") {
		dc, copies, _ := strings.Cut(part, "=")
		if n, err := strconv.Atoi(strings.TrimSpace(copies)); strings.TrimSpace(dc) == "" || err != nil || n < 1 {
			return "", errors.New("must be DC=COPIES, such as dc1=3,dc2=3")
		}
	}
	return text, nil
}

// Settings holds the options of `quern settings` and `quern settings set`: the store, and what to
// change.
type Settings struct {
	Store   string
	DataDir string
	Cluster Cluster
	Policy
	Log
}

// SettingsFlags and FromSettings are of `quern settings`.
var SettingsFlags, FromSettings = command(func(o *options, s *Settings) {
	o.configFile()
	s.addRows(o)
})

// SetSettingsFlags and FromSetSettings are of `quern settings set`.
var SetSettingsFlags, FromSetSettings = command(func(o *options, s *Settings) {
	o.configFile()
	s.addRows(o)
	s.addRetention(o)
	s.addTiming(o)
	s.addAgreed(o)
})

// addRows adds what says which store is meant.
func (s *Settings) addRows(o *options) {
	o.store().oneOf(&s.Store, "store", Cassandra, "store to use: cassandra or pebble (embedded)", Pebble, Cassandra)
	o.store().required(&s.DataDir, "data-dir", "./quern-data", "`DIRECTORY` of the embedded store, which no process may be serving")
	s.Cluster.addRows(o)
	s.Log.addRows(o)
}

// Migrate holds the validated options of `quern migrate`.
type Migrate struct {
	// Config describes the store to copy into. It has no Listen, and nothing of ingest.
	Config
	// From is the legacy keyspace. All but hosts and keyspace is as in Config.Cluster.
	From Cluster
	// Names is the file with the names of schedules, empty for none.
	Names string
	// Rate is the maximum number of rows copied per second, 0 for no limit.
	Rate int
	// Drop drops the legacy tables at the end.
	Drop bool
}

// MigrateFlags and FromMigrate are of `quern migrate`.
var MigrateFlags, FromMigrate = command(func(o *options, m *Migrate) {
	legacy := o.group("Legacy")
	var from Cluster
	o.configFile()
	legacy.required(&from.Keyspace, "from-keyspace", "rhq", "keyspace to copy from")
	parsed(legacy, &from.Hosts, "from-hosts", "", "`HOST:PORT,…` of the cluster to copy from (default: that of --cassandra-hosts)", func(s string) ([]string, error) {
		if s == "" {
			return nil, nil
		}
		return parseHosts(s)
	})
	legacy.required(&m.Source, "source", "rhq", "source of schedules that --names does not name")
	legacy.text(&m.Names, "names", "", "CSV `FILE` with the names of schedules: schedule_id,source,metric[,label=value…]")
	number(legacy, &m.Rate, "rate", 0, 0, 1<<40, "maximum number of rows copied per second; 0 is no limit")
	legacy.boolean(&m.Drop, "drop", false, "drop the legacy tables at the end, if all their rows have been copied")
	o.store().oneOf(&m.Store, "store", Cassandra, "store to copy to: cassandra or pebble (embedded)", Pebble, Cassandra)
	o.store().required(&m.DataDir, "data-dir", "./quern-data", "`DIRECTORY` of the embedded store")
	m.Cluster.addRows(o)
	m.addLadder(o)
	m.addRetention(o)
	m.addBlockSize(o)
	m.addTiming(o)
	m.Log.addRows(o)
	o.check(func(*cli.Context) error {
		m.From = m.Cluster
		m.From.Keyspace = from.Keyspace
		if from.Hosts != nil {
			m.From.Hosts, m.From.LocalDC = from.Hosts, ""
		} else if m.Store == Cassandra && m.From.Keyspace != "" && m.From.Keyspace == m.Cluster.Keyspace {
			return fmt.Errorf("--from-keyspace %s: must differ from --keyspace, the keyspace to copy into", from.Keyspace)
		}
		return nil
	})
})
