package config

import (
	"fmt"
	"os"

	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"
)

// applyFile sets the flags from the file of --config that are given neither on the command line nor
// in the environment.
func applyFile(c *cli.Context) error {
	path := c.String("config")
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	var keys map[string]yaml.Node
	if err := yaml.Unmarshal(text, &keys); err != nil {
		return fmt.Errorf("--config %s: %w", path, err)
	}
	known := make(map[string]cli.Flag)
	for _, f := range c.Command.Flags {
		known[f.Names()[0]] = f
	}
	for key, value := range keys {
		switch {
		case known[key] == nil || key == "config":
			return fmt.Errorf("--config %s, line %d: unknown option %q; the keys are the names of the flags, see --help", path, value.Line, key)
		case value.Kind != yaml.ScalarNode || value.Tag == "!!null":
			return fmt.Errorf("--config %s, line %d: %s must be a single value", path, value.Line, key)
		case c.IsSet(key):
			continue
		}
		if err := c.Set(key, value.Value); err != nil {
			return fmt.Errorf("--config %s, line %d: %s %s: must be %s: %w", path, value.Line, key, value.Value, kind(known[key]), err)
		}
	}
	return nil
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
