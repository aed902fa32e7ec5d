package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gocql/gocql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/cassandratest"
	"github.com/quern/quern/integration/process"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/cassandra"
	"github.com/quern/quern/schema"
)

// The commands that open or create a store.
const (
	ingestCommand = "ingest"
	aggregatorCmd = "aggregator"
	serveCommand  = "serve"
	applyCommand  = "schema apply"
)

// run starts one of them.
func (pl place) run(t *testing.T, command string, args ...string) *process.Process {
	t.Helper()
	switch command {
	case ingestCommand:
		return pl.ingest(t, args...)
	case aggregatorCmd:
		return pl.aggregator(t, args...)
	case serveCommand:
		return pl.serve(t, args...)
	}
	return pl.quern(t, append(strings.Fields(command), args...)...)
}

// refused waits until a program has ended by itself, at its first attempt, with the given reason on
// its last line.
func refused(t *testing.T, p *process.Process, why string) {
	t.Helper()
	refusedInTheEnd(t, p, why)
	assert.NotContains(t, p.Stderr.String(), "trying again")
}

// refusedInTheEnd is the same, at any attempt.
func refusedInTheEnd(t *testing.T, p *process.Process, why string) {
	t.Helper()
	assert.Equal(t, 1, p.ExitCode())
	lines := strings.Split(strings.TrimSpace(p.Stderr.String()), "\n")
	assert.Contains(t, lines[len(lines)-1], ": "+why)
}

