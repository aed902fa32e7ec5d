package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/app/program"
	"github.com/quern/quern/internal/app/program/programtest"
)

func TestVerifyUsage(t *testing.T) {
	out, err := programtest.Run(t, quern(), "verify", "--help")
	require.NoError(t, err)
	for _, want := range []string{"Examples:", "quern verify --match 'cpu_user", "--repair", "$QUERN_START"} {
		assert.Contains(t, out, want)
	}
	for args, want := range map[string]string{
		"verify cpu":                      `unexpected argument "cpu"`,
		"verify --match=":                 `--match: must not be empty`,
		"verify --start yesterday":        `--start yesterday: must be a time such as`,
		"verify --start 4000000000":       `--start must be before --end`,
		"verify --limit -1":               `--limit -1: must be between 0 and`,
		"verify --limit 1 --repair=maybe": `invalid boolean value "maybe" for -repair`,
	} {
		t.Run(args, func(t *testing.T) { programtest.Refused(t, quern(), args, "quern verify", want) })
	}

	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"status":"error","error":"selector is no selector"}`))
	}))
	defer refuses.Close()
	programtest.Refused(t, quern(), "verify --match { --url "+refuses.URL, "quern verify", "selector is no selector")

	refuses.Close()
	_, err = programtest.Run(t, quern(), "verify", "--url", refuses.URL)
	require.ErrorContains(t, err, "connection refused")
	assert.NotErrorAs(t, err, new(program.UsageError))
}
