package metric

import (
	"testing"

	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
)

func TestTypesAreThoseOfPrometheus(t *testing.T) {
	for number, name := range []model.MetricType{
		model.MetricTypeUnknown, model.MetricTypeCounter, model.MetricTypeGauge, model.MetricTypeHistogram,
		model.MetricTypeGaugeHistogram, model.MetricTypeSummary, model.MetricTypeInfo, model.MetricTypeStateset,
	} {
		require.Equal(t, string(name), Type(number).String())
		require.Equal(t, Type(number), ParseType(string(name)))
	}
	require.Equal(t, TypeUnknown, ParseType("of tomorrow"))
	require.Equal(t, "unknown", Type(200).String())
}
