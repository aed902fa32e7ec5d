package cassandratest

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// pom names the jars of Cassandra.
//
//go:embed pom.xml
var pom []byte

var cassandraVersion = string(regexp.MustCompile(`<cassandra.version>(.*)</cassandra.version>`).FindSubmatch(pom)[1])

// jarsDir returns a directory named after the version, so that a newer version is fetched.
func jarsDir() (string, error) {
	if dir := os.Getenv("QUERN_CASSANDRA_JARS"); dir != "" {
		return filepath.Abs(dir)
	}
	cache, err := os.UserCacheDir()
	return filepath.Join(cache, "quern", "cassandra-"+cassandraVersion), err
}

func hasJars(dir string) bool {
	found, _ := filepath.Glob(filepath.Join(dir, "cassandra-all-*.jar"))
	return len(found) > 0
}

// jars returns the directory with Cassandra's jars, and fetches them if they are missing. Any
// number of processes may call it at once: one fetches, the others wait. The directory gets its name
// when it is complete.
func jars(ctx context.Context) (string, error) {
	dir, err := jarsDir()
	if err != nil || hasJars(dir) {
		return dir, err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	unlock, err := lockFile(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if hasJars(dir) {
		return dir, nil
	}
	into, err := os.MkdirTemp(filepath.Dir(dir), filepath.Base(dir)+".fetching-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(into) //nolint:errcheck // after the rename it is not there
	file := filepath.Join(into, "pom.xml")
	if err := os.WriteFile(file, pom, 0o644); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "mvn", "-q", "-B", "-f", file, "dependency:copy-dependencies", "-DoutputDirectory="+into)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("fetching Cassandra's jars with Maven: %w\n%s", err, lastLines(string(out)))
	}
	// Remove an empty directory that somebody has made beforehand.
	_ = os.Remove(dir)
	return dir, os.Rename(into, dir)
}

// haveJava returns the java for nodes that are processes, or an error that says what is missing here
// to run them. Cassandra 5.0 runs on Java 17, and supports no newer one.
func haveJava(ctx context.Context) (string, error) {
	if dir, err := jarsDir(); err != nil {
		return "", err
	} else if _, err := exec.LookPath("mvn"); err != nil && !hasJars(dir) {
		return "", errors.New("there is no mvn in PATH")
	}
	// After these two, where distributions install it.
	candidates := []string{filepath.Join(os.Getenv("JAVA_HOME"), "bin", "java"), "java"}
	installed, _ := filepath.Glob("/usr/lib/jvm/*17*/bin/java")
	for _, java := range append(candidates, installed...) {
		out, err := exec.CommandContext(ctx, java, "-version").CombinedOutput()
		if err == nil && strings.Contains(string(out), `version "17`) {
			return java, nil
		}
	}
	return "", errors.New("there is no Java 17 in JAVA_HOME, PATH or /usr/lib/jvm")
}

// lastLines returns the end of a program's output.
func lastLines(s string) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}
