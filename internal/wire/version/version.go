// Package version says which build of Quern this is.
package version

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
)

// set is the version of a release: -ldflags '-X github.com/quern/quern/internal/wire/version.set=0.1.0'.
var set string

// Build describes a build. What is not known is empty. Date is that of the commit: a build has none, so that it can be
// repeated.
type Build struct{ Version, Commit, Date string }

// Read returns the build of this program.
var Read = sync.OnceValue(func() Build {
	info, _ := debug.ReadBuildInfo()
	return read(set, cmp.Or(info, new(debug.BuildInfo)))
})

func read(set string, info *debug.BuildInfo) Build {
	b := Build{Version: cmp.Or(set, strings.Trim(strings.TrimPrefix(info.Main.Version, "v"), "()"), "devel")}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Date = s.Value
		}
	}
	return b
}

// String is for people.
func (b Build) String() string {
	return fmt.Sprintf("%s (commit %s of %s, %s, %s/%s)", b.Version, cmp.Or(b.Commit, "unknown"), cmp.Or(b.Date, "an unknown date"), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
