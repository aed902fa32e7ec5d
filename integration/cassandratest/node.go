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
	"strconv"
	"strings"
	"sync"
	"text/template"
	"time"
)

// readyLimit is how long a node may take until it listens to clients: several times what it takes
// on two loaded processors.
const readyLimit = 10 * time.Minute

// poll is the interval between two checks for an awaited event.
const poll = 50 * time.Millisecond

// nodetoolPoll is that interval where a check takes nodetool.
const nodetoolPoll = time.Second

// What a node logs just before clients can connect, and when its user exists.
const (
	logsReady = "Starting listening for CQL clients"
	logsUser  = "Created default superuser role"
)

// The files of a node within its directory.
const (
	logName        = "cassandra.log"
	yamlName       = "cassandra.yaml"
	logbackName    = "logback.xml"
	javaArgsName   = "java.args"
	pathsArgsName  = "paths.args"
	daemonArgsName = "daemon.args"
)

//go:embed node
var nodeFiles embed.FS

// nodeConfig is the input for the files of a node.
type nodeConfig struct {
	Options
	Nodes        int
	ClusterDir   string // contains Dir
	Dir          string
	Jars         string
	Classes      string // the archive of classes; "" for none
	Archives     bool   // the node makes that archive
	Address      string
	Announced    string
	Seeds        string
	InitialToken string
	StoragePort  string
	NativePort   string
	JMXPort      string
	TLS          *nodeTLS
}

// Node is a process of a cluster. Its methods may be called from several goroutines.
type Node struct {
	config nodeConfig
	java   string

	mu      sync.Mutex
	process *process // of the latest start; nil before the first
}

