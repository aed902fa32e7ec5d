//go:build invariants

package invariants

// Enabled says whether assertions are compiled in.
const Enabled = true
