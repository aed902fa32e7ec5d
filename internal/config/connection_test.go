package config

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTokenIsNotShown: a token is printed nowhere, and who lets others see it is warned.
func TestTokenIsNotShown(t *testing.T) {
	c := Connection{URL: "http://127.0.0.1:9095", Token: "quern_a_b"}
	require.NotContains(t, fmt.Sprintf("%v %+v %#v", c, c, c), "quern_a_b")
	require.Empty(t, c.warnings([]string{"quern", "status"}))
	require.Len(t, c.warnings([]string{"quern", "status", "--token=quern_a_b"}), 1)
	require.Len(t, c.warnings([]string{"quern", "status", "--token", "quern_a_b"}), 1)
	for host, want := range map[string]int{"http://[::1]:9095": 0, "http://localhost:1": 0, "https://metrics.example": 0, "http://metrics.example": 1, "http://192.0.2.1:9095": 1} {
		c.URL = host
		require.Len(t, c.warnings(nil), want, host)
	}
	require.Empty(t, (&Connection{URL: "http://metrics.example"}).warnings(nil))
}
