package reports_test

import (
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/cockroachdb/datadriven"

	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/protocol/push"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestReports runs testdata. The commands are post (the literal body) and post-quoted (the
// body as a Go string, for bytes that a text file cannot hold). `go test -rewrite` rewrites the
// replies.
func TestReports(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			body := d.Input
			switch d.Cmd {
			case "post":
			case "post-quoted":
				var err error
				if body, err = strconv.Unquote(strings.TrimSpace(d.Input)); err != nil {
					d.Fatalf(t, "%v: %s", err, d.Input)
				}
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			limits := push.Limits{}
			d.MaybeScanArgs(t, "labels", &limits.Labels)
			d.MaybeScanArgs(t, "depth", &limits.Depth)
			d.MaybeScanArgs(t, "measurements", &limits.Measurements)
			d.MaybeScanArgs(t, "rejections", &limits.Rejections)
			a := &apitest.Appender{}
			w := apitest.Post(t, apitest.ReportServer(t, a, limits), strings.NewReader(body))
			apitest.DecodeReply(t, w)
			return strconv.Itoa(w.Code) + " " + w.Body.String() + a.String()
		})
	})
}
