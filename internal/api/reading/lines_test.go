package reading

import (
	"context"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/importer"
	"github.com/quern/quern/internal/protocol/push"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/wire"
)

// readNow is the time of the tests.
var readNow = time.Date(2025, 11, 21, 12, 0, 0, 0, time.UTC)

// backFiller keeps the bits of all values and the first label of the first measurement.
type backFiller struct {
	bits  []uint64
	label metric.Label
}

func (b *backFiller) BackFill(_ context.Context, reports []ingest.Report) (result ingest.Result, err error) {
	for _, r := range reports {
		for _, m := range r.Measurements {
			if len(b.bits) == 0 {
				b.label = metric.Label{Name: strings.Clone(m.Labels[0].Name), Value: strings.Clone(m.Labels[0].Value)}
			}
			b.bits = append(b.bits, math.Float64bits(m.Value))
			result.Accepted++
		}
	}
	return result, nil
}

// TestImportOfExport: an import restores an export bit for bit.
func TestImportOfExport(t *testing.T) {
	labels, err := metric.NewLabels(metric.Label{Name: metric.NameLabel, Value: "m"}, metric.Label{Name: "a", Value: "\"\\\n\u00e4\u2028"})
	require.NoError(t, err)
	s := query.Samples{Labels: labels}
	var want []uint64
	for i, bits := range []uint64{
		0, 1, 1 << 63, math.Float64bits(0.1), math.Float64bits(math.MaxFloat64), math.Float64bits(-1e-300), math.Float64bits(1e21),
		math.Float64bits(math.Inf(1)), math.Float64bits(math.Inf(-1)), math.Float64bits(math.NaN()), 0x7ff0000000000002, 0x7ff8000000000000, 0xfff8000000000000,
	} {
		want = append(want, bits)
		s.Samples = append(s.Samples, metric.Sample{TimeMs: int64(i), Value: math.Float64frombits(bits)})
	}
	w := httptest.NewRecorder()
	out := newLines(w)
	out.exact = true
	writeSamples(out, &s)
	require.NoError(t, out.end())
	require.NoError(t, out.finish())
	b := new(backFiller)
	clk := clock.NewSimulated(readNow)
	budget := limits.NewBudget(2*importer.MaxBytes(), importer.MaxBytes())
	bounds := push.Limits{}
	bounds.EnsureDefaults()
	in, err := push.NewIntake(push.Options{
		Clock: clk, Logger: slog.New(slog.DiscardHandler), Limits: bounds, Budget: budget,
		Clients: limits.NewClients(nil), Draining: func() bool { return false },
	})
	require.NoError(t, err)
	imported := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, wire.ImportPath, w.Body)
	importer.New(in, importer.Options{To: b, Budget: budget, Clock: clk}).ServeHTTP(imported, r)
	require.Equal(t, 200, imported.Code)
	assert.Equal(t, want, b.bits)
	assert.Equal(t, metric.Label{Name: "a", Value: "\"\\\n\u00e4\u2028"}, b.label)

	// By default an export writes only values that all programs know.
	w = httptest.NewRecorder()
	out = newLines(w)
	writeSamples(out, &s)
	require.NoError(t, out.finish())
	require.Contains(t, w.Body.String(), `,1e+21,"Infinity","-Infinity",null,null,null,null],`)
}
