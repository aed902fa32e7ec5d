package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestVerify(t *testing.T) {
	verify := func(args ...string) (Verify, error) { return parse(t, VerifyFlags(), FromVerify, args) }
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	v, err := verify()
	require.NoError(t, err)
	assert.Equal(t, `{__name__!=""}`, v.Match)
	assert.Equal(t, now.Add(-48*time.Hour).UnixMilli(), v.Start.Ms(now.UnixMilli()))
	assert.Equal(t, now.UnixMilli(), v.End.Ms(now.UnixMilli()))
	assert.Equal(t, 100, v.Limit)
	assert.False(t, v.Repair)
	assert.False(t, v.JSON)
	v, err = verify("--json")
	require.NoError(t, err)
	assert.True(t, v.JSON)

	for _, bad := range []string{"yesterday", "6h", "--6h", "1e300", "NaN", "1969-12-31T00:00:00Z", "-", ""} {
		_, err := verify("--start=" + bad)
		assert.ErrorContains(t, err, "--start", bad)
	}
	for _, args := range [][]string{{"--start", "now"}, {"--start", "-1h", "--end", "-2h"}, {"--start", "200", "--end", "100"}} {
		_, err := verify(args...)
		assert.ErrorContains(t, err, "must be before --end", args)
	}
}
