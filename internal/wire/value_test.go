package wire_test

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/wire"
)

// TestValue: what the server writes for values that are no JSON numbers, the clients decode to the same bits.
func TestValue(t *testing.T) {
	stale := math.Float64frombits(0x7ff0000000000002)
	for _, c := range []struct {
		v            float64
		exact, plain string
	}{
		{math.NaN(), "null", "null"},
		{stale, `"NaN:7ff0000000000002"`, "null"},
		{math.Inf(1), `"Infinity"`, `"Infinity"`},
		{math.Inf(-1), `"-Infinity"`, `"-Infinity"`},
	} {
		form, ok := wire.NotFinite(c.v, true)
		require.True(t, ok)
		require.Equal(t, c.exact, form)
		var back wire.Value
		require.NoError(t, json.Unmarshal([]byte(form), &back))
		require.Equal(t, math.Float64bits(c.v), math.Float64bits(float64(back)), form)
		form, ok = wire.NotFinite(c.v, false)
		require.True(t, ok)
		require.Equal(t, c.plain, form)
	}
	for _, v := range []float64{0, -1.5, math.MaxFloat64, 5e-324} {
		_, ok := wire.NotFinite(v, true)
		require.False(t, ok)
		var back wire.Value
		require.NoError(t, json.Unmarshal(fmt.Append(nil, v), &back))
		require.InDelta(t, v, float64(back), 0)
	}
	for _, text := range []string{`"NaN:3ff0000000000000"`, `"12"`, `"word"`, "true"} {
		var v wire.Value
		require.Error(t, json.Unmarshal([]byte(text), &v), text)
	}
}
