package config

import (
	"net/url"
	"slices"
	"time"

	"github.com/urfave/cli/v2"
)

// Agent holds the validated options of `quern agent`.
type Agent struct {
	Connection
	Source     string
	Interval   time.Duration
	QueueLimit int
	Log
}

// AgentFlags returns the flags of `quern agent`.
func AgentFlags() []cli.Flag {
	return slices.Concat([]cli.Flag{
		configFlag(),
		str(catServer, "url", "http://127.0.0.1:9095", "`URL` of the Quern server to send reports to"),
		str(catServer, "source", "", "source name of this host (default: the host's name)"),
		span(catServer, "interval", 10*time.Second, "time between two collections"),
		integer(catServer, "queue-limit", 200_000, "maximum number of measurements queued while the server is unavailable; beyond it the oldest are dropped"),
	}, connectionFlags(), logFlags())
}

// FromAgent reads the flags of `quern agent`. The error names all mistakes at once.
func FromAgent(c *cli.Context) (Agent, error) {
	return read(c, func(p *parser, a *Agent) {
		a.Connection = p.connection()
		a.Source = p.c.String("source")
		a.Interval = p.interval("interval")
		a.QueueLimit = p.within("queue-limit", 1, 1<<30)
		a.Log = p.log()
	})
}

// url reads the URL of a server.
func (p *parser) url() string {
	text := p.c.String("url")
	if u, err := url.Parse(text); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		p.fail("url", "must be like http://127.0.0.1:9095")
	}
	return text
}
