package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAgentControl: what other machines could reach without a token is refused at the start, and so is a wrong URL.
func TestAgentControl(t *testing.T) {
	for _, good := range [][]string{
		{"--control", "127.0.0.1:9097"},
		{"--control", "0.0.0.0:9097", "--control-token-file", "agent_test.go"},
		{"--fallback-urls", "http://b:9095, https://c"},
	} {
		_, err := agent(t, good...)
		require.NoError(t, err)
	}
	cfg, err := agent(t, "--fallback-urls", "http://b:9095, https://c")
	require.NoError(t, err)
	require.Equal(t, []string{"http://b:9095", "https://c"}, cfg.FallbackURLs)
	for want, bad := range map[string][]string{
		"--control 0.0.0.0:9097 with --control-token-file \"\": other machines reach this address": {"--control", "0.0.0.0:9097"},
		"no such file":                {"--control", "127.0.0.1:9097", "--control-token-file", "none"},
		"--control":                   {"--control", "9097"},
		"must be like http://127.0.0": {"--fallback-urls", "http://b:9095,c"},
	} {
		_, err := agent(t, bad...)
		require.ErrorContains(t, err, want)
	}
}
