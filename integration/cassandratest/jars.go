package cassandratest

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// pomFile is relative to the repository.
const pomFile = "integration/pom.xml"

// jars returns the directory with Cassandra's jars, and fetches them if they are missing. Any
// number of processes may call it at once: one fetches, the others wait.
func jars(ctx context.Context) (string, error) {
	pom, version, err := findPOM()
	if err != nil {
		return "", err
	}
	dir, err := jarsDir(version)
	if err != nil {
		return "", err
	}
	return dir, fetchOnce(dir, func(into string) error { return fetch(ctx, pom, into) })
}

// haveJava returns the java for nodes that are processes, or an UnavailableError if something is missing here to run them.
func haveJava(ctx context.Context) (string, error) {
	if !processesWork {
		return "", unavailable("Cassandra as a process needs Linux")
	}
	java, err := java17(ctx)
	if err != nil {
		return "", err
	}
	_, version, err := findPOM()
	if err != nil {
		return "", err
	}
	if dir, err := jarsDir(version); err != nil || hasJars(dir) {
		return java, err
	}
	if _, err := exec.LookPath("mvn"); err != nil {
		return "", unavailable("there is no mvn in PATH")
	}
	return java, nil
}

// jarsDir returns a directory named after the version, so that a newer version is fetched.
func jarsDir(version string) (string, error) {
	if dir := os.Getenv(envJars); dir != "" {
		return filepath.Abs(dir)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("where to keep Cassandra's jars (%s names a directory): %w", envJars, err)
	}
	return filepath.Join(cache, "quern", "cassandra-"+version), nil
}

// fetchOnce creates dir by fetch, unless dir exists. The directory gets its name only when it is
// complete, so no process sees a part of it. The lock serves another purpose: it keeps two Mavens
// out of one another's repository.
func fetchOnce(dir string, fetch func(into string) error) error {
	if hasJars(dir) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	unlock, err := lockFile(dir + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	if hasJars(dir) {
		return nil
	}
	into, err := os.MkdirTemp(filepath.Dir(dir), filepath.Base(dir)+".fetching-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(into) //nolint:errcheck // after the rename it is not there
	if err := fetch(into); err != nil {
		return err
	}
	if !hasJars(into) {
		return errors.New("Maven has fetched no Cassandra") //nolint:staticcheck // Maven is a name
	}
	// Remove an empty directory that somebody has made beforehand.
	_ = os.Remove(dir)
	return os.Rename(into, dir)
}

func hasJars(dir string) bool {
	found, _ := filepath.Glob(filepath.Join(dir, "cassandra-all-*.jar"))
	return len(found) > 0
}

func fetch(ctx context.Context, pom, into string) error {
	cmd := exec.CommandContext(ctx, "mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", "-DoutputDirectory="+into)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("fetching Cassandra's jars with Maven: %w\n%s", err, lastLines(string(out), 20))
	}
	return nil
}

// findPOM searches upwards from the working directory, which is within the repository for a test
// and mostly for a benchmark.
func findPOM() (file, version string, err error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", "", err
	}
	for from := dir; ; dir = filepath.Dir(dir) {
		file = filepath.Join(dir, filepath.FromSlash(pomFile))
		data, err := os.ReadFile(file)
		if err == nil {
			version, err = cassandraVersion(data)
			return file, version, err
		}
		if dir == filepath.Dir(dir) {
			return "", "", fmt.Errorf("no %s in or above %s: start within the repository", pomFile, from)
		}
	}
}

func cassandraVersion(pom []byte) (string, error) {
	var project struct {
		Properties struct {
			Version string `xml:"cassandra.version"`
		} `xml:"properties"`
	}
	if err := xml.Unmarshal(pom, &project); err != nil {
		return "", fmt.Errorf("%s: %w", pomFile, err)
	}
	if project.Properties.Version == "" {
		return "", fmt.Errorf("%s: no property cassandra.version", pomFile)
	}
	return project.Properties.Version, nil
}

// java17 finds Java 17, which Cassandra 5.0 runs on. Cassandra does not support newer versions.
func java17(ctx context.Context) (string, error) {
	var candidates []string
	if home := os.Getenv("JAVA_HOME"); home != "" {
		candidates = append(candidates, filepath.Join(home, "bin", "java"))
	}
	if path, err := exec.LookPath("java"); err == nil {
		candidates = append(candidates, path)
	}
	// The directories where distributions install it.
	installed, _ := filepath.Glob("/usr/lib/jvm/*17*/bin/java")
	for _, java := range append(candidates, installed...) {
		out, err := exec.CommandContext(ctx, java, "-version").CombinedOutput()
		if err == nil && isJava17.Match(out) {
			return java, nil
		}
	}
	return "", unavailable("there is no Java 17 in JAVA_HOME, PATH or /usr/lib/jvm")
}

var isJava17 = regexp.MustCompile(`version "17[."-]`)

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// bothEnds returns the first and last n lines: an error that Java prints is in the first, and its
// innermost cause in the last.
func bothEnds(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	if len(lines) <= 2*n {
		return strings.Join(lines, "\n")
	}
	return strings.Join(lines[:n], "\n") + "\n…\n" + strings.Join(lines[len(lines)-n:], "\n")
}
