//go:build invariants

package integration

func init() { buildFlags = append(buildFlags, "-tags=invariants") }
