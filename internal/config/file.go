package config

import (
	"flag"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"
)

// process is command for a program that serves: it can read the file of --config again while it runs.
func process(rows func(*options, *Config)) (flags func() []cli.Flag, read func(*cli.Context) (Config, error)) {
	flags, once := command(rows)
	read = func(c *cli.Context) (Config, error) {
		given := c.LocalFlagNames() // on the command line and in the environment
		cfg, err := once(c)
		if err != nil {
			return cfg, err
		}
		cfg.Texts = make(map[string]string)
		for _, f := range c.Command.Flags {
			cfg.Texts[f.Names()[0]] = fmt.Sprint(c.Value(f.Names()[0]))
		}
		cfg.Again = func() (Config, error) {
			set := flag.NewFlagSet("", flag.ContinueOnError)
			again := cli.NewContext(c.App, set, nil)
			again.Command = &cli.Command{Flags: flags()}
			for _, f := range again.Command.Flags {
				_ = f.Apply(set) // it was valid at the start, as those below
			}
			for _, name := range given {
				_ = again.Set(name, fmt.Sprint(c.Value(name)))
			}
			return read(again)
		}
		return cfg, nil
	}
	return flags, read
}

// applyFile sets the flags from the file of --config that are given neither on the command line nor
// in the environment, and the nodes. It returns where the flags stand there, by name.
func applyFile(c *cli.Context, nodes map[string]*yaml.Node) (places map[string]string, err error) {
	path := c.String("config")
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	var keys map[string]yaml.Node
	if err := yaml.Unmarshal(text, &keys); err != nil {
		return nil, fmt.Errorf("--config %s: %w", path, err)
	}
	places = make(map[string]string)
	known := make(map[string]cli.Flag)
	for _, f := range c.Command.Flags {
		known[f.Names()[0]] = f
	}
	for key, value := range keys {
		places[key] = fmt.Sprintf("--config %s, line %d", path, value.Line)
		switch {
		case nodes[key] != nil:
			*nodes[key] = value
			continue
		case known[key] == nil || key == "config":
			return nil, fmt.Errorf("%s: unknown option %q; the keys are the names of the flags, see --help", places[key], key)
		case value.Kind != yaml.ScalarNode || value.Tag == "!!null":
			return nil, fmt.Errorf("%s: %s must be a single value", places[key], key)
		case c.IsSet(key):
			delete(places, key)
			continue
		}
		if err := c.Set(key, value.Value); err != nil {
			return nil, fmt.Errorf("%s: %s %s: must be %s: %w", places[key], key, value.Value, kind(known[key]), err)
		}
	}
	return places, nil
}

// kind describes the value of a flag in words.
func kind(f cli.Flag) string {
	switch f.(type) {
	case *cli.IntFlag:
		return "a whole number"
	case *cli.BoolFlag:
		return "true or false"
	}
	return "a string"
}