// TestRefusals: if another attempt cannot help, a program ends at once, with a sentence that says
// what to do.
func TestRefusals(t *testing.T) {
	t.Parallel()
	pl := sharedPlace(t)
	pl.apply(t, "--rollups", "4s,8s,16s", "--group-size", "64", "--index-partitions", "4")
	settings := settingsIn(t, pl)
	var dc string
	require.NoError(t, settings.session.Query("SELECT data_center FROM system.local").Scan(&dc))
	migrations, err := schema.Migrations()
	require.NoError(t, err)
	version := len(migrations)

	absent := placeIn(pl.hosts)
	absent.direct = pl.direct
	bare := absent
	bare.keyspace += "_bare"
	require.NoError(t, settings.session.Query("CREATE KEYSPACE "+bare.keyspace+
		" WITH replication = {'class': 'NetworkTopologyStrategy', '"+dc+"': 1}").Exec())
	t.Cleanup(func() {
		require.NoError(t, pl.connect(t).Query("DROP KEYSPACE "+bare.keyspace).Exec())
	})
	capitals := pl
	capitals.keyspace = "Quern"

	noTables := func(pl place) string {
		return fmt.Sprintf("keyspace %q has no Quern tables: create them with `quern schema apply --keyspace %s`, or name another --keyspace",
			pl.keyspace, pl.keyspace)
	}
	madeWith := func(flag, made, asked string) string {
		return fmt.Sprintf("keyspace %q was created with %s %s, not the requested %s: leave the option out, or name another --keyspace",
			pl.keyspace, flag, made, asked)
	}
	otherHome := fmt.Sprintf("ids and leases of keyspace %q are assigned in data centre mars, but this process is in %s: give --local-dc mars, or name another --keyspace",
		pl.keyspace, dc)
	newer := fmt.Sprintf("the schema in keyspace %q has version %d, this program knows %d: use a newer program", pl.keyspace, version+1, version)
	noMars := fmt.Sprintf("the cluster has no data centre \"mars\", only %s", dc)

	for _, c := range []struct {
		name string
		pl   place
		// The setting has this value, written by hand, during the case.
		setting, value string
		command        string
		args           []string
		why            string
	}{
		{name: "no keyspace", pl: absent, command: ingestCommand, why: noTables(absent)},
		{name: "no keyspace", pl: absent, command: aggregatorCmd, why: noTables(absent)},
		{name: "no keyspace", pl: absent, command: serveCommand, why: noTables(absent)},
		{name: "no tables", pl: bare, command: ingestCommand, why: noTables(bare)},
		{name: "capitals", pl: capitals, command: ingestCommand, why: `--keyspace "Quern": must be lower-case letters, digits and underscores`},
		{name: "capitals", pl: capitals, command: applyCommand, why: `--keyspace "Quern": must be lower-case letters, digits and underscores`},

		{name: "no such data centre", pl: pl, command: ingestCommand, args: []string{"--local-dc", "mars"}, why: noMars + ": check --local-dc"},
		{name: "no such data centre", pl: absent, command: applyCommand, args: []string{"--local-dc", "mars"}, why: noMars + ": check --local-dc"},
		{name: "another home", pl: pl, setting: "home_data_center", value: "mars", command: ingestCommand, why: otherHome},
		{name: "another home", pl: pl, setting: "home_data_center", value: "mars", command: applyCommand, why: otherHome},

		{
			name: "copies nowhere", pl: absent, command: applyCommand, args: []string{"--replication", dc + "=1,mars=1"},
			why: "--replication " + dc + "=1,mars=1: " + noMars,
		},
		{
			name: "other copies", pl: pl, command: applyCommand, args: []string{"--replication", dc + "=2"},
			why: fmt.Sprintf("keyspace %q already has the replication %s=1: to change it, use ALTER KEYSPACE and repair every node, and leave --replication out", pl.keyspace, dc),
		},

		{
			name: "an older schema", pl: pl, setting: "schema_version", value: strconv.Itoa(version - 1), command: ingestCommand,
			why: fmt.Sprintf("the schema in keyspace %q has version %d, this program needs %d: run `quern schema apply --keyspace %s`",
				pl.keyspace, version-1, version, pl.keyspace),
		},
		{name: "a newer schema", pl: pl, setting: "schema_version", value: strconv.Itoa(version + 1), command: aggregatorCmd, why: newer},
		{name: "a newer schema", pl: pl, setting: "schema_version", value: strconv.Itoa(version + 1), command: applyCommand, why: newer},

		{name: "another ladder", pl: pl, command: serveCommand, args: []string{"--rollups", "4s,8s"}, why: madeWith("--rollups", "4s,8s,16s", "4s,8s")},
		{name: "another ladder", pl: pl, command: applyCommand, args: []string{"--rollups", "4s,8s"}, why: madeWith("--rollups", "4s,8s,16s", "4s,8s")},
		{name: "another group size", pl: pl, command: applyCommand, args: []string{"--group-size", "128"}, why: madeWith("--group-size", "64", "128")},
		{name: "another index", pl: pl, command: applyCommand, args: []string{"--index-partitions", "16"}, why: madeWith("--index-partitions", "4", "16")},
	} {
		t.Run(c.command+"/"+c.name, func(t *testing.T) {
			if c.setting != "" {
				stored := settings.read(t, c.setting)
				settings.swap(t, c.setting, stored, c.value)
				defer settings.swap(t, c.setting, c.value, stored)
			}
			refused(t, c.pl.run(t, c.command, c.args...), c.why)
		})
	}

	t.Run("clock", func(t *testing.T) {
		// The clock of a process cannot be set, but that of a store can.
		for direction, off := range map[string]time.Duration{"behind": time.Hour, "ahead": -time.Hour} {
			_, err := cassandra.Open(t.Context(), cassandra.Options{
				Hosts: pl.hosts, DirectHosts: pl.direct, Keyspace: pl.keyspace,
				Clock: clock.NewSimulated(time.Now().Add(off)), Policy: config.Policy{}.New, Timeout: time.Minute,
			})
			require.ErrorIs(t, err, storage.ErrSettings)
			assert.Regexp(t, `^the clocks of Cassandra nodes differ from this machine's by more than the limit of 30s \(\S+ is \S+ `+direction+`\): nothing is written, `+
				`ground or dropped; set the clocks \(NTP\), or raise the limit by changing --late-grace and --aggregation-delay with `+"`quern settings set`$", err)
		}
	})

	t.Run("as it was made", func(t *testing.T) {
		p := pl.serve(t, "--rollups", "4s,8s,16s", "--local-dc", dc)
		p.Ready()
		p.Stop()
		pl.apply(t, "--replication", dc+"=1")
	})

	t.Run("a weak consistency is only warned of", func(t *testing.T) {
		p := pl.ingest(t, "--consistency", "ONE")
		p.Wrote(`level=WARN msg="with this consistency a read may miss acknowledged samples.*; use LOCAL_QUORUM .*" .*consistency=ONE`)
		p.Ready()
		p.Stop()
	})
}

