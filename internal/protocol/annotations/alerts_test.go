package annotations_test

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/protocol/annotations"
	"github.com/quern/quern/internal/treecheck/linear"
	"github.com/quern/quern/internal/wire"
)

// webhook is a notification in the form and order of Alertmanager's.
func webhook(alerts ...string) string {
	return `{"receiver":"quern","status":"firing","alerts":[` + strings.Join(alerts, ",") + `],"groupLabels":{"alertname":"HighLoad"},
	"commonLabels":{},"commonAnnotations":{},"externalURL":"http://am.example:9093","version":"4","groupKey":"{}:{alertname=\"HighLoad\"}","truncatedAlerts":0}`
}

func alert(status, start, end, more string) string {
	return fmt.Sprintf(`{"status":%q,"labels":{"alertname":"HighLoad","severity":"page","instance":"web-1:9100"},
	"annotations":{"runbook":"https://wiki.example/load","description":"Load is <b>high</b>.","summary":"web-1 is busy"},
	"startsAt":%q,"endsAt":%q,"generatorURL":"http://prom.example/graph","fingerprint":"c2f4a9e0b1d3e5f7"%s}`, status, start, end, more)
}

// TestAlerts: an alert is one annotation from its start to its end, however often Alertmanager tells of it.
func TestAlerts(t *testing.T) {
	s := serve(t)
	nowMs := apitest.Now.UnixMilli()
	const zero = "0001-01-01T00:00:00Z"
	firing := webhook(alert("firing", "2025-11-21T11:30:00.5Z", zero, ""))

	code, reply := s.post(t, wire.AlertsPath, firing)
	require.Equal(t, 200, code, reply)
	want := wire.Annotation{
		ID: "alert-c2f4a9e0b1d3e5f7", Start: nowMs - 30*60_000 + 500, End: nowMs,
		Text: "web-1 is busy\nLoad is <b>high</b>.\nrunbook: https://wiki.example/load",
		Tags: []string{"alert", "alertname=HighLoad", "firing", "instance=web-1:9100", "severity=page"}, Author: "user ali", Updated: nowMs,
	}
	require.Equal(t, []wire.Annotation{want}, s.find(t).Annotations)

	// The next notification extends it.
	s.clk.Set(s.clk.Now().Add(5 * time.Minute))
	nowMs = s.clk.Now().UnixMilli()
	code, _ = s.post(t, wire.AlertsPath, firing)
	require.Equal(t, 200, code)
	want.End, want.Updated = nowMs, nowMs
	require.Equal(t, []wire.Annotation{want}, s.find(t).Annotations)

	// The last one has the end.
	s.clk.Set(s.clk.Now().Add(5 * time.Minute))
	code, _ = s.post(t, wire.AlertsPath, webhook(alert("resolved", "2025-11-21T11:30:00.5Z", "2025-11-21T12:07:00Z", "")))
	require.Equal(t, 200, code)
	want.End, want.Updated = apitest.Now.UnixMilli()+7*60_000, s.clk.Now().UnixMilli()
	want.Tags = slices.DeleteFunc(want.Tags, func(tag string) bool { return tag == "firing" })
	require.Equal(t, []wire.Annotation{want}, s.find(t).Annotations)

	// Fired again, it is another one.
	code, _ = s.post(t, wire.AlertsPath, webhook(alert("firing", "2025-11-21T12:09:00Z", zero, "")))
	require.Equal(t, 200, code)
	require.Len(t, s.find(t, "tag", "alert").Annotations, 2)
	require.Len(t, s.find(t, "tag", "firing").Annotations, 1)
}

// TestBadAlerts: of a notification that is not understood nothing is taken; of one with a bad alert the others are.
func TestBadAlerts(t *testing.T) {
	good := alert("firing", "2025-11-21T11:30:00Z", "", "")
	for name, c := range map[string]struct {
		body string
		code int
		says string
		kept int
	}{
		"no JSON":          {`alert!`, 400, "a notification of Alertmanager, which is an object", 0},
		"another version":  {strings.Replace(webhook(good), `"version":"4"`, `"version":"1"`, 1), 400, `the version of the notification is \"1\", want \"4\"`, 0},
		"no version":       {strings.Replace(webhook(good), `"version":"4",`, "", 1), 400, `the version of the notification is \"\"`, 0},
		"no alerts":        {`{"version":"4"}`, 400, "has no list of alerts", 0},
		"no fingerprint":   {webhook(strings.Replace(good, "fingerprint", "finger", 1), good), 200, "no fingerprint", 1},
		"no start":         {webhook(alert("firing", "0001-01-01T00:00:00Z", "", "")), 400, "is no time", 0},
		"a bad start":      {webhook(alert("firing", "soon", "", "")), 400, `startsAt \"soon\" is no time`, 0},
		"another status":   {webhook(alert("pending", "2025-11-21T11:30:00Z", "", "")), 400, "neither firing nor resolved", 0},
		"breaks off":       {webhook(good)[:400], 400, "the body ends in the middle", 0},
		"an end before it": {webhook(alert("resolved", "2025-11-21T11:30:00Z", "2025-11-21T11:00:00Z", "")), 200, "accepted", 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t)
			w := apitest.Send(t, s, wire.AlertsPath, strings.NewReader(c.body), "Content-Type", "application/json")
			require.Equal(t, c.code, w.Code, "%s", w.Body)
			require.Contains(t, w.Body.String(), c.says)
			require.Len(t, s.find(t).Annotations, c.kept)
		})
	}
}

