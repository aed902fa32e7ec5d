// Package invariants switches the assertions that are too costly, or too blunt, for
// production: they panic. The build tag "invariants" turns them on, and the test
// command sets it.
package invariants

import "fmt"

// Check panics when assertions are on and ok is false. Guard it with Enabled where
// working out ok costs something: the guard compiles to nothing otherwise.
func Check(ok bool, format string, args ...any) {
	if Enabled && !ok {
		panic("invariant broken: " + fmt.Sprintf(format, args...))
	}
}