// settingsTable changes settings as the programs do: conditionally. The programs might not see a
// write of another kind.
type settingsTable struct {
	session *gocql.Session
	table   string
}

func settingsIn(t *testing.T, pl place) settingsTable {
	t.Helper()
	return settingsTable{pl.connect(t), pl.keyspace + ".settings"}
}

func (s settingsTable) read(t *testing.T, name string) string {
	t.Helper()
	var value string
	require.NoError(t, s.session.Query("SELECT value FROM "+s.table+" WHERE name = ?", name).Scan(&value))
	return value
}

func (s settingsTable) swap(t *testing.T, name, old, value string) {
	t.Helper()
	applied, err := s.session.Query("UPDATE "+s.table+" SET value = ? WHERE name = ? IF value = ?", value, name, old).
		SerialConsistency(gocql.LocalSerial).MapScanCAS(map[string]any{})
	require.NoError(t, err)
	require.True(t, applied, "%s is not %s", name, old)
}

// TestLoginsAndCertificates tests the same on a server that authenticates its clients, and itself.
func TestLoginsAndCertificates(t *testing.T) {
	t.Parallel()
	server := ownServer(t, cassandratest.Options{Secure: true})
	files := server.TLSFiles()
	pl := placeIn(server.Hosts())
	pl.session = func(c *gocql.ClusterConfig) {
		c.SslOpts = &gocql.SslOptions{CaPath: files.CA, CertPath: files.Cert, KeyPath: files.Key, EnableHostVerification: true}
		c.Authenticator = gocql.PasswordAuthenticator{Username: cassandratest.Username, Password: cassandratest.Password}
	}
	dir := t.TempDir()
	empty, noFile := filepath.Join(dir, "empty.pem"), filepath.Join(dir, "none.pem")
	require.NoError(t, os.WriteFile(empty, []byte("no certificate\n"), 0o600))

	trust := []string{"--cassandra-ca", files.CA}
	identity := []string{"--cassandra-cert", files.Cert, "--cassandra-key", files.Key}
	credentials := func(user, password string) []string {
		file := filepath.Join(t.TempDir(), "password")
		require.NoError(t, os.WriteFile(file, []byte(password+"\n"), 0o600))
		return []string{"--cassandra-username", user, "--cassandra-password-file", file}
	}
	login := credentials(cassandratest.Username, cassandratest.Password)
	with := func(login ...[]string) place {
		to := pl
		to.login = nil
		for _, flags := range login {
			to.login = append(to.login, flags...)
		}
		return to
	}
	good := with(trust, identity, login)
	good.apply(t, "--index-partitions", "4")
	session := pl.connect(t)
	for name, login := range map[string]string{"nobody": "true", "group": "false"} {
		require.NoError(t, session.Query(fmt.Sprintf("CREATE ROLE %q WITH LOGIN = %s AND PASSWORD = 'nothing'", name, login)).Exec())
	}

	const notTrusted = "the servers' certificate is not trusted: check --cassandra-ca, and that the certificate names the addresses of --cassandra-hosts ("
	const wrongLogin = "the servers rejected the user name and password: check --cassandra-username and --cassandra-password-file ("
	for _, c := range []struct {
		name  string
		flags [][]string
		why   string
	}{
		{"no login", [][]string{trust, identity}, "the servers require a user name and a password: set --cassandra-username and --cassandra-password-file"},
		{"wrong password", [][]string{trust, identity, credentials(cassandratest.Username, "hunter2")}, wrongLogin},
		{"unknown user", [][]string{trust, identity, credentials("stranger", "hunter2")}, wrongLogin},
		{"no password", [][]string{trust, identity, {"--cassandra-username", cassandratest.Username}}, "the servers also require a password: set --cassandra-password-file ("},
		{"no user", [][]string{trust, identity, credentials("group", "nothing")}, "the servers do not allow this user to log in: run ALTER ROLE … WITH LOGIN = true"},
		{"another authority", [][]string{{"--cassandra-ca", files.Cert}, identity, login}, notTrusted},
		{"the system's authorities", [][]string{{"--cassandra-tls"}, identity, login}, notTrusted},
		{"no file", [][]string{{"--cassandra-ca", noFile}, identity, login}, "--cassandra-ca: open " + noFile + ": no such file or directory"},
		{"a directory", [][]string{{"--cassandra-ca", dir}, identity, login}, "--cassandra-ca: read " + dir + ": is a directory"},
		{"no certificate in it", [][]string{{"--cassandra-ca", empty}, identity, login}, "--cassandra-ca " + empty + ": the file contains no certificate"},
		{
			"another's key",
			[][]string{trust, {"--cassandra-cert", files.CA, "--cassandra-key", files.Key}, login},
			"--cassandra-cert " + files.CA + ", --cassandra-key " + files.Key + ": tls: private key does not match public key",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, command := range []string{ingestCommand, applyCommand} {
				p := with(c.flags...).run(t, command)
				refused(t, p, c.why)
				assert.NotContains(t, p.Stderr.String(), "hunter2")
			}
		})
	}

	t.Run("no certificate of ours", func(t *testing.T) {
		// A server asks for the certificate when the client's part of the handshake is over. So an
		// attempt may also look like one at a server that is shutting down.
		for _, command := range []string{ingestCommand, applyCommand} {
			p := with(trust, login).run(t, command)
			refusedInTheEnd(t, p, "TLS with these servers failed: check --cassandra-tls, --cassandra-ca, --cassandra-cert and --cassandra-key (")
			assert.NotContains(t, p.Stderr.String(), "hunter2")
		}
	})

	t.Run("no permission", func(t *testing.T) {
		nobody := with(trust, identity, credentials("nobody", "nothing"))
		p := nobody.run(t, ingestCommand)
		assert.Equal(t, 1, p.ExitCode())
		assert.NotContains(t, p.Stderr.String(), "trying again")
		assert.Contains(t, p.Stderr.String(), "User nobody has no SELECT permission on <table "+pl.keyspace+".settings>")
	})

	t.Run("no TLS", func(t *testing.T) {
		// Servers that require TLS close the connection, as servers that stop do. So the program
		// retries, with a hint.
		p := with(login).ingest(t)
		p.Wrote(`level=WARN .* trying again in 1s" err=".*; if the servers require TLS, set --cassandra-tls`)
		p.Stop()
	})

	t.Run("all is right", func(t *testing.T) {
		p := good.ingest(t)
		p.Ready()
		p.Stop()
	})
}

// TestSchemaAppliedByTwo runs two programs that create a schema at the same time, as when one
// script sets up two machines.
func TestSchemaAppliedByTwo(t *testing.T) {
	t.Parallel()
	pl := sharedPlace(t)
	appliers := []*process.Process{pl.quern(t, "schema", "apply"), pl.quern(t, "schema", "apply")}
	making := 0
	for _, p := range appliers {
		pl.applied(t, p)
		if strings.Contains(p.Stdout.String(), "CREATE TABLE") {
			making++
		}
	}
	assert.Equal(t, 1, making, "one has made all tables, the other has found them")
	p := pl.serve(t)
	p.Ready()
	p.Stop()
}

// TestOneCopyThatForgets: schema apply and each process warn of a single copy that acknowledges
// before its data is on disk.
func TestOneCopyThatForgets(t *testing.T) {
	t.Parallel()
	pl := sharedPlace(t)
	apply := pl.quern(t, "schema", "apply")
	pl.applied(t, apply)
	p := pl.ingest(t)
	p.Ready()
	for _, p := range []*process.Process{apply, p} {
		assert.Contains(t, p.Stderr.String(), "there is only one copy of each row, and the servers acknowledge it before it is on disk")
	}
}