// TestManyAlerts: 10,000 alerts come at once, and the operator learns of those that are rejected.
func TestManyAlerts(t *testing.T) {
	s := serve(t, func(o *api.Options) { o.Status = apitest.Status{} })
	all := make([]string, 10_000)
	for i := range all {
		all[i] = strings.Replace(alert("firing", "2025-11-21T11:30:00Z", "", ""), "c2f4a9e0b1d3e5f7", fmt.Sprintf("%016x", i), 1)
	}
	all[7] = `{}`
	code, reply := s.post(t, wire.AlertsPath, webhook(all...))
	require.Equal(t, 200, code, reply.Error)
	require.Len(t, reply.Accepted, 9_999)
	require.Equal(t, []wire.Rejection{{Index: 7, Reason: "invalid_annotation", Message: "the alert has no fingerprint"}}, reply.Rejected)
	require.Len(t, s.find(t, "limit", "10000").Annotations, 9_999)
	require.Contains(t, apitest.Unkept(t, s), "alert 7: the alert has no fingerprint")
}

// TestLongAlert: what is too long is cut, between two characters.
func TestLongAlert(t *testing.T) {
	s := serve(t)
	long := strings.Repeat("ä", 20_000)
	labels := make([]string, 100)
	for i := range labels {
		labels[i] = fmt.Sprintf(`"label_%02d":%q`, i, long)
	}
	code, reply := s.post(t, wire.AlertsPath, webhook(fmt.Sprintf(
		`{"status":"firing","labels":{%s},"annotations":{"summary":%q},"startsAt":"2025-11-21T11:30:00Z","fingerprint":"1"}`, strings.Join(labels, ","), long)))
	require.Equal(t, 200, code, reply)
	found := s.find(t).Annotations[0]
	require.Len(t, found.Tags, 64)
	require.True(t, utf8.ValidString(found.Text) && strings.HasSuffix(found.Text, "ä…"))
	require.LessOrEqual(t, len(found.Text), 16<<10)
	require.LessOrEqual(t, len(found.Tags[5]), 256)
}

// emptied returns a function that empties the store of a server, which is the same for all inputs of a fuzz test: to
// make one takes far longer than to answer.
func emptied(f *testing.F) func() *server {
	clk := clock.NewSimulated(apitest.Now)
	store := &struct{ annotations.Store }{}
	s := serveFrom(f, store, clk, func(o *api.Options) { o.Logger = slog.New(slog.DiscardHandler) }) // f has no output while an input is tried
	return func() *server {
		store.Store = apitest.Store(clk)
		return s
	}
}

// FuzzAlerts: whatever is sent, the server answers with what it means, and what it acknowledges is found.
func FuzzAlerts(f *testing.F) {
	f.Add(webhook(alert("firing", "2025-11-21T11:30:00Z", "0001-01-01T00:00:00Z", "")))
	f.Add(webhook(alert("resolved", "2025-11-21T11:30:00Z", "2025-11-21T12:07:00Z", `,"x":[{"a":null}]`), `{}`))
	f.Add(`{"version":"4","alerts":[{"status":"firing","fingerprint":"\ud800","startsAt":"9999-12-31T23:59:59Z","labels":{"\u0000":"a"}}]}`)
	empty := emptied(f)
	f.Fuzz(func(t *testing.T, body string) {
		s := empty()
		code, reply := s.post(t, wire.AlertsPath, body)
		require.Contains(t, []int{200, 400}, code)
		require.Equal(t, code == 400, reply.Error != "")
		ids := map[wire.AcceptedAnnotation]bool{}
		for _, a := range reply.Accepted {
			a.Index = 0
			ids[a] = true
		}
		require.Len(t, s.find(t, "start", "1970-01-01", "end", "9999-12-31T23:59:59.999Z").Annotations, len(ids))
	})
}

// FuzzAnnotations is the same for annotations.
func FuzzAnnotations(f *testing.F) {
	f.Add(`[{"text":"x","start":"-1h","tags":["a","b"]},{"id":"a","text":"\u00e4","end":1e12}]`)
	f.Add(`{"text":"x","moved_from":1,"id":"a","selector":"{a=~\"(\"}"}`)
	empty := emptied(f)
	f.Fuzz(func(t *testing.T, body string) {
		s := empty()
		code, reply := s.put(t, body)
		require.Contains(t, []int{200, 400}, code)
		require.Equal(t, code == 400, reply.Error != "")
		_ = s.find(t)
	})
}

// TestLinear: the work for a body grows with its length and no faster.
func TestLinear(t *testing.T) {
	for name, body := range map[string]func(n int) string{
		"tags":    func(n int) string { return `{"text":"x","tags":["a"` + strings.Repeat(`,"a"`, n/4) + `]}` },
		"escapes": func(n int) string { return `{"text":"` + strings.Repeat(`\u00e4`, n/6) + `"}` },
		"members": func(n int) string { return `{"text":"x"` + strings.Repeat(`,"x":0`, n/6) + `}` },
		"selectors": func(n int) string {
			return `[{"text":"x"}` + strings.Repeat(`,{"text":"x","selector":"{a=~\"(a*)*\"}"}`, min(n/41, 9000)) + `]`
		},
	} {
		t.Run(name, func(t *testing.T) {
			linear.Check(t, 64<<10, body, func(b string) { serve(t).put(t, b) })
		})
	}
}
