package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestRead(t *testing.T) {
	vcs := []debug.BuildSetting{{Key: "vcs.revision", Value: "117f59d0"}, {Key: "vcs.time", Value: "2026-11-28T19:34:05Z"}}
	for name, c := range map[string]struct {
		set  string
		info debug.BuildInfo
		want string
	}{
		"a release":       {"0.1.0", debug.BuildInfo{Main: debug.Module{Version: "v0.0.0-2026"}, Settings: vcs}, "0.1.0 (commit 117f59d0 of 2026-11-28T19:34:05Z, "},
		"go install":      {"", debug.BuildInfo{Main: debug.Module{Version: "v0.1.0"}}, "0.1.0 (commit unknown of an unknown date, "},
		"go build":        {"", debug.BuildInfo{Main: debug.Module{Version: "v0.0.0-2026+dirty"}, Settings: vcs}, "0.0.0-2026+dirty (commit 117f59d0 of 2026-11-28T19:34:05Z, "},
		"go run":          {"", debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, "devel (commit unknown of an unknown date, "},
		"without records": {"", debug.BuildInfo{}, "devel (commit unknown of an unknown date, "},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, fmt.Sprintf("%s%s, %s/%s)", c.want, runtime.Version(), runtime.GOOS, runtime.GOARCH), read(c.set, &c.info).String())
		})
	}
}
