// Package cassandratest gives tests and benchmarks a real Apache Cassandra: a server, or a cluster
// whose nodes can be killed, paused and started again.
//
// It gets a server in the first of these ways that is available:
//
//  1. the hosts named in QUERN_TEST_CASSANDRA_HOSTS;
//  2. a container, if a Docker daemon answers and has or can pull the image cassandra:5.0, or the
//     image that QUERN_CASSANDRA_IMAGE names;
//  3. processes on loopback addresses, if Java 17 and Maven are installed. Maven fetches the jars
//     that ../pom.xml names, once. QUERN_CASSANDRA_JARS names another directory for them.
//
// QUERN_TEST_CASSANDRA=docker or =jvm insists on one way. A cluster, and a server with options that
// only a node of our own has, are always processes. If there is no way, an error says what to
// install. Only -short, which `make check` passes, leaves these tests out.
package cassandratest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
)

// The environment variables that choose the Cassandra.
const (
	envHosts = "QUERN_TEST_CASSANDRA_HOSTS"
	envWay   = "QUERN_TEST_CASSANDRA"
	envImage = "QUERN_CASSANDRA_IMAGE"
	envJars  = "QUERN_CASSANDRA_JARS"
)

// nativePort is where clients connect, unless the hosts name another port.
const nativePort = "9042"

// CommitlogSync says when a node acknowledges a write.
type CommitlogSync string

const (
	// CommitlogPeriodic acknowledges before the write is on disk. A killed node forgets the last
	// few seconds. So this is for tests in which no node is killed, or in which others have the
	// data.
	CommitlogPeriodic CommitlogSync = "periodic"
	// CommitlogBatch acknowledges once the write is on disk.
	CommitlogBatch CommitlogSync = "batch"
)

// TLS says whether clients connect over TLS.
type TLS string

const (
	// TLSOff: clients connect without TLS.
	TLSOff TLS = ""
	// TLSServer: clients use TLS and check the server's certificate.
	TLSServer TLS = "server"
	// TLSMutual: in addition the server checks the client's certificate.
	TLSMutual TLS = "mutual"
)

// Options are the options of a server, or of each node of a cluster.
type Options struct {
	// HeapMB is the size of the Java heap in MiB. The default is 1024 for one node, and 640 for
	// each node of a larger cluster.
	HeapMB int
	// Authentication requires clients to give a name and a password. There is one user, with
	// Username and Password, who may do anything. The default is false.
	Authentication bool
	// TLS applies to clients' connections. Server.TLSFiles and Cluster.TLSFiles return the
	// certificates. The default is TLSOff.
	TLS TLS
	// CommitlogSync is when a write counts as done. The default is CommitlogPeriodic, as in
	// Cassandra.
	CommitlogSync CommitlogSync
	// TombstoneFailureThreshold is the maximum number of tombstones in a read. The default is 0:
	// Cassandra's own, 100,000.
	TombstoneFailureThreshold int
	// Proxied makes each node announce to clients an address that is not its own. The test's proxy
	// must listen there and lead to the node: see Node.Announced and Node.Addr. The default is
	// false.
	Proxied bool
	// OnDisk puts the files of nodes on disk, as a benchmark needs. The default is false: they are in
	// memory if there is room, where they outlive the processes as on disk.
	OnDisk bool
	// Logf receives a line for each way to a server that was not available, and if starts are slower
	// than they could be. The default writes to standard error.
	Logf func(format string, args ...any)
}

// The user of a server with Options.Authentication.
const (
	Username = "cassandra"
	Password = "cassandra"
)

// withDefaults sets the defaults for a cluster of n nodes.
func (o Options) withDefaults(n int) Options {
	if o.HeapMB == 0 {
		o.HeapMB = 1024
		if n > 1 {
			o.HeapMB = 640
		}
	}
	if o.CommitlogSync == "" {
		o.CommitlogSync = CommitlogPeriodic
	}
	if o.Logf == nil {
		o.Logf = func(format string, args ...any) { fmt.Fprintf(os.Stderr, "cassandratest: "+format+"\n", args...) }
	}
	return o
}

// ownNode reports whether the options need a node of our own.
func (o Options) ownNode() bool {
	return o.Authentication || o.TLS != TLSOff || o.CommitlogSync == CommitlogBatch || o.Proxied || o.TombstoneFailureThreshold != 0
}

// Way is how a server was obtained.
type Way string

const (
	// WayHosts: the server was already running; QUERN_TEST_CASSANDRA_HOSTS names it.
	WayHosts Way = "hosts"
	// WayDocker: the server is a container.
	WayDocker Way = "docker"
	// WayJVM: the server is a process on this machine.
	WayJVM Way = "jvm"
)

// UnavailableError says that there is no way to get a Cassandra.
type UnavailableError struct {
	// Why says what is missing for each way that was tried.
	Why []string
}

// Error returns a sentence that says what to install.
func (e *UnavailableError) Error() string {
	return "no Cassandra to test with, since " + strings.Join(e.Why, " and ") +
		": install Docker, or Java 17 and Maven, or name one that runs in " + envHosts
}

