package config

import (
	"slices"

	"github.com/urfave/cli/v2"
)

// catLegacy is the category of the flags for the legacy keyspace.
const catLegacy = "Legacy"

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

// MigrateFlags returns the flags of `quern migrate`.
func MigrateFlags() []cli.Flag {
	return slices.Concat(
		[]cli.Flag{
			configFlag(),
			str(catLegacy, "from-keyspace", "rhq", "keyspace to copy from"),
			str(catLegacy, "from-hosts", "", "`HOST:PORT,…` of the cluster to copy from (default: that of --cassandra-hosts)"),
			str(catLegacy, "source", "rhq", "source of schedules that --names does not name"),
			str(catLegacy, "names", "", "CSV `FILE` with the names of schedules: schedule_id,source,metric[,label=value…]"),
			integer(catLegacy, "rate", 0, "maximum number of rows copied per second; 0 is no limit"),
			boolean(catLegacy, "drop", false, "drop the legacy tables at the end, if all their rows have been copied"),
			str(catStore, "store", Cassandra, "store to copy to: cassandra or pebble (embedded)"),
			str(catStore, "data-dir", "./quern-data", "`DIRECTORY` of the embedded store"),
		},
		cassandraFlags(), madeFlags(), keptFlags(), blockSizeFlags(), timingFlags(), logFlags(),
	)
}

// FromMigrate reads the flags of `quern migrate`. The error names all mistakes at once.
func FromMigrate(c *cli.Context) (Migrate, error) {
	return read(c, func(p *parser, m *Migrate) {
		m.Store = p.oneOf("store", Pebble, Cassandra)
		m.DataDir = p.required("data-dir")
		p.store(&m.Config)
		m.BlockSize = p.made("block-size", 4096)
		m.Source = p.required("source")
		m.Names = c.String("names")
		m.Rate = p.within("rate", 0, 1<<40)
		m.Drop = c.Bool("drop")
		m.From = m.Cluster
		m.From.Keyspace = p.required("from-keyspace")
		if c.String("from-hosts") != "" {
			m.From.Hosts, m.From.LocalDC = p.hosts("from-hosts"), ""
		} else if m.Store == Cassandra && m.From.Keyspace != "" && m.From.Keyspace == m.Cluster.Keyspace {
			p.fail("from-keyspace", "must differ from --keyspace, the keyspace to copy into")
		}
	})
}
