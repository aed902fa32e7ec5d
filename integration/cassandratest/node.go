package cassandratest

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/template"
	"time"
)

// readyLimit is how long a node may take until it listens to clients, and then until it knows the
// others: several times what it takes on two loaded processors.
const readyLimit = 10 * time.Minute

// What a node logs just before clients can connect, and when its user exists.
const (
	logsReady = "Starting listening for CQL clients"
	logsUser  = "Created default superuser role"
)

//go:embed node
var nodeFiles embed.FS

// nodeConfig is the input for the files of a node, and for its command.
type nodeConfig struct {
	Options
	ClusterDir   string // contains Dir
	Dir          string
	Java, Jars   string
	HeapMB       int
	Address      string
	Announced    string
	Seeds        string
	InitialToken string
	JMXPort      string
	TLS          *TLSFiles
}

// Node is a process of a cluster. Its methods may be called from several goroutines.
type Node struct {
	config nodeConfig

	mu      sync.Mutex
	process *process // of the latest start; nil before the first
}

func newNode(config nodeConfig) (*Node, error) {
	t, err := template.New("cassandra.yaml.tmpl").
		// A directory with a space in its name needs quotes.
		Funcs(template.FuncMap{"path": func(elem ...string) string { return strconv.Quote(filepath.Join(elem...)) }}).
		ParseFS(nodeFiles, "node/cassandra.yaml.tmpl")
	if err != nil {
		return nil, err
	}
	if err := os.CopyFS(config.Dir, nodeFiles); err != nil {
		return nil, err
	}
	yaml, err := os.Create(filepath.Join(config.Dir, "cassandra.yaml"))
	if err != nil {
		return nil, err
	}
	return &Node{config: config}, errors.Join(t.Execute(yaml, config), yaml.Close())
}

// command returns a command that runs a class of Cassandra's.
func (n *Node) command(options []string, class ...string) []string {
	c := &n.config
	return slices.Concat([]string{
		c.Java,
		"@" + filepath.Join(c.Dir, "node", "java.args"),
		"-cp", filepath.Join(c.Jars, "*"),
		"-Dcassandra.config=file:" + filepath.Join(c.Dir, "cassandra.yaml"),
		"-Dlogback.configurationFile=" + filepath.Join(c.Dir, "node", "logback.xml"),
		"-Dcassandra.storagedir=" + c.Dir,
		"-Dcassandra.logdir=" + c.Dir,
		"-Duser.home=" + c.Dir,
		// A node lives for minutes, beside others and the tests: threads that collect garbage, and code that is compiled
		// twice to be fast in an hour, only take processors from them.
		"-XX:+UseSerialGC",
		"-XX:TieredStopAtLevel=1",
	}, options, class)
}

