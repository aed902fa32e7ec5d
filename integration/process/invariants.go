//go:build invariants

package process

func init() { buildTags = append(buildTags, "invariants") }
