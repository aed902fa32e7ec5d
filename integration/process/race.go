//go:build race

package process

func init() { buildFlags = append(buildFlags, "-race") }
