package cassandra

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/schema"
)

const (
	cqlReplication = `SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?`

	settingLock   = "schema_lock"
	cqlTakeLock   = `INSERT INTO settings (name, value) VALUES ('` + settingLock + `', ?) IF NOT EXISTS USING TTL ?`
	cqlKeepLock   = `UPDATE settings USING TTL ? SET value = ? WHERE name = '` + settingLock + `' IF value = ?`
	cqlReturnLock = `DELETE FROM settings WHERE name = '` + settingLock + `' IF value = ?`
)

const (
	// lockTTL is how long others wait for the lock of an applier that has died. The applier renews
	// its lock before each step. A step takes at most a time-out and two waits for agreement.
	lockTTL  = 5 * time.Minute
	lockPoll = time.Second
	// ddlTimeout is longer than other time-outs: all nodes take part in a change of the schema.
	ddlTimeout = 30 * time.Second
)

// ApplySchema makes the keyspace and the tables, or migrates them to the version that this program
// knows, and records the settings of a new store. What exists already stays, so it may be repeated.
// One applier works at a time; others wait for it. progress is called before each step, and at the
// end.
//
// The replication is written as in "dc1=3,dc2=2". "" means 3 copies in the local data centre, or as
// many as it has nodes. It applies to a new keyspace only.
func ApplySchema(ctx context.Context, opts Options, replication string, progress func(done, total int, step string)) error {
	opts.ensureDefaults()
	opts.Timeout = max(opts.Timeout, ddlTimeout)
	if err := opts.validate(); err != nil {
		return err
	}
	migrations, err := schema.Migrations()
	if err != nil {
		return err
	}
	a := &applier{opts: &opts, migrations: migrations, progress: progress, owner: cmp.Or(opts.Applier, strconv.FormatUint(rand.Uint64(), 16))}
	if err := a.makeKeyspace(ctx, replication); err != nil {
		return err
	}
	if a.session, a.cluster, err = connect(ctx, &opts, opts.Keyspace); err != nil {
		return err
	}
	defer a.session.close()
	return a.apply(ctx)
}

type applier struct {
	opts       *Options
	migrations []schema.Migration
	progress   func(done, total int, step string)
	session    *driver
	cluster    cluster
	owner      string
}

func (a *applier) makeKeyspace(ctx context.Context, replication string) error {
	d, c, err := connect(ctx, a.opts, "")
	if err != nil {
		return err
	}
	defer d.close()
	present, err := keyspaceCopies(ctx, d, a.opts.Keyspace)
	if err != nil {
		return err
	}
	if present == nil && replication == "" {
		if err := checkWhole(a.opts, &c); err != nil {
			return err
		}
	}
	copies, err := copiesByDC(replication, &c)
	if err != nil {
		return err
	}
	if present != nil {
		if replication != "" && !maps.Equal(present, copies) {
			return refuse("keyspace %q already has the replication %s: to change it, use ALTER KEYSPACE and repair every node, and leave --replication out",
				a.opts.Keyspace, formatCopies(present, "%s=%s"))
		}
		return d.agree(ctx) // another applier may have made it just now
	}
	a.progress(0, 1, fmt.Sprintf("keyspace %s with the copies %s", a.opts.Keyspace, formatCopies(copies, "%s=%s")))
	if err := ddl(ctx, d, fmt.Sprintf(`CREATE KEYSPACE IF NOT EXISTS %s WITH replication = {'class': 'NetworkTopologyStrategy', %s}`,
		a.opts.Keyspace, formatCopies(copies, "'%s': %s"))); err != nil {
		return fmt.Errorf("create keyspace %s: %w", a.opts.Keyspace, err)
	}
	return nil
}

// checkWhole refuses a cluster of which a node does not know the data centre of each node, and as many nodes as
// --cassandra-hosts names. A node that has just started may not know all others yet; the default number of copies,
// which stays, would be too small.
func checkWhole(o *Options, c *cluster) error {
	if all := max(c.nodes, len(o.Hosts)); c.known() < all {
		return refuse("the number of copies cannot follow from the number of nodes: a node knows %d of %d: "+
			"if the cluster has just started, try again when `nodetool status` shows all nodes; otherwise choose the copies, as with --replication %s=%d",
			c.known(), all, c.localDC, min(3, all))
	}
	return nil
}

// copiesByDC parses a replication into the form that Cassandra keeps, by data centre.
func copiesByDC(text string, c *cluster) (map[string]string, error) {
	if text == "" {
		return map[string]string{c.localDC: strconv.Itoa(min(3, c.byDC[c.localDC]))}, nil
	}
	out := make(map[string]string)
	for part := range strings.SplitSeq(text, ",") {
		dc, n, ok := strings.Cut(strings.TrimSpace(part), "=")
		copies, err := strconv.Atoi(n)
		if !ok || err != nil || copies < 1 {
			return nil, fmt.Errorf("--replication %s: must be like dc1=3,dc2=3", text)
		}
		if c.byDC[dc] == 0 {
			return nil, fmt.Errorf("--replication %s: the cluster has no data centre %q, only %s", text, dc, c.dataCentres())
		}
		out[dc] = n
	}
	if out[c.localDC] == "" {
		return nil, fmt.Errorf("--replication %s: it leaves out the data centre %s that this process is in: see --local-dc", text, c.localDC)
	}
	return out, nil
}

