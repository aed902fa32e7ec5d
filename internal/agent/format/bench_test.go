package format

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/ingest"
)

// benchmark reads lines that line makes, a thousand for each Reset of the batch.
func benchmark(bench *testing.B, o Options, line func(i int, at time.Time) string) {
	f, err := New(o)
	require.NoError(bench, err)
	lines, size := make([][]byte, 1000), 0
	for i := range lines {
		lines[i] = []byte(line(i, time.Date(2026, 11, 27, 10, 0, 0, 0, time.UTC).Add(time.Duration(i)*123*time.Millisecond)))
		size += len(lines[i])
	}
	var b ingest.Batch
	bench.SetBytes(int64(size))
	bench.ReportAllocs()
	for bench.Loop() {
		b.Reset()
		for _, line := range lines {
			f.Line(line, 1_795_773_600_000, &b)
		}
		if b.Rejected() > 0 {
			bench.Fatal(b.Result(ingest.Result{}).Rejected[0].Message)
		}
	}
	bench.ReportMetric(float64(bench.Elapsed().Nanoseconds())/float64(bench.N*len(lines)), "ns/line")
}

func BenchmarkJSON(b *testing.B) {
	benchmark(b, Options{Format: "json", LabelFields: []string{"host", "path", "status"}, ValueFields: []string{"duration", "bytes"}}, func(i int, at time.Time) string {
		return fmt.Sprintf(`{"time":%q,"level":"info","host":"web-%d","path":"/api/v1/items","status":200,"duration":0.%04d,"bytes":%d,"msg":"request served"}`,
			at.Format(time.RFC3339Nano), i%4, i, 5000+i)
	})
}

func BenchmarkLogfmt(b *testing.B) {
	benchmark(b, Options{Format: "logfmt", LabelFields: []string{"host", "path", "status"}}, func(i int, at time.Time) string {
		return fmt.Sprintf(`time=%s level=info host=web-%d path=/api/v1/items status=200 duration=0.%04d bytes=%d msg="request served"`,
			at.Format(time.RFC3339Nano), i%4, i, 5000+i)
	})
}

func BenchmarkCSV(b *testing.B) {
	benchmark(b, Options{Format: "csv", Columns: []string{"time", "host", "duration", "bytes"}, LabelFields: []string{"host"}}, func(i int, at time.Time) string {
		return fmt.Sprintf(`%s,web-%d,0.%04d,%d`, at.Format(time.DateTime), i%4, i, 5000+i)
	})
}

func BenchmarkAccess(b *testing.B) {
	benchmark(b, Options{Format: "access"}, func(i int, at time.Time) string {
		return fmt.Sprintf(`192.0.2.%d - - [%s] "GET /api/v1/items?page=%d HTTP/1.1" %d %d "https://example.com/" "Mozilla/5.0 (X11; Linux x86_64)" 0.%03d`,
			i%256, at.Format("02/Jan/2006:15:04:05 -0700"), i, 200+i%3, 5000+i, i)
	})
}

func BenchmarkInflux(b *testing.B) {
	benchmark(b, Options{Format: "influx", Labels: map[string]string{"env": "prod"}}, func(i int, at time.Time) string {
		return fmt.Sprintf(`requests,host=web-%d,path=/api/v1/items,status=200 duration=0.%04d,bytes=%di %d`, i%4, i, 5000+i, at.UnixNano())
	})
}
