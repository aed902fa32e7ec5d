package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/app/program"
	"github.com/quern/quern/internal/app/program/programtest"
)

func TestTransferUsage(t *testing.T) {
	for command, want := range map[string][]string{
		"export": {"Examples:", "quern export --output week.ndjson.zst", "--part", "$QUERN_MATCH"},
		"import": {"Examples:", "quern import [command options] FILE…", "zcat week.ndjson.gz | quern import -", "$QUERN_GIVE_UP"},
	} {
		out, err := programtest.Run(t, quern(), command, "--help")
		require.NoError(t, err)
		for _, w := range want {
			assert.Contains(t, out, w)
		}
	}
	assert.Subset(t, complete(t), []string{"export", "import"})
	assert.Equal(t, []string{"--output", "--overwrite"}, complete(t, "export", "--o"))
	assert.Equal(t, []string{"--rate"}, complete(t, "import", "--r"))

	for args, want := range map[string]string{
		"export --start 4000000000": `--start must be before --end`,
		"export --part 0":           `--part 0: must be whole milliseconds, at least 1ms`,
		"export --output= ":         `--output: must not be empty`,
		"export --overwrite":        `--overwrite: needs --output FILE`,
		"import":                    `name the files to import, or - for standard input`,
		"import - x":                `-: standard input cannot be combined with files`,
		"import x --rate 5":         `"--rate" is not a file name: put flags before the files`,
		"import --rate -1 x":        `--rate -1: must be between 0 and`,
		"import --give-up -1s x":    `--give-up -1s: must not be negative`,
	} {
		command := "quern " + args[:6]
		t.Run(args, func(t *testing.T) { programtest.Refused(t, quern(), args, command, want) })
	}

	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"status":"error","error":"selector is no selector"}`))
	}))
	defer refuses.Close()
	programtest.Refused(t, quern(), "export --match { --url "+refuses.URL, "quern export", "selector is no selector")
}

// TestTransferFailure: an error that is no mistake on the command line is no usage error.
func TestTransferFailure(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	_, err := programtest.Run(t, quern(), "import", path)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, []byte("{}\n"), 0o600))
	_, err = programtest.Run(t, quern(), "export", "--output", path)
	require.ErrorContains(t, err, "already exists")
	assert.NotErrorAs(t, err, new(program.UsageError))
	out, err := programtest.Run(t, quern(), "import", "--url", "http://127.0.0.1:1", "--give-up", "0", path)
	require.ErrorContains(t, err, path+", after line 0: gave up: the server is unavailable")
	assert.NotErrorAs(t, err, new(program.UsageError))
	assert.Equal(t, "0 samples accepted, 0 rejected; 0 lines, 0 malformed\n", out)
}