// start starts the process and waits until clients can connect.
func (n *Node) start(ctx context.Context) error {
	begin := len(n.Log())
	p, err := startProcess(n.config.ClusterDir, n.logFile(), n.command([]string{
		fmt.Sprintf("-Xms%dM", n.config.HeapMB),
		fmt.Sprintf("-Xmx%dM", n.config.HeapMB),
		"-XX:+ExitOnOutOfMemoryError",
		"-Dcassandra.jmx.local.port=" + n.config.JMXPort,
		// The waits of a start are for nodes that may be far away and may hold data.
		"-Dcassandra.skip_wait_for_gossip_to_settle=0",
		"-Dcassandra.ring_delay_ms=1000",
		"-Dcassandra.superuser_setup_delay_ms=0",
		"-Dcassandra.consistent.rangemovement=false",
		// Otherwise it closes standard output before it says that it is ready.
		"-Dcassandra-foreground=yes",
	}, "org.apache.cassandra.service.CassandraDaemon")...)
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.process = p
	n.mu.Unlock()
	err = await(ctx, 50*time.Millisecond, func() error {
		select {
		case <-p.ended:
			return fmt.Errorf("%w: it has ended: %s", errFinal, p.cmd.ProcessState)
		default:
		}
		if log := n.Log()[begin:]; !strings.Contains(log, logsReady) || n.config.Secure && begin == 0 && !strings.Contains(log, logsUser) {
			return errors.New("it is not ready")
		}
		// The node logs that it listens a little too early.
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", n.Addr())
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	if err != nil {
		p.kill()
		return fmt.Errorf("starting Cassandra at %s: %w; the end of its log:\n%s", n.Addr(), err, lastLines(n.Log()))
	}
	return nil
}

// errFinal ends a wait.
var errFinal = errors.New("it will not come")

// await calls check until it returns nil, or an error that is errFinal.
func await(ctx context.Context, every time.Duration, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		err := check()
		if err == nil || errors.Is(err, errFinal) {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

// Lines of nodetool: how one of status begins, with U for up, and N, L, J or M for normal, leaving,
// joining or moving; and a version of the schema in describecluster, with the nodes that have it.
var (
	nodeState     = regexp.MustCompile(`(?m)^(?:(UN)|U[LJM])  `)
	schemaVersion = regexp.MustCompile(`(?m)^\s*[0-9a-f-]{36}: \[(.*)\]$`)
)

// awaitUp waits until this node sees the given number of nodes as up, all of them in their places and
// with the same schema: nodes that start at once have made different ones.
func (n *Node) awaitUp(ctx context.Context, nodes int) error {
	return await(ctx, time.Second, func() error {
		out, err := n.Nodetool(ctx, "status")
		cluster, cerr := n.Nodetool(ctx, "describecluster")
		up, versions := nodeState.FindAllStringSubmatch(out, -1), schemaVersion.FindAllStringSubmatch(cluster, -1)
		if err != nil || cerr != nil || len(up) != nodes || slices.ContainsFunc(up, func(state []string) bool { return state[1] == "" }) ||
			len(versions) != 1 || strings.Count(versions[0][1], ",") != nodes-1 {
			return errors.Join(err, cerr, fmt.Errorf("%s waits for %d nodes; it sees:\n%s\n%s", n.Addr(), nodes, out, cluster))
		}
		return nil
	})
}

// Announced returns where clients connect, as host:port: Addr, unless a proxy is in front of it.
func (n *Node) Announced() string { return net.JoinHostPort(n.config.Announced, nativePort) }

// Addr returns where the node listens to clients, as host:port.
func (n *Node) Addr() string { return net.JoinHostPort(n.config.Address, nativePort) }

// runs reports whether the process runs.
func (n *Node) runs() bool {
	select {
	case <-n.current().ended:
		return false
	default:
		return true
	}
}

func (n *Node) current() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.process
}

// Kill ends the process as a power cut would, as far as possible for a process, and waits until it
// has ended.
func (n *Node) Kill() {
	if p := n.current(); p != nil {
		p.kill()
	}
}

// Restart kills the process if it runs, starts it again with its data on disk and waits until
// clients can connect. The other nodes see it as up a little later: see AwaitUp.
func (n *Node) Restart(ctx context.Context) error {
	n.Kill()
	return n.start(ctx)
}

// Pause freezes the process: connections stay open and nothing answers.
func (n *Node) Pause() error { return n.current().pause() }

// Resume continues the process after Pause.
func (n *Node) Resume() error { return n.current().resume() }

func (n *Node) logFile() string { return filepath.Join(n.config.Dir, "cassandra.log") }

// Log returns what the node has logged since its first start.
func (n *Node) Log() string {
	// Before the first start the file does not exist.
	log, _ := os.ReadFile(n.logFile())
	return string(log)
}

// Nodetool runs nodetool against the node, which takes about a second, and returns its output.
func (n *Node) Nodetool(ctx context.Context, args ...string) (string, error) {
	tool := n.command([]string{"-Xmx128M"}, append([]string{"org.apache.cassandra.tools.NodeTool", "-h", "127.0.0.1", "-p", n.config.JMXPort}, args...)...)
	cmd := exec.CommandContext(ctx, tool[0], tool[1:]...)
	var warnings strings.Builder
	cmd.Stderr = &warnings
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("nodetool %s: %w\n%s", strings.Join(args, " "), err, &warnings)
	}
	return string(out), nil
}
