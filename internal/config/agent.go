package config

import (
	"errors"
	"os"
	"time"

	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"
)

// Agent holds the validated options of `quern agent`.
type Agent struct {
	Connection
	Source   string
	Interval time.Duration
	// File is that of --config, and Adaptors its list of adaptors, empty if it has none.
	File     string
	Adaptors yaml.Node
	// DataDir holds the spool.
	DataDir    string
	SpoolBytes int64
	SpoolAge   time.Duration
	Log
}

// AgentFlags and FromAgent are of `quern agent`.
var AgentFlags, FromAgent = command(func(o *options, a *Agent) {
	o.node("adaptors", &a.Adaptors)
	o.check(func(c *cli.Context) error {
		a.File = c.String("config")
		return nil
	})
	a.Connection.addRows(o)
	o.server().text(&a.Source, "source", "", "source name of this host (default: the host's name)")
	o.server().span(&a.Interval, "interval", 10*time.Second, interval, "time between two collections")
	o.server().required(&a.DataDir, "data-dir", "./quern-agent-data", "`DIRECTORY` of the spool, which keeps measurements while the server is unavailable; each agent needs its own")
	number(o.server(), &a.SpoolBytes, "spool-bytes", 1<<30, 16<<20, 1<<50, "maximum size of the spool in bytes; when it is full, files wait, and all else drops the oldest measurements")
	o.server().span(&a.SpoolAge, "spool-age", day, interval, "time that the spool keeps a measurement")
	a.Log.addRows(o)
})

// Reload reads the adaptors of the file again.
func (a *Agent) Reload() error {
	if a.File == "" {
		return nil
	}
	text, err := os.ReadFile(a.File)
	if err != nil {
		return err
	}
	var file struct{ Adaptors yaml.Node }
	if err := yaml.Unmarshal(text, &file); err != nil {
		return err
	}
	a.Adaptors = file.Adaptors
	return nil
}

// FromAgentFile reads the options of an agent from the file that is the only argument.
func FromAgentFile(c *cli.Context) (Agent, error) {
	if c.NArg() != 1 {
		return Agent{}, errors.New("give the file to check, as in: quern agent check agent.yaml")
	}
	if err := c.Set("config", c.Args().First()); err != nil {
		return Agent{}, err
	}
	return FromAgent(c)
}
