package cassandratest

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
)

// Every node listens at the usual ports of its own address.
const storagePort = "7000"

// Cluster is a cluster of processes on this machine. Data is in files, which outlive the processes,
// and clients connect as in production. The nodes share only the machine's clock and file system.
type Cluster struct {
	dir   string
	nodes []*Node
	tls   *TLSFiles
}

// StartCluster starts n nodes at loopback addresses and waits until each sees all as up. Tokens are
// spread evenly, so with a replication factor of n each node has all data. ctx covers only the
// start.
func StartCluster(ctx context.Context, n int, o Options) (*Cluster, error) {
	java, err := haveJava(ctx)
	if err != nil {
		return nil, err
	}
	jars, err := jars(ctx)
	if err != nil {
		return nil, err
	}
	parent := os.TempDir()
	if !o.OnDisk {
		parent = dataDir(n)
	}
	dir, err := os.MkdirTemp(parent, "quern-cassandra-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir}
	if err := c.start(ctx, n, nodeConfig{Options: o, ClusterDir: dir, Java: java, Jars: jars, HeapMB: 1024}); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// start starts n nodes whose configurations have this in common.
func (c *Cluster) start(ctx context.Context, n int, common nodeConfig) error {
	free, err := freeAddresses(ctx, 2*n)
	if err != nil {
		return err
	}
	addresses, announced := free[:n], free[:n]
	if common.Proxied {
		announced = free[n:]
	}
	if common.Secure {
		if c.tls, err = makeTLS(c.dir, addresses); err != nil {
			return err
		}
	}
	common.Seeds, common.TLS = strings.Join(addresses, ","), c.tls
	if n > 1 {
		common.HeapMB = 640
	}
	for i, address := range addresses {
		config := common
		config.Dir = filepath.Join(c.dir, fmt.Sprintf("node%d", i))
		config.Address, config.Announced = address, announced[i]
		config.InitialToken = initialToken(i, n)
		if config.JMXPort, err = freeJMXPort(ctx); err != nil {
			return err
		}
		node, err := newNode(config)
		if err != nil {
			return err
		}
		c.nodes = append(c.nodes, node)
	}
	group, starting := errgroup.WithContext(ctx)
	for _, node := range c.nodes {
		group.Go(func() error { return node.start(starting) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return c.AwaitUp(ctx)
}

// AwaitUp waits until every node that runs sees these nodes as up, and none of them joins, leaves or
// moves, for example after a Restart. As long as another node moves in a node's eyes, that node
// refuses to move. It hears of the end of a move by gossip, seconds after the mover.
func (c *Cluster) AwaitUp(ctx context.Context) error {
	if len(c.nodes) == 1 {
		return nil
	}
	var running []*Node
	for _, node := range c.nodes {
		if node.runs() {
			running = append(running, node)
		}
	}
	// One after the other: most of the wait is over when the first sees all, and nodetool takes as much of the
	// processors as a node that starts.
	for _, node := range running {
		if err := node.awaitUp(ctx, len(running)); err != nil {
			return err
		}
	}
	return nil
}

// Node returns the i-th node, from 0.
func (c *Cluster) Node(i int) *Node { return c.nodes[i] }

// Hosts returns where clients connect, each as host:port.
func (c *Cluster) Hosts() []string {
	var hosts []string
	for _, node := range c.nodes {
		hosts = append(hosts, node.Announced())
	}
	return hosts
}

// Stop ends all nodes and removes their data.
func (c *Cluster) Stop() {
	for _, node := range c.nodes {
		node.Kill()
	}
	// The system cleans up what is left in the directory of temporary files.
	_ = os.RemoveAll(c.dir)
}

// initialToken returns the i-th of n tokens spread evenly over the 64 bits of the ring.
func initialToken(i, n int) string {
	token := new(big.Int).Lsh(big.NewInt(int64(i)), 64)
	token.Div(token, big.NewInt(int64(n)))
	return token.Sub(token, new(big.Int).Lsh(big.NewInt(1), 63)).String()
}

// freeAddresses returns loopback addresses at which no process listens. There are sixteen million,
// so tests that choose at the same time hardly ever collide.
func freeAddresses(ctx context.Context, n int) ([]string, error) {
	var addresses []string
	var last error
	for range 100 {
		if len(addresses) == n {
			return addresses, nil
		}
		address := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
		if last = errors.Join(tryListen(ctx, address, storagePort), tryListen(ctx, address, nativePort)); last == nil {
			addresses = append(addresses, address)
		}
	}
	return nil, fmt.Errorf("no free loopback address: %w", last)
}

// freeJMXPort returns a free port of 127.0.0.1, where every node has its JMX. It is below the ports
// that the kernel assigns to connections, so no connection can take it before the node does.
func freeJMXPort(ctx context.Context) (string, error) {
	var last error
	for range 100 {
		port := strconv.Itoa(15000 + rand.IntN(15000))
		if last = tryListen(ctx, "127.0.0.1", port); last == nil {
			return port, nil
		}
	}
	return "", fmt.Errorf("no free port: %w", last)
}

func tryListen(ctx context.Context, address, port string) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(address, port))
	if err != nil {
		return err
	}
	return l.Close()
}
