package config

import "time"

// Agent holds the validated options of `quern agent`.
type Agent struct {
	Connection
	Source   string
	Interval time.Duration
	// DataDir holds the spool.
	DataDir    string
	SpoolBytes int64
	SpoolAge   time.Duration
	Log
}

// AgentFlags and FromAgent are of `quern agent`.
var AgentFlags, FromAgent = command(func(o *options, a *Agent) {
	a.Connection.addRows(o)
	o.server().text(&a.Source, "source", "", "source name of this host (default: the host's name)")
	o.server().span(&a.Interval, "interval", 10*time.Second, interval, "time between two collections")
	o.server().required(&a.DataDir, "data-dir", "./quern-agent-data", "`DIRECTORY` of the spool, which keeps measurements while the server is unavailable; each agent needs its own")
	number(o.server(), &a.SpoolBytes, "spool-bytes", 1<<30, 1<<20, 1<<50, "maximum size of the spool in bytes; beyond it the oldest measurements are dropped")
	o.server().span(&a.SpoolAge, "spool-age", day, interval, "time that the spool keeps a measurement")
	a.Log.addRows(o)
})