func newNode(config nodeConfig, java string) (*Node, error) {
	if err := os.Mkdir(config.Dir, 0o755); err != nil {
		return nil, err
	}
	for _, name := range []string{yamlName, logbackName, javaArgsName, pathsArgsName, daemonArgsName} {
		text, err := render(name, config)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(config.Dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	return &Node{config: config, java: java}, nil
}

// render returns a file of a node, from a template or unchanged. YAML and java's argument files
// share a form of quotes, which a directory with a space in its name needs.
func render(name string, config nodeConfig) (string, error) {
	if text, err := nodeFiles.ReadFile("node/" + name); err == nil {
		return string(text), nil
	}
	path := func(elem ...string) string { return strconv.Quote(filepath.Join(elem...)) }
	t, err := template.New(name+".tmpl").
		Funcs(template.FuncMap{"path": path}).
		Option("missingkey=error").
		ParseFS(nodeFiles, "node/"+name+".tmpl")
	if err != nil {
		return "", err
	}
	var text strings.Builder
	err = t.Execute(&text, config)
	return text.String(), err
}

// start starts the process and waits until clients can connect.
func (n *Node) start(ctx context.Context) error {
	logFile := filepath.Join(n.config.Dir, logName)
	begin := len(n.Log())
	p, err := startProcess(
		n.config.ClusterDir, logFile, n.java,
		"@"+filepath.Join(n.config.Dir, javaArgsName),
		"@"+filepath.Join(n.config.Dir, pathsArgsName),
		"@"+filepath.Join(n.config.Dir, daemonArgsName),
		"org.apache.cassandra.service.CassandraDaemon",
	)
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.process = p
	n.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for !n.ready(n.Log()[begin:], begin == 0) || !n.listens(ctx) {
		select {
		case <-ticker.C:
			continue
		case <-p.ended:
			err = fmt.Errorf("it has ended: %s", p.state())
		case <-ctx.Done():
			p.kill()
			err = ctx.Err()
		}
		return fmt.Errorf("starting Cassandra at %s: %w; the end of its log:\n%s", n.Addr(), err, lastLines(n.Log(), 30))
	}
	return nil
}

// ready reports whether the log shows that the node can be used.
func (n *Node) ready(log string, first bool) bool {
	if !strings.Contains(log, logsReady) {
		return false
	}
	// In a larger cluster only one node creates the user, and its log may not be this one. The
	// client retries anyway.
	return !n.config.Authentication || n.config.Nodes > 1 || !first || strings.Contains(log, logsUser)
}

// listens reports whether clients can connect. The node logs that a little too early.
func (n *Node) listens(ctx context.Context) bool {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", n.Addr())
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// awaitUp waits until this node sees the given number of nodes as up, and knows their tables: before
// that it refuses requests about them.
func (n *Node) awaitUp(ctx context.Context, nodes int) error {
	return n.await(ctx, fmt.Sprintf("%d nodes up", nodes), func(status string) bool { return agreed(status, nodes) }, "describecluster")
}

// await waits until nodetool says what is awaited.
func (n *Node) await(ctx context.Context, what string, says func(out string) bool, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, upLimit)
	defer cancel()
	ticker := time.NewTicker(nodetoolPoll)
	defer ticker.Stop()
	for {
		out, err := n.Nodetool(ctx, args...)
		if err == nil && says(out) {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("%s waits for %s: %w; it sees:\n%s", n.Addr(), what, errors.Join(ctx.Err(), err), out)
		}
	}
}

// Lines of nodetool describecluster: the number of nodes that are up, and a version of the schema
// with the nodes that have it. What it says of unreachable nodes does not match.
var (
	liveNodes     = regexp.MustCompile(`(?m)^\s*Live: (\d+)$`)
	schemaVersion = regexp.MustCompile(`(?m)^\s*[0-9a-f-]{36}: \[(.*)\]$`)
)

// agreed reports whether exactly this number of nodes is up, all with the same schema.
func agreed(describecluster string, nodes int) bool {
	live := liveNodes.FindStringSubmatch(describecluster)
	versions := schemaVersion.FindAllStringSubmatch(describecluster, -1)
	return len(live) == 2 && live[1] == strconv.Itoa(nodes) && len(versions) == 1 && strings.Count(versions[0][1], ",") == nodes-1
}

// Announced returns where clients connect, as host:port: Addr, unless a proxy is in front of it.
func (n *Node) Announced() string { return net.JoinHostPort(n.config.Announced, n.config.NativePort) }

// Addr returns where the node listens to clients, as host:port.
func (n *Node) Addr() string { return net.JoinHostPort(n.config.Address, n.config.NativePort) }

// runs reports whether the process runs.
func (n *Node) runs() bool {
	p := n.current()
	if p == nil {
		return false
	}
	select {
	case <-p.ended:
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

// end ends the process in order, and waits until it has ended.
func (n *Node) end(ctx context.Context) error {
	p := n.current()
	if err := p.end(); err != nil {
		return err
	}
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the end of Cassandra at %s: %w", n.Addr(), ctx.Err())
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

// Log returns what the node has logged since its first start.
func (n *Node) Log() string {
	// Before the first start the file does not exist.
	log, _ := os.ReadFile(filepath.Join(n.config.Dir, logName))
	return string(log)
}

// Nodetool runs nodetool against the node, which takes about a second, and returns its output.
func (n *Node) Nodetool(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, n.java, append([]string{
		"@" + filepath.Join(n.config.Dir, javaArgsName),
		"@" + filepath.Join(n.config.Dir, pathsArgsName),
		// Optimised for a short run.
		"-Xmx128M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"org.apache.cassandra.tools.NodeTool", "-h", "127.0.0.1", "-p", n.config.JMXPort,
	}, args...)...)
	var warnings strings.Builder
	cmd.Stderr = &warnings
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("nodetool %s: %w\n%s", strings.Join(args, " "), err, bothEnds(warnings.String(), 10))
	}
	return string(out), nil
}

// Settled waits until the node says of every other node that it is up and neither joins, leaves nor
// moves. As long as another node moves in this node's eyes, it refuses to move itself, since data
// may be on its way to it. It hears of the end of a move by gossip, seconds after the mover.
func (n *Node) Settled(ctx context.Context) error {
	return n.await(ctx, "all nodes up and normal", func(status string) bool { return settled(status, n.config.Nodes) }, "status")
}

// nodeState is how a line of nodetool status begins: with U or D for up or down, and N, L, J or M
// for normal, leaving, joining or moving.
var nodeState = regexp.MustCompile(`(?m)^([UD][NLJM])  `)

// settled reports whether exactly this number of nodes is there, each up and normal.
func settled(status string, nodes int) bool {
	states := nodeState.FindAllStringSubmatch(status, -1)
	for _, state := range states {
		if state[1] != "UN" {
			return false
		}
	}
	return len(states) == nodes
}
