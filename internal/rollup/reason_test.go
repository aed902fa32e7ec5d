package rollup

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
)

// TestReason: a code is read as it was written, for its slice only, and free text is no code.
func TestReason(t *testing.T) {
	s := metric.Slice{StartMs: 3_600_000, EndMs: 7_200_000}
	err := coded(Expired, s, "%d marks of slice %s dropped", 3, s)
	require.EqualError(t, err, "input_expired 3600000: 3 marks of slice 1970-01-01T01:00:00Z dropped")
	require.True(t, Expired.Has(err.Error(), s))
	require.False(t, Expired.Has(err.Error(), metric.Slice{StartMs: 36_000_000, EndMs: 39_600_000}))
	for _, other := range []string{
		"", "input_expired", "input_expired 3600000", "input_expired 36000000: x",
		"3 marks of slice 1970-01-01T01:00:00Z dropped: its input has expired", // of earlier versions
	} {
		require.False(t, Expired.Has(other, s), other)
	}
}
