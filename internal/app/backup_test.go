package app

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/commands"
	"github.com/quern/quern/internal/config"
)

// TestBackup: the commands make, list and restore a backup of a server that runs. Without a place it is refused. The log has who asked.
func TestBackup(t *testing.T) {
	s := testServer(t)
	addr, stop := running(t, s)
	asks := config.CreateBackup{Connection: config.Connection{URL: addr}, Rate: 1 << 30}
	require.ErrorContains(t, commands.CreateBackup(t.Context(), asks, nil, nil), "start it with --backup-dest; docs/backup.md")
	stop()

	var log, out bytes.Buffer
	again := testServer(t)
	again.cfg.DataDir, again.cfg.BackupDest = s.cfg.DataDir, t.TempDir()
	again.log = slog.New(slog.NewTextHandler(&log, nil))
	addr, stop = running(t, again)
	asks.URL = addr
	require.NoError(t, commands.CreateBackup(t.Context(), asks, &out, nil))
	require.Regexp(t, `^\d{8}T\d{6}\.\d{3}Z-[-0-9a-f]{53}: \d+ bytes, \d+ sent\n$`, out.String())
	stop()
	require.Contains(t, log.String(), `action="POST /api/v1/admin/backup" outcome=done`)

	name, _, _ := strings.Cut(out.String(), ":")
	out.Reset()
	cfg := config.Backups{Place: again.cfg.BackupDest, To: filepath.Join(t.TempDir(), "restored"), Keep: 1}
	require.NoError(t, commands.ListBackups(t.Context(), cfg, &out, nil))
	require.NoError(t, commands.ReadBackup(t.Context(), config.Backups{Place: cfg.Place}, &out, nil))
	require.NoError(t, commands.ReadBackup(t.Context(), cfg, &out, nil))
	require.NoError(t, commands.PruneBackups(t.Context(), cfg, &out, nil))
	require.Regexp(t, `^BACKUP +BYTES\n`+name+` +\d+\n`+name+` is whole\n`+name+` was restored to `+cfg.To+`\n0 backups removed\n$`, out.String())
	restored := testServer(t)
	restored.cfg.DataDir = cfg.To
	running(t, restored)
}
