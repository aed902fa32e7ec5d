package collectd

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/ingest"
)

// FuzzCollectd: no body causes a crash, and everything passed to the appender is counted.
func FuzzCollectd(f *testing.F) {
	for _, s := range []string{
		"[]", `[{"values":[1],"dstypes":["derive"],"dsnames":["value"],"time":1.5,"host":"h","plugin":"p","plugin_instance":"i","type":"t","type_instance":"j"}]`,
		`[{"values":[1e999,null,"x"],"time":-1e300},[],"",null]`, `[{"host":"\u00e4\n"}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		var b ingest.Batch
		d := &decoder{batch: &b}
		d.Reset([]byte(body), 10)
		d.lists()
		require.LessOrEqual(t, b.Allowance.Used(), 300*int64(len(body)+1))
		n := 0
		for _, r := range b.Reports() {
			n += len(r.Measurements)
		}
		require.Equal(t, b.Len(), n+b.Rejected())
	})
}
