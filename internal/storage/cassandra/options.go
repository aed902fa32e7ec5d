package cassandra

import (
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Options say which cluster to connect to, and how.
type Options struct {
	// Hosts are the addresses of the first nodes to ask, "host" or "host:port". The other nodes are
	// found through them. Hosts must be set.
	Hosts []string
	// Keyspace holds all tables. The default is quern.
	Keyspace string
	// LocalDC is the data centre that is read from and written to. The default is the
	// cluster's only one; with several it must be set.
	LocalDC string
	// Consistency is that of reads and writes, by its CQL name. The default is LOCAL_QUORUM.
	Consistency string
	// Username and Password log in, where the cluster requires it.
	Username, Password string
	// TLS encrypts the connections.
	TLS TLS
	// Timeout is how long the answer to one request may take. The default is 5s.
	Timeout time.Duration
	// MaxInFlight bounds the requests that wait for an answer at once. The bound drops while the
	// servers are overloaded. The default is 128.
	MaxInFlight int
	// Applier names who applies the schema. Attempts under one name share its lock, so an attempt
	// whose answer was lost does not block the next. The default is a new name for each call.
	Applier string
	// DirectHosts connects to Hosts only. It is for nodes that clients reach under other addresses
	// than the nodes know themselves by, as behind published ports. The default is false.
	DirectHosts bool

	// Settings are recorded when the schema is applied, and checked when the store is opened. A
	// zero field takes the recorded value; a new store gets the defaults 1h,6h,24h, groups of 128,
	// 16 index partitions and blocks of 128.
	Settings storage.Settings
	// Policy returns the policy that the first process to open a store records, if the store has
	// none. The default records nothing; a store without a policy keeps everything for ever and
	// does not compare clocks.
	Policy func(metric.Ladder) (storage.Policy, error)
	// Clock gives the order of writes. The default is the system's.
	Clock clock.Clock
	// Logger takes what an operator should know. The default discards.
	Logger *slog.Logger
}

// TLS is how connections are encrypted.
type TLS struct {
	// Enabled encrypts. Any of the files implies it. The default is false.
	Enabled bool
	// CAFile, CertFile and KeyFile are PEM files: the authorities to trust, and the certificate to
	// show to servers that ask for one. The default is to trust what this system trusts, and to
	// show nothing.
	CAFile, CertFile, KeyFile string
}

func (t *TLS) enabled() bool {
	return t.Enabled || t.CAFile != "" || t.CertFile != "" || t.KeyFile != ""
}

// weak are the consistencies at which a read may miss what was written.
var weak = []string{"ONE", "TWO", "LOCAL_ONE"}

// validName matches the keyspace names that Cassandra keeps unchanged: it would fold capitals.
var validName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,47}$`)

func (o *Options) validate() error {
	if !validName.MatchString(o.Keyspace) {
		return fmt.Errorf("--keyspace %q: must be lower-case letters, digits and underscores, at most 48, beginning with a letter", o.Keyspace)
	}
	return nil
}

func (o *Options) ensureDefaults() {
	if o.Keyspace == "" {
		o.Keyspace = "quern"
	}
	if o.Consistency == "" {
		o.Consistency = "LOCAL_QUORUM"
	}
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Second
	}
	if o.MaxInFlight == 0 {
		o.MaxInFlight = 128
	}
	if o.Clock == nil {
		o.Clock = clock.System{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}
