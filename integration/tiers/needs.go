package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/quern/quern/integration/cassandratest"
)

// envRequire names needs, separated by commas, whose absence is a failure.
const envRequire = "QUERN_REQUIRE"

// need is something that not every machine has.
type need struct {
	name     string
	lacks    string   // what to say where it is missing
	packages []string // Debian's packages that bring it
	here     func(ctx context.Context) bool
}

var (
	race = need{"race", "no C compiler, which the race detector needs", []string{"gcc", "libc6-dev"}, compilesC}
	node = need{
		"cassandra", "no Docker daemon with Cassandra's image, and no Java 17 with Maven",
		[]string{"maven", "openjdk-17-jre-headless"},
		hasCassandra,
	}
	// Clusters whose nodes are killed are processes, never containers.
	processes = need{
		"processes", "no Java 17 with Maven, for clusters whose nodes are killed",
		[]string{"maven", "openjdk-17-jre-headless"},
		cassandratest.HasProcesses,
	}
	chromium = need{"chromium", "no Chromium (QUERN_CHROMIUM names the program)", []string{"chromium"}, hasChromium}
	npm      = need{"npm", "no npm, which builds the page", []string{"nodejs", "npm"}, program("npm")}
	apt      = need{"apt", "no apt-get, which fetches programs of others", nil, program("apt-get")}

	needs = []need{race, node, processes, chromium, npm, apt}
)

// requirements returns the needs that a list names.
func requirements(list string) ([]need, error) {
	var out []need
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		i := slices.IndexFunc(needs, func(n need) bool { return n.name == name })
		if i < 0 {
			var all []string
			for _, n := range needs {
				all = append(all, n.name)
			}
			return nil, fmt.Errorf("%s=%s: there is no %q, only %s", envRequire, list, name, strings.Join(all, ", "))
		}
		out = append(out, needs[i])
	}
	return out, nil
}

// compilesC reports whether there is a C compiler with its headers: the race detector needs cgo.
func compilesC(ctx context.Context) bool {
	cc, err := exec.CommandContext(ctx, "go", "env", "CC").Output()
	if err != nil || len(strings.Fields(string(cc))) == 0 {
		return false
	}
	words := append(strings.Fields(string(cc)), "-x", "c", "-o", os.DevNull, "-")
	compile := exec.CommandContext(ctx, words[0], words[1:]...)
	compile.Stdin = bytes.NewBufferString("#include <stdlib.h>\n#include <pthread.h>\nint main(void){return 0;}\n")
	return compile.Run() == nil
}

func hasCassandra(ctx context.Context) bool {
	// A daemon that hangs must not hang the tests.
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	return cassandratest.Available(ctx)
}

func hasChromium(ctx context.Context) bool {
	name := os.Getenv("QUERN_CHROMIUM")
	if name == "" {
		name = "chromium"
	}
	return program(name)(ctx)
}

func program(name string) func(context.Context) bool {
	return func(context.Context) bool {
		_, err := exec.LookPath(name)
		return err == nil
	}
}
