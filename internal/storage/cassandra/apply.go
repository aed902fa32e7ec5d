package cassandra

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/schema"
)

const (
	settingLock   = "schema_lock"
	cqlTakeLock   = `INSERT INTO settings (name, value) VALUES ('` + settingLock + `', ?) IF NOT EXISTS USING TTL ?`
	cqlKeepLock   = `UPDATE settings USING TTL ? SET value = ? WHERE name = '` + settingLock + `' IF value = ?`
	cqlReturnLock = `DELETE FROM settings WHERE name = '` + settingLock + `' IF value = ?`
)

const (
	// lockTTL is how long the lock of an applier that has died keeps others waiting. It is
	// renewed before each step.
	lockTTL  = 2 * time.Minute
	lockPoll = time.Second
	// ddlTimeout: all nodes take part in a change of the schema.
	ddlTimeout = 30 * time.Second
)

// ApplySchema makes keyspace and tables, or brings them to the version that this program
// knows, and records the settings of a new store. There is one applier at a time; others wait for it. What
// is there already stays, so it may be repeated. progress hears of each step before it is taken.
//
// The replication is as in "dc1=3,dc2=2"; "" is 3 copies in the local data centre, or as many as
// that has nodes. It is for a new keyspace only.
func ApplySchema(ctx context.Context, opts Options, replication string, progress func(done, total int, step string)) error {
	opts.ensureDefaults()
	opts.Timeout = max(opts.Timeout, ddlTimeout)
	if !validName.MatchString(opts.Keyspace) {
		return fmt.Errorf("--keyspace %q: must be letters, digits and underscores, beginning with a letter, at most 48", opts.Keyspace)
	}
	migrations, err := schema.Migrations()
	if err != nil {
		return err
	}
	a := &applier{opts: &opts, migrations: migrations, progress: progress, owner: strconv.FormatUint(rand.Uint64(), 16)}
	if err := a.makeKeyspace(ctx, replication); err != nil {
		return err
	}
	s, err := connect(ctx, &opts, opts.Keyspace)
	if err != nil {
		return err
	}
	defer s.close()
	a.session = s.(*driver)
	return a.apply(ctx)
}

