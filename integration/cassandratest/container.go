package cassandratest

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/exec"
	tclog "github.com/testcontainers/testcontainers-go/log"
	"github.com/testcontainers/testcontainers-go/modules/cassandra"
	"github.com/testcontainers/testcontainers-go/wait"
)

// defaultImage is used unless QUERN_CASSANDRA_IMAGE names another. It has its own configuration,
// which is Cassandra's default.
const defaultImage = "cassandra:5.0"

// pullLimit is how long pulling an image may take.
const pullLimit = 5 * time.Minute

// container is a server in Docker.
type container struct {
	running *cassandra.CassandraContainer
	host    string // host:port, where its port is published
}

func image() string { return cmp.Or(os.Getenv(envImage), defaultImage) }

func startContainer(ctx context.Context, o Options) (*container, error) {
	image := image()
	if err := haveImage(ctx, image); err != nil {
		return nil, err
	}
	running, err := cassandra.Run(
		ctx, image,
		testcontainers.WithLogger(tclog.NewNoopLogger()),
		testcontainers.WithEnv(map[string]string{
			"MAX_HEAP_SIZE": fmt.Sprintf("%dM", o.HeapMB),
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
		err = fmt.Errorf("starting %s in Docker: %w; the end of its log:\n%s", image, err, lastLines(c.log(), 30))
		c.stop()
		return nil, err
	}
	return c, nil
}

// haveImage pulls an image unless it exists locally. A failure is an UnavailableError, since there
// is another way to get a server.
func haveImage(ctx context.Context, image string) error {
	docker, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return unavailable("no Docker daemon answers")
	}
	defer docker.Close() //nolint:errcheck // it holds idle connections and nothing else
	if _, err := docker.ImageInspect(ctx, image); err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, pullLimit)
	defer cancel()
	pulling, err := docker.ImagePull(ctx, image, client.ImagePullOptions{})
	if err == nil {
		err = pulling.Wait(ctx)
	}
	if err != nil {
		reason, _, _ := strings.Cut(err.Error(), "\n")
		return unavailable("Docker has no image %s and cannot pull it (%s)", image, reason)
	}
	return nil
}

// nodetool runs nodetool inside the container.
func (c *container) nodetool(ctx context.Context, args ...string) (string, error) {
	code, out, err := c.running.Exec(ctx, append([]string{"nodetool"}, args...), exec.Multiplexed())
	if err != nil {
		return "", fmt.Errorf("nodetool %s: %w", strings.Join(args, " "), err)
	}
	text, err := io.ReadAll(out)
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d\n%s", code, bothEnds(string(text), 10))
	}
	if err != nil {
		return string(text), fmt.Errorf("nodetool %s: %w", strings.Join(args, " "), err)
	}
	return string(text), nil
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
