package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/oracle"
	"github.com/quern/quern/integration/process"
)

// TestOracle: an oracle that found no samples would find no faults either.
func TestOracle(t *testing.T) {
	t.Parallel()
	p := serve(t, t.TempDir(), seconds...)
	ms := time.Now().UnixMilli()
	at := func(ms int64, v float64) process.Sample {
		return process.Sample{Source: "a", Metric: "it_x", Ms: ms, Value: v}
	}
	there := []process.Sample{at(ms, 1), at(ms+1, 2)}

	var sent oracle.Oracle
	_, err := sent.Report(t.Context(), p, there)
	require.NoError(t, err)
	_, err = sent.Report(t.Context(), p, []process.Sample{at(ms, 1)})
	require.NoError(t, err, "again")
	r, err := sent.Report(t.Context(), p, []process.Sample{at(ms-25*3_600_000, 5)})
	require.ErrorContains(t, err, "too_old")
	assert.Equal(t, 400, r.Code)
	sent.Unknown(at(ms+2, 3)) // not there, and need not be
	assert.Equal(t, 2, sent.Len())
	assert.Equal(t, 1, sent.Series())
	require.NoError(t, sent.Raw(p))
	process.Eventually(t, "roll-ups", func() error { return sent.Check(p) })

	for want, know := range map[string]func(*oracle.Oracle){
		"acknowledged and lost: {Source:a Metric:it_x Ms:": func(o *oracle.Oracle) { o.Acknowledged(at(ms, 1), at(ms+1, 2), at(ms+2, 3)) },
		"changed: {":           func(o *oracle.Oracle) { o.Acknowledged(at(ms, 1), at(ms+1, 9)) },
		"never sent: {":        func(o *oracle.Oracle) { o.Acknowledged(at(ms, 1)) },
		"refused, and there: ": func(o *oracle.Oracle) { o.Acknowledged(at(ms, 1)); o.Refused(at(ms+1, 2)) },
	} {
		var o oracle.Oracle
		know(&o)
		assert.ErrorContains(t, o.Raw(p), want)
		assert.ErrorContains(t, o.Check(p), want)
	}
	var unsure oracle.Oracle
	unsure.Acknowledged(at(ms, 1))
	unsure.Unknown(at(ms+1, 2), at(ms+1, 8))
	require.NoError(t, unsure.Check(p), "nobody knows whether it was taken, and it is there")
	p.Stop()
}
