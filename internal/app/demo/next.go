package demo

import (
	"fmt"
	"io"

	"github.com/quern/quern/internal/metric"
)

// PrintNext prints what to try with the running demo.
func PrintNext(out io.Writer, ladder metric.Ladder, source, dir, base string) {
	lo := ladder.Name(metric.Raw + 1)
	hi := ladder.Name(ladder.Top())
	fmt.Fprintf(out, `
Quern is serving on %[1]s. Try:

  in a browser               %[1]s/explore?q=avg+by+(role)+(cpu_usage_ratio)&range=1d
  status of aggregation      curl -s %[1]s/api/v1/status/aggregation
  roll-ups of %-15[2]scurl -s -G %[1]s/api/v1/rollups -d 'match[]={source="web-001"}' -d level=%[2]s -d start=-26h
  the same for %-14[3]scurl -s -G %[1]s/api/v1/rollups -d 'match[]={source="web-001"}' -d level=%[3]s -d start=-48h
  20 points of 26 hours      curl -s -G %[1]s/api/v1/points -d 'match[]={source="web-001"}' -d start=-26h -d buckets=20
  PromQL, as Grafana asks    curl -s -G %[1]s/api/v1/query --data-urlencode 'query=topk(3, avg_over_time(cpu_usage_ratio[1h]))'
  this host, live            curl -s -G %[1]s/api/v1/latest -d 'match[]={__name__=~"host_.*"}'
  send a report              curl -s %[1]s/api/v1/reports -H 'Content-Type: application/json' -d '{"source":"%[4]s","measurements":[{"metric":"tea_temperature_celsius","value":71.5}]}'
  read it back               curl -s -G %[1]s/api/v1/export -d 'match[]=tea_temperature_celsius'
  Quern's own metrics        curl -s %[1]s/metrics

Ctrl-C stops it; the data is in %[5]s.
`, base, lo, hi, source, dir)
}