func unavailable(format string, args ...any) error {
	return &UnavailableError{Why: []string{fmt.Sprintf(format, args...)}}
}

// errWay says that a server of this Way does not support the call.
var errWay = errors.New("not with a Cassandra that is had this way")

// Server is a Cassandra to test with. It runs until Stop, or until the process that started it ends
// in any way.
type Server struct {
	way       Way
	hosts     []string
	cluster   *Cluster   // of one node, with WayJVM
	container *container // with WayDocker
}

// Start returns a server. ctx covers only the start.
func Start(ctx context.Context, o Options) (*Server, error) {
	ways, err := waysFor(o)
	if err != nil {
		return nil, err
	}
	o = o.withDefaults(1)
	missing := &UnavailableError{}
	for _, way := range ways {
		s, err := startWay(ctx, way, o)
		var here *UnavailableError
		if !errors.As(err, &here) {
			return s, err
		}
		missing.Why = append(missing.Why, here.Why...)
		if way == WayDocker && len(ways) > 1 {
			o.Logf("not with Docker: %s", strings.Join(here.Why, " and "))
		}
	}
	return nil, missing
}

// Available returns nil if Start will find a way to a server with the default options, and
// otherwise an UnavailableError. It starts nothing, but pulls an image that is missing.
func Available(ctx context.Context) error {
	ways, err := waysFor(Options{})
	if err != nil {
		return err
	}
	missing := &UnavailableError{}
	for _, way := range ways {
		err := lacks(ctx, way)
		var here *UnavailableError
		if !errors.As(err, &here) {
			return err
		}
		missing.Why = append(missing.Why, here.Why...)
	}
	return missing
}

// HasProcesses reports whether nodes can be processes of this machine.
func HasProcesses(ctx context.Context) bool { return lacks(ctx, WayJVM) == nil }

// lacks returns an UnavailableError if a way is not open here.
func lacks(ctx context.Context, way Way) error {
	switch way {
	case WayHosts:
		return nil
	case WayDocker:
		return haveImage(ctx, image())
	default:
		_, err := haveJava(ctx)
		return err
	}
}

// waysFor returns the ways to try, in order.
func waysFor(o Options) ([]Way, error) {
	forced := Way(os.Getenv(envWay))
	switch forced {
	case "", WayDocker, WayJVM:
	default:
		return nil, fmt.Errorf("%s=%s: want docker or jvm", envWay, forced)
	}
	switch {
	case o.ownNode():
		return []Way{WayJVM}, nil
	case os.Getenv(envHosts) != "":
		return []Way{WayHosts}, nil
	case forced != "":
		return []Way{forced}, nil
	}
	return []Way{WayDocker, WayJVM}, nil
}

func startWay(ctx context.Context, way Way, o Options) (*Server, error) {
	switch way {
	case WayHosts:
		return &Server{way: WayHosts, hosts: splitHosts(os.Getenv(envHosts))}, nil
	case WayDocker:
		c, err := startContainer(ctx, o)
		if err != nil {
			return nil, err
		}
		return &Server{way: WayDocker, hosts: []string{c.host}, container: c}, nil
	default:
		c, err := StartCluster(ctx, 1, o)
		if err != nil {
			return nil, err
		}
		return &Server{way: WayJVM, hosts: c.Hosts(), cluster: c}, nil
	}
}

// splitHosts reads host[:port],…
func splitHosts(list string) []string {
	var hosts []string
	for host := range strings.SplitSeq(list, ",") {
		host = strings.TrimSpace(host)
		if host == "" {
			continue
		}
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(strings.Trim(host, "[]"), nativePort)
		}
		hosts = append(hosts, host)
	}
	return hosts
}

// Way returns how the server was obtained.
func (s *Server) Way() Way { return s.way }

// Hosts returns where clients connect, each as host:port. Behind a container's published port a
// client must not look for other hosts: set gocql's DisableInitialHostLookup.
func (s *Server) Hosts() []string { return s.hosts }

// TLSFiles returns the certificates of a server with Options.TLS, or nil.
func (s *Server) TLSFiles() *TLSFiles {
	if s.cluster == nil {
		return nil
	}
	return s.cluster.TLSFiles()
}

// Nodetool runs nodetool against the server and returns its output. With WayHosts it returns
// errWay.
func (s *Server) Nodetool(ctx context.Context, args ...string) (string, error) {
	switch {
	case s.cluster != nil:
		return s.cluster.Node(0).Nodetool(ctx, args...)
	case s.container != nil:
		return s.container.nodetool(ctx, args...)
	}
	return "", fmt.Errorf("nodetool: %w: %s", errWay, s.way)
}

// Log returns what the server has logged so far. With WayHosts it is empty.
func (s *Server) Log() string {
	switch {
	case s.cluster != nil:
		return s.cluster.Node(0).Log()
	case s.container != nil:
		return s.container.log()
	}
	return ""
}

// Stop ends the server and removes its data. A server of WayHosts keeps running.
func (s *Server) Stop() {
	if s.cluster != nil {
		s.cluster.Stop()
	}
	if s.container != nil {
		s.container.stop()
	}
}
