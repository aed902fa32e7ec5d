//go:build invariants

package process

func init() { buildFlags = append(buildFlags, "-tags=invariants") }
