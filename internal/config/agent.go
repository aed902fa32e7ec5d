package config

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"

	"github.com/quern/quern/internal/access"
)

// Agent holds the validated options of `quern agent`.
type Agent struct {
	Connection
	FallbackURLs []string // servers for when the one of URL is away
	Source       string
	Interval     time.Duration
	// File is that of --config, and Adaptors its list of adaptors, empty if it has none.
	File     string
	Adaptors yaml.Node
	// DataDir holds the spool.
	DataDir    string
	SpoolBytes int64
	SpoolAge   time.Duration
	// Control is the address for clients, empty for none. They show what ControlTokenFile holds; without one, they can change nothing.
	Control          string
	ControlTokenFile string
	AllowCommands    bool // in adaptors of clients
	Log
}

// AgentClient holds the options of a command that asks a running agent.
type AgentClient struct {
	Connection
	Argument string // the adaptor to add, or the ID of the one to stop
}

// AgentFlags and FromAgent are of `quern agent`.
var AgentFlags, FromAgent = command(func(o *options, a *Agent) {
	o.node("adaptors", &a.Adaptors)
	o.check(func(c *cli.Context) error {
		a.File = c.String("config")
		return nil
	})
	a.Connection.addRows(o)
	parsed(o.server(), &a.FallbackURLs, "fallback-urls", "", "`URL,…` of servers that are tried in this order while that of --url is away", func(s string) ([]string, error) {
		for _, one := range splitWords(s) {
			if _, err := serverURL(one); err != nil {
				return nil, err
			}
		}
		return splitWords(s), nil
	})
	o.server().text(&a.Source, "source", "", "source name of this host (default: the host's name)")
	o.server().span(&a.Interval, "interval", 10*time.Second, interval, "time between two collections")
	o.server().required(&a.DataDir, "data-dir", "./quern-agent-data", "`DIRECTORY` of the spool, which keeps measurements while the server is unavailable; each agent needs its own")
	number(o.server(), &a.SpoolBytes, "spool-bytes", 1<<30, 16<<20, 1<<50, "maximum size of the spool in bytes; when it is full, files wait, and all else drops the oldest measurements")
	o.server().span(&a.SpoolAge, "spool-age", day, interval, "time that the spool keeps a measurement")
	parsed(o.server(), &a.Control, "control", "", "`ADDRESS` to answer `quern agent list` and the like on, and GET /metrics, such as 127.0.0.1:9097 (default: none)", parseOptional)
	o.server().text(&a.ControlTokenFile, "control-token-file", "", "`FILE` that holds the token which clients must show; without one, those of this machine may ask, and change nothing")
	o.server().boolean(&a.AllowCommands, "allow-commands", false, "allow clients to add adaptors that run commands")
	o.check(func(*cli.Context) error {
		if a.Control == "" {
			return nil
		}
		if err := (access.Secret{File: a.ControlTokenFile}).Check(a.Control); err != nil {
			return fmt.Errorf("--control %s with --control-token-file %q: %w", a.Control, a.ControlTokenFile, err)
		}
		return nil
	})
	a.Log.addRows(o)
})

// agentClient returns the flags of a command that asks a running agent, and what reads these and the argument. without says what to do
// if there is not exactly one argument; it is empty for a command that takes none.
func agentClient(without string) (flags func() []cli.Flag, from func(*cli.Context) (AgentClient, error)) {
	return command(func(o *options, a *AgentClient) {
		a.Connection.rowsTo(o, "agent", "http://127.0.0.1:9097", "`URL` of the agent: its --control")
		if without != "" {
			o.argument(&a.Argument, without)
		}
	})
}

// These are of `quern agent list`, `status`, `add` and `stop`.
var (
	AgentListFlags, FromAgentList = agentClient("")
	AgentAddFlags, FromAgentAdd   = agentClient("give one adaptor, in quotes, as in: quern agent add '{type: tail, path: /var/log/app.log, format: json}'")
	AgentStopFlags, FromAgentStop = agentClient("give the ID of one adaptor; `quern agent list` has them")
)

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
