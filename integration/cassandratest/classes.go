package cassandratest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// sharedClasses returns an archive of Cassandra's classes in the form that Java has in memory, and
// makes it if it is missing. A node that maps it neither reads nor checks most of its classes, which
// is 40 % of the work of a start. The archive is beside the jars and fits one build of Java. Any
// number of processes may call this at once: one makes the archive, the others wait.
func sharedClasses(ctx context.Context, java, jars string) (string, error) {
	version, err := exec.CommandContext(ctx, java, "-version").CombinedOutput()
	if err != nil {
		return "", err
	}
	build := sha256.Sum256(append(version, java...))
	archive := filepath.Join(jars, fmt.Sprintf("classes-%x.jsa", build[:8]))
	if exists(archive) {
		return archive, nil
	}
	unlock, err := lockFile(archive + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if exists(archive) {
		return archive, nil
	}
	// The archive gets its name when it is complete.
	part := archive + ".part"
	if err := archiveClasses(ctx, java, jars, part); err != nil {
		return "", err
	}
	return archive, os.Rename(part, archive)
}

// archiveClasses runs a node that writes the archive when it ends.
func archiveClasses(ctx context.Context, java, jars, archive string) error {
	c, err := startCluster(ctx, 1, Options{}.withDefaults(1), java, nodeConfig{Jars: jars, Classes: archive, Archives: true})
	if err != nil {
		return err
	}
	defer c.Stop()
	node := c.Node(0)
	if err := node.end(ctx); err != nil {
		return err
	}
	if !exists(archive) {
		return errors.New("Java has archived no classes; the end of its log:\n" + lastLines(node.Log(), 10))
	}
	return nil
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
