package config

import "time"

// Agent holds the validated options of `quern agent`.
type Agent struct {
	Connection
	Source     string
	Interval   time.Duration
	QueueLimit int
	Log
}

// AgentFlags and FromAgent are of `quern agent`.
var AgentFlags, FromAgent = command(func(o *options, a *Agent) {
	a.Connection.addRows(o)
	o.server().text(&a.Source, "source", "", "source name of this host (default: the host's name)")
	o.server().span(&a.Interval, "interval", 10*time.Second, interval, "time between two collections")
	number(o.server(), &a.QueueLimit, "queue-limit", 200_000, 1, 1<<30, "maximum number of measurements queued while the server is unavailable; beyond it the oldest are dropped")
	a.Log.addRows(o)
})
