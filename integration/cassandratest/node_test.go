package cassandratest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// yamlOf returns a node's cassandra.yaml, parsed.
func yamlOf(t *testing.T, config nodeConfig) map[string]any {
	t.Helper()
	text, err := render(yamlName, config)
	require.NoError(t, err)
	var got map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(text), &got), "%s", text)
	return got
}

func TestYAML(t *testing.T) {
	config := nodeConfig{
		Options: Options{}.withDefaults(3), Nodes: 3,
		Dir: `/tmp/with a "space"/node0`, Jars: "/jars", Address: "127.1.2.3", Announced: "127.1.2.5", Seeds: "127.1.2.3,127.1.2.4",
		InitialToken: "-9223372036854775808", StoragePort: storagePort, NativePort: nativePort, JMXPort: "15000",
	}
	plain := yamlOf(t, config)
	require.Equal(t, "127.1.2.3", plain["listen_address"])
	require.Equal(t, "127.1.2.3", plain["rpc_address"])
	require.Equal(t, "127.1.2.5", plain["broadcast_rpc_address"])
	require.Equal(t, 9042, plain["native_transport_port"])
	require.Equal(t, []any{`/tmp/with a "space"/node0/data`}, plain["data_file_directories"])
	require.Equal(t, "periodic", plain["commitlog_sync"])
	require.Contains(t, plain, "commitlog_sync_period")
	require.Equal(t, "NONE", plain["storage_compatibility_mode"])
	require.Equal(t, "AllowAllAuthenticator", plain["authenticator"])
	require.NotContains(t, plain, "client_encryption_options")

	config.Authentication, config.CommitlogSync = true, CommitlogBatch
	config.TLS = &nodeTLS{Keystore: "/k.p12", Truststore: "/t.p12", Password: "p", RequireClientAuth: true}
	secure := yamlOf(t, config)
	require.Equal(t, "PasswordAuthenticator", secure["authenticator"])
	require.Equal(t, "batch", secure["commitlog_sync"])
	require.NotContains(t, secure, "commitlog_sync_period")
	require.Subset(t, secure["client_encryption_options"], map[string]any{
		"enabled": true, "keystore": "/k.p12", "truststore": "/t.p12", "require_client_auth": true,
	})
}

func TestArguments(t *testing.T) {
	config := nodeConfig{Options: Options{}.withDefaults(1), Nodes: 1, Dir: "/a b", Jars: "/c d", JMXPort: "15000"}
	paths, err := render(pathsArgsName, config)
	require.NoError(t, err)
	require.Contains(t, paths, "\n"+`-cp "/c d/*"`+"\n")
	require.Contains(t, paths, "\n"+`-Dcassandra.config="file:/a b/cassandra.yaml"`+"\n")

	require.NotContains(t, paths, "-XX")
	config.Classes = "/c d/classes.jsa"
	shared, err := render(pathsArgsName, config)
	require.NoError(t, err)
	require.Contains(t, shared, "\n"+`-XX:SharedArchiveFile="/c d/classes.jsa"`+"\n")
	config.Archives = true
	archiving, err := render(pathsArgsName, config)
	require.NoError(t, err)
	require.Contains(t, archiving, "\n"+`-XX:ArchiveClassesAtExit="/c d/classes.jsa"`+"\n")

	one, err := render(daemonArgsName, config)
	require.NoError(t, err)
	require.Contains(t, one, "\n-Xmx1024M\n")

	config.Options, config.Nodes = Options{}.withDefaults(3), 3
	many, err := render(daemonArgsName, config)
	require.NoError(t, err)
	require.Contains(t, many, "\n-Xmx640M\n")
}

// TestSettled: a node that is down, or still moves, is not overlooked, nor one that is missing.
func TestSettled(t *testing.T) {
	status := func(states ...string) string {
		out := "Datacenter: datacenter1\n=======================\nStatus=Up/Down\n|/ State=Normal/Leaving/Joining/Moving\n" +
			"--  Address      Load       Owns (effective)  Host ID  Token  Rack\n"
		for i, state := range states {
			out += fmt.Sprintf("%s  127.0.0.%d    75.68 KiB  100.0%%  ee7e9b45-6a4c-44b4-9b3c-0d4b5e7c0f3d  -3074457345618258603  rack1\n", state, i+1)
		}
		return out + "\n"
	}
	require.True(t, settled(status("UN", "UN", "UN"), 3))
	require.False(t, settled(status("UN", "UN"), 3))
	for _, state := range []string{"DN", "UM", "UJ", "UL"} {
		require.False(t, settled(status("UN", state, "UN"), 3), state)
	}
}

func TestBothEnds(t *testing.T) {
	require.Equal(t, "1\n2\n3\n4", bothEnds("1\n2\n3\n4\n", 2))
	require.Equal(t, "1\n2\n…\n4\n5", bothEnds("1\n2\n3\n4\n5\n", 2))
}

func TestInitialToken(t *testing.T) {
	require.Equal(t, "-9223372036854775808", initialToken(0, 3))
	require.Equal(t, "-3074457345618258603", initialToken(1, 3))
	require.Equal(t, "3074457345618258602", initialToken(2, 3))
}

func TestFreeAddresses(t *testing.T) {
	if !processesWork {
		t.Skip("where there are no nodes as processes")
	}
	addresses, err := freeAddresses(t.Context(), 3)
	require.NoError(t, err)
	require.Len(t, addresses, 3)
}