var validName = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_]{0,47}$`)

type applier struct {
	opts       *Options
	migrations []schema.Migration
	progress   func(done, total int, step string)
	session    *driver
	owner      string
}

func (a *applier) makeKeyspace(ctx context.Context, replication string) error {
	s, err := connect(ctx, a.opts, "")
	if err != nil {
		return err
	}
	defer s.close()
	d := s.(*driver)
	options, err := a.replication(ctx, d, replication)
	if err != nil {
		return err
	}
	a.progress(0, 1, "keyspace "+a.opts.Keyspace)
	if err := ddl(ctx, d, fmt.Sprintf(`CREATE KEYSPACE IF NOT EXISTS %s WITH replication = {'class': 'NetworkTopologyStrategy', %s}`,
		a.opts.Keyspace, options)); err != nil {
		return fmt.Errorf("make keyspace %s: %w", a.opts.Keyspace, err)
	}
	return nil
}

// replication is the replication as CQL.
func (a *applier) replication(ctx context.Context, d *driver, text string) (string, error) {
	if text == "" {
		c, err := look(ctx, a.opts, d)
		return fmt.Sprintf("'%s': %d", c.localDC, min(3, c.copies)), err
	}
	var out []string
	for part := range strings.SplitSeq(text, ",") {
		dc, n, ok := strings.Cut(strings.TrimSpace(part), "=")
		copies, err := strconv.Atoi(n)
		if !ok || err != nil || copies < 1 || dc == "" || strings.ContainsAny(dc, "'\\") {
			return "", fmt.Errorf("--replication %s: must be like dc1=3,dc2=3", text)
		}
		out = append(out, fmt.Sprintf("'%s': %d", dc, copies))
	}
	return strings.Join(out, ", "), nil
}

// ddl runs a statement that changes the schema, and waits until all servers have it.
func ddl(ctx context.Context, d *driver, cql string) error {
	if err := d.ContextQuery(ctx, cql, nil).ExecRelease(); err != nil {
		return convert(ctx, err)
	}
	return convert(ctx, d.AwaitSchemaAgreement(ctx))
}

func (a *applier) apply(ctx context.Context) error {
	if err := ddl(ctx, a.session, schema.SettingsTable(a.opts.Keyspace)); err != nil {
		return fmt.Errorf("make table settings: %w", err)
	}
	if err := a.lock(ctx); err != nil {
		return err
	}
	err := a.migrate(ctx)
	if _, uerr := a.session.cas(context.WithoutCancel(ctx), stmt(cqlReturnLock, a.owner)); err == nil && uerr != nil {
		return fmt.Errorf("give back the lock of the schema: %w", uerr)
	}
	return err
}

func (a *applier) lock(ctx context.Context) error {
	for told := false; ; told = true {
		ok, err := a.session.cas(ctx, stmt(cqlTakeLock, a.owner, ttl(lockTTL)))
		if err != nil {
			return fmt.Errorf("lock the schema: %w", err)
		}
		if ok {
			return nil
		}
		if !told {
			a.opts.Logger.Info("another process is at the schema; waiting for it", "keyspace", a.opts.Keyspace, "at_most", lockTTL)
		}
		if err := a.opts.Clock.Sleep(ctx, lockPoll); err != nil {
			return err
		}
	}
}

func (a *applier) migrate(ctx context.Context) error {
	text, err := readSetting(ctx, a.session, settingVersion)
	if err != nil {
		return err
	}
	version := 0
	if text != "" {
		if version, err = strconv.Atoi(text); err != nil {
			return fmt.Errorf("%w: setting %s %q", storage.ErrCorrupt, settingVersion, text)
		}
	}
	if version > len(a.migrations) {
		return checkVersion(ctx, a.session, a.opts)
	}
	settings, err := recordSettings(ctx, a.session, a.opts)
	if err != nil {
		return err
	}
	levels, err := a.levels(settings.Ladder)
	if err != nil {
		return err
	}
	type step struct {
		version int
		cql     string
		last    bool
	}
	var steps []step
	for _, m := range a.migrations[version:] {
		statements := m.For(levels)
		for i, cql := range statements {
			steps = append(steps, step{m.Version, cql, i == len(statements)-1})
		}
	}
	for i, st := range steps {
		a.progress(i, len(steps), firstLine(st.cql))
		if ok, err := a.session.cas(ctx, stmt(cqlKeepLock, ttl(lockTTL), a.owner, a.owner)); err != nil || !ok {
			return fmt.Errorf("the lock of the schema was lost; apply it again: %w", firstOf(err, storage.ErrConflict))
		}
		if err := ddl(ctx, a.session, st.cql); err != nil {
			return fmt.Errorf("%s: %w", firstLine(st.cql), err)
		}
		if st.last {
			next := strconv.Itoa(st.version)
			if ok, err := swapSetting(ctx, a.session, settingVersion, text, next); err != nil || !ok {
				return fmt.Errorf("record version %s of the schema: %w", next, firstOf(err, storage.ErrConflict))
			}
			text = next
		}
	}
	a.progress(len(steps), len(steps), "done")
	return nil
}

func (a *applier) levels(l metric.Ladder) ([]schema.Level, error) {
	retention, err := a.opts.Retention(l)
	if err != nil {
		return nil, err
	}
	var out []schema.Level
	for _, b := range l.Levels() {
		out = append(out, schema.Level{Table: tableOf(l, b), Retention: retention.Of(b)})
	}
	return out, nil
}

func firstOf(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

func firstLine(cql string) string {
	line, _, _ := strings.Cut(cql, "\n")
	return strings.TrimRight(line, " (")
}
