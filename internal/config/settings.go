package config

import (
	"slices"

	"github.com/urfave/cli/v2"
)

// Settings holds the options of `quern settings` and `quern settings set`: the store, and what to
// change.
type Settings struct {
	Store   string
	DataDir string
	Cluster Cluster
	Policy
	Log
}

// SettingsFlags returns the flags of `quern settings`.
func SettingsFlags() []cli.Flag {
	return slices.Concat(
		[]cli.Flag{
			configFlag(),
			str(catStore, "store", Cassandra, "store to use: cassandra or pebble (embedded)"),
			str(catStore, "data-dir", "./quern-data", "`DIRECTORY` of the embedded store, which no process may be serving"),
		},
		cassandraFlags(), logFlags(),
	)
}

// SetSettingsFlags returns the flags of `quern settings set`.
func SetSettingsFlags() []cli.Flag {
	return slices.Concat(SettingsFlags(), keptFlags(), timingFlags(), []cli.Flag{futureLimitFlag(), sourceLabelsFlag()})
}

// FromSettings reads the flags of `quern settings`.
func FromSettings(c *cli.Context) (Settings, error) { return read(c, (*parser).settings) }

// FromSetSettings reads the flags of `quern settings set`. The error names all mistakes at once.
func FromSetSettings(c *cli.Context) (Settings, error) {
	return read(c, func(p *parser, s *Settings) {
		p.settings(s)
		s.Policy = p.policy()
		s.FutureLimit = p.given("future-limit", positive)
		s.SourceLabels = p.sourceLabels()
	})
}

func (p *parser) settings(s *Settings) {
	s.Store = p.oneOf("store", Pebble, Cassandra)
	s.DataDir = p.required("data-dir")
	s.Cluster = p.cluster()
	s.Log = p.log()
}
