package metric_test

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
)

func TestParseDecimal(t *testing.T) {
	zeros := func(n int) string { return strings.Repeat("0", n) }
	for text, want := range map[string]float64{
		"0": 0, "-0": math.Copysign(0, -1), "+1.5": 1.5, ".5": 0.5, "5.": 5, "-12.5e-3": -0.0125, "1E2": 100, "1e400000": math.Inf(1),
		"1" + zeros(794) + "e-794": 1,
		"0." + zeros(798):          0,
		"1" + zeros(799):           math.Inf(1),
	} {
		got, ok := metric.ParseDecimal(text)
		require.Equal(t, !math.IsInf(want, 0), ok, text)
		require.Equal(t, math.Float64bits(want), math.Float64bits(got), text)
	}
	for _, text := range []string{"", "-", ".", "e1", "1e", "1e+", "--1", "1-1", "1.2.3", "0x1p-2", "1_000", "Inf", "NaN", "1i", "1e1e1", "1e1.5", " 1", "0." + zeros(799)} {
		_, ok := metric.ParseDecimal(text)
		require.False(t, ok, text)
	}
}
