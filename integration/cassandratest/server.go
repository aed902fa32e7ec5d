// Package cassandratest gives tests and benchmarks a real Apache Cassandra: a server, or a cluster
// whose nodes can be killed, paused and started again.
//
// A server is a container, if a Docker daemon runs the image cassandra:5.0, or the image that
// QUERN_CASSANDRA_IMAGE names. Otherwise it is a process on a loopback address, which takes Java 17
// and Maven: Maven fetches the jars that pom.xml names, once. QUERN_CASSANDRA_JARS names another
// directory for them. QUERN_TEST_CASSANDRA=docker or =jvm insists on one way. A cluster, and a
// server with options that only a node of our own has, are always processes. Only -short, which
// `make check` passes, leaves these tests out.
package cassandratest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
)

// nativePort is where clients connect.
const nativePort = "9042"

// Options are the options of a server, or of each node of a cluster.
type Options struct {
	// Secure requires a name and a password, and TLS with a certificate on both sides: see
	// Username, Password and TLSFiles. The default is false.
	Secure bool
	// Durable acknowledges a write once it is on disk. The default is false, as in Cassandra: a
	// killed node forgets the last few seconds.
	Durable bool
	// Proxied makes each node announce to clients an address that is not its own. The test's proxy
	// must listen there and lead to the node: see Node.Announced and Node.Addr. The default is
	// false.
	Proxied bool
	// OnDisk puts the files of nodes on disk, as a benchmark needs. The default is false: they are in
	// memory if there is room, where they outlive the processes as on disk.
	OnDisk bool
	// Logf receives a line if there is no container. The default writes to standard error.
	Logf func(format string, args ...any)
}

// The user of a server with Options.Secure.
const (
	Username = "cassandra"
	Password = "cassandra"
)

// Way is how a server was obtained.
type Way string

const (
	// WayDocker: the server is a container.
	WayDocker Way = "docker"
	// WayJVM: the server is a process on this machine.
	WayJVM Way = "jvm"
)

// ways returns the ways to try, in order.
func ways(o Options) []Way {
	switch forced := Way(os.Getenv("QUERN_TEST_CASSANDRA")); {
	case o.Secure || o.Durable || o.Proxied:
		return []Way{WayJVM}
	case forced != "":
		return []Way{forced}
	}
	return []Way{WayDocker, WayJVM}
}

// Available reports whether Start may find a way to a server with the default options.
func Available(ctx context.Context) bool {
	return slices.ContainsFunc(ways(Options{}), func(way Way) bool {
		if way == WayDocker {
			return haveDocker(ctx) == nil
		}
		return HasProcesses(ctx)
	})
}

// HasProcesses reports whether nodes can be processes of this machine.
func HasProcesses(ctx context.Context) bool {
	_, err := haveJava(ctx)
	return err == nil
}

// Server is a Cassandra to test with. It runs until Stop, or until the process that started it ends
// in any way.
type Server struct {
	cluster   *Cluster   // of one node, with WayJVM
	container *container // with WayDocker
}

// Start returns a server. ctx covers only the start.
func Start(ctx context.Context, o Options) (*Server, error) {
	if o.Logf == nil {
		o.Logf = func(format string, args ...any) { fmt.Fprintf(os.Stderr, "cassandratest: "+format+"\n", args...) }
	}
	var errs []error
	for _, way := range ways(o) {
		var s Server
		var err error
		if way == WayDocker {
			s.container, err = startContainer(ctx)
		} else {
			s.cluster, err = StartCluster(ctx, 1, o)
		}
		if err == nil {
			return &s, nil
		}
		o.Logf("not with %s: %s", way, err)
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no Cassandra to test with: install Docker, or Java 17 and Maven: %w", errors.Join(errs...))
}

// Way returns how the server was obtained.
func (s *Server) Way() Way {
	if s.container != nil {
		return WayDocker
	}
	return WayJVM
}

// Hosts returns where clients connect, each as host:port. Behind a container's published port a
// client must not look for other hosts: set gocql's DisableInitialHostLookup.
func (s *Server) Hosts() []string {
	if s.container != nil {
		return []string{s.container.host}
	}
	return s.cluster.Hosts()
}

// TLSFiles returns the certificates of a server with Options.Secure.
func (s *Server) TLSFiles() *TLSFiles { return s.cluster.tls }

// Nodetool runs nodetool against the server and returns its output.
func (s *Server) Nodetool(ctx context.Context, args ...string) (string, error) {
	if s.container != nil {
		return s.container.nodetool(ctx, args...)
	}
	return s.cluster.Node(0).Nodetool(ctx, args...)
}

// Log returns what the server has logged so far.
func (s *Server) Log() string {
	if s.container != nil {
		return s.container.log()
	}
	return s.cluster.Node(0).Log()
}

// Stop ends the server and removes its data.
func (s *Server) Stop() {
	if s.container != nil {
		s.container.stop()
		return
	}
	s.cluster.Stop()
}
