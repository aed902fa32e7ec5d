package cassandratest

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/exec"
	tclog "github.com/testcontainers/testcontainers-go/log"
	"github.com/testcontainers/testcontainers-go/modules/cassandra"
	"github.com/testcontainers/testcontainers-go/wait"
)

// container is a server in Docker. Its image has its own configuration, which is Cassandra's
// default.
type container struct {
	running *cassandra.CassandraContainer
	host    string // host:port, where its port is published
}

func haveDocker(ctx context.Context) error {
	docker, err := testcontainers.NewDockerProvider(testcontainers.WithLogger(tclog.NewNoopLogger()))
	if err == nil {
		defer docker.Close() //nolint:errcheck // it holds idle connections and nothing else
		err = docker.Health(ctx)
	}
	if err != nil {
		return fmt.Errorf("no Docker daemon answers: %w", err)
	}
	return nil
}

func startContainer(ctx context.Context) (*container, error) {
	if err := haveDocker(ctx); err != nil {
		return nil, err
	}
	image := cmp.Or(os.Getenv("QUERN_CASSANDRA_IMAGE"), "cassandra:5.0")
	running, err := cassandra.Run(
		ctx, image,
		testcontainers.WithLogger(tclog.NewNoopLogger()),
		testcontainers.WithEnv(map[string]string{
			"MAX_HEAP_SIZE": "1024M",
			"JVM_OPTS":      "-XX:TieredStopAtLevel=1", // as for the nodes that are processes
		}),
		// The module's own conditions, with more time for a loaded machine.
		testcontainers.WithWaitStrategyAndDeadline(
			readyLimit,
			wait.ForListeningPort(nativePort+"/tcp").WithStartupTimeout(readyLimit),
			wait.ForExec([]string{"cqlsh", "-e", "SELECT bootstrapped FROM system.local"}).
				WithStartupTimeout(readyLimit).
				WithResponseMatcher(func(out io.Reader) bool {
					text, _ := io.ReadAll(out)
					return strings.Contains(string(text), "COMPLETED")
				}),
		),
	)
	c := &container{running: running}
	if err == nil {
		c.host, err = running.ConnectionHost(ctx)
	}
	if err != nil {
		err = fmt.Errorf("starting %s in Docker: %w; the end of its log:\n%s", image, err, lastLines(c.log()))
		c.stop()
		return nil, err
	}
	return c, nil
}

// nodetool runs nodetool inside the container.
func (c *container) nodetool(ctx context.Context, args ...string) (string, error) {
	code, out, err := c.running.Exec(ctx, append([]string{"nodetool"}, args...), exec.Multiplexed())
	if err != nil {
		return "", fmt.Errorf("nodetool %s: %w", strings.Join(args, " "), err)
	}
	text, err := io.ReadAll(out)
	if err == nil && code != 0 {
		err = fmt.Errorf("nodetool %s: exit code %d\n%s", strings.Join(args, " "), code, text)
	}
	return string(text), err
}

func (c *container) log() string {
	if c.running == nil {
		return ""
	}
	log, err := c.running.Logs(context.Background())
	if err != nil {
		return ""
	}
	defer log.Close()
	text, _ := io.ReadAll(log)
	return string(text)
}

// stop ends the container at once and removes its data.
func (c *container) stop() {
	// A container that Docker does not know has ended already.
	_ = testcontainers.TerminateContainer(c.running, testcontainers.StopTimeout(0))
}