func formatCopies(copies map[string]string, form string) string {
	var out []string
	for _, dc := range slices.Sorted(maps.Keys(copies)) {
		out = append(out, fmt.Sprintf(form, dc, copies[dc]))
	}
	return strings.Join(out, ", ")
}

// keyspaceCopies returns the replication of an existing keyspace, nil if there is none.
func keyspaceCopies(ctx context.Context, s session, keyspace string) (map[string]string, error) {
	found, err := all[struct {
		Replication map[string]string `db:"replication"`
	}](ctx, s, stmt(cqlReplication, keyspace))
	if err != nil || len(found) == 0 {
		return nil, err
	}
	delete(found[0].Replication, "class")
	return found[0].Replication, nil
}

func (a *applier) apply(ctx context.Context) error {
	if err := warnOfOneCopy(ctx, a.session, a.opts, a.cluster.localDC); err != nil {
		return err
	}
	if err := ddl(ctx, a.session, schema.SettingsTable(a.opts.Keyspace)); err != nil {
		return fmt.Errorf("create table settings: %w", err)
	}
	if err := a.lock(ctx); err != nil {
		return err
	}
	err := a.migrate(ctx)
	if _, uerr := a.session.cas(context.WithoutCancel(ctx), stmt(cqlReturnLock, a.owner)); err == nil && uerr != nil {
		return fmt.Errorf("release the lock of the schema: %w", uerr)
	}
	return err
}

// lock waits until this applier holds the schema. It may hold it already, from an attempt whose
// answer was lost.
func (a *applier) lock(ctx context.Context) error {
	for reported := false; ; reported = true {
		ok, err := a.session.cas(ctx, stmt(cqlTakeLock, a.owner, ttl(lockTTL)))
		if err != nil {
			return fmt.Errorf("lock the schema: %w", err)
		}
		if !ok {
			if ok, err = a.session.cas(ctx, stmt(cqlKeepLock, ttl(lockTTL), a.owner, a.owner)); err != nil {
				return fmt.Errorf("extend the lock of the schema: %w", err)
			}
		}
		if ok {
			return nil
		}
		if !reported {
			a.opts.Logger.Info("another process is changing the schema; waiting for it", "keyspace", a.opts.Keyspace, "at_most", lockTTL)
		}
		if err := a.opts.Clock.Sleep(ctx, lockPoll); err != nil {
			return err
		}
	}
}

func (a *applier) migrate(ctx context.Context) error {
	version, err := schemaVersion(ctx, a.session)
	if err != nil {
		return err
	}
	if version > len(a.migrations) {
		return checkVersion(ctx, a.session, a.opts)
	}
	settings, err := recordSettings(ctx, a.session, a.opts, a.cluster.localDC)
	if err != nil {
		return err
	}
	levels, err := a.levels(settings.Ladder)
	if err != nil {
		return err
	}
	todo, done, total := a.migrations[version:], 0, 0
	for _, m := range todo {
		total += len(m.For(levels))
	}
	for _, m := range todo {
		for _, cql := range m.For(levels) {
			a.progress(done, total, firstLine(cql))
			if ok, err := a.session.cas(ctx, stmt(cqlKeepLock, ttl(lockTTL), a.owner, a.owner)); err != nil || !ok {
				return fmt.Errorf("the lock of the schema was lost; apply the schema again: %w", cmp.Or(err, storage.ErrConflict))
			}
			if err := ddl(ctx, a.session, cql); err != nil {
				return fmt.Errorf("%s: %w", firstLine(cql), err)
			}
			done++
		}
		before := ""
		if m.Version > 1 {
			before = strconv.Itoa(m.Version - 1)
		}
		if ok, err := swapSetting(ctx, a.session, settingVersion, before, strconv.Itoa(m.Version)); err != nil || !ok {
			return fmt.Errorf("record version %d of the schema: %w", m.Version, cmp.Or(err, storage.ErrConflict))
		}
	}
	a.progress(total, total, "done")
	return nil
}

func (a *applier) levels(l metric.Ladder) ([]schema.Level, error) {
	var policy storage.Policy
	if a.opts.Policy != nil {
		var err error
		if policy, err = a.opts.Policy(l); err != nil {
			return nil, err
		}
	}
	var out []schema.Level
	for _, b := range l.Levels() {
		out = append(out, schema.Level{Table: tableOf(l, b), Retention: policy.Retention.Duration(b)})
	}
	return out, nil
}

func firstLine(cql string) string {
	line, _, _ := strings.Cut(cql, "\n")
	return strings.TrimRight(line, " (")
}
