package app

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/access"
)

// TestRolesOfDocuments: who may read, add, replace and delete what people keep, by role. Who changes it is logged.
func TestRolesOfDocuments(t *testing.T) {
	const (
		dashboard = `{"format":1,"title":"T ID","panels":[]}`
		group     = `{"name":"G ID","metrics":["m"],"sources":[]}`
		note      = `{"id":"ID","start":1763726400,"text":"of ID"}`
		alerts    = `{"version":"4","alerts":[{"status":"firing","fingerprint":"ID","startsAt":"2025-11-21T12:00:00Z","labels":{"alertname":"ID"}}]}`
	)
	var log bytes.Buffer
	s, _ := lockedServer(t, servesTLS)
	s.log = slog.New(slog.NewTextHandler(&log, nil))
	_, stop := running(t, s)
	server := &boundServer{t, s}
	roles := []access.Role{0, access.Read, access.Write, access.Read | access.Write, access.Admin}
	tokens := []string{"none"}
	for _, role := range roles[1:] {
		tokens = append(tokens, server.token(access.NewToken{Roles: role}))
	}
	admin := tokens[len(tokens)-1]
	// Each token has what is there to itself. ID stands for its id.
	for i := range tokens {
		for path, body := range map[string]string{
			"PUT /api/v1/dashboards/ID?base=0": dashboard, "PUT /api/v1/groups/ID?base=0": group,
			"POST /api/v1/annotations": note, "POST /api/v1/annotations/alertmanager": alerts,
		} {
			method, path, _ := strings.Cut(path, " ")
			id := fmt.Sprint("old-", i)
			w := server.send(admin, method, strings.ReplaceAll(path, "ID", id), strings.ReplaceAll(body, "ID", id), "Content-Type", "application/json")
			require.Equal(t, 200, w.Code, w.Body)
		}
	}
	const anyone, reads, adds, edits = "200 200 200 200 200", "401 200 403 200 200", "401 403 200 200 200", "401 403 403 200 200"
	steps := []struct{ request, id, body, codes string }{
		{"GET /api/v1/login", "", "", anyone},
		{"GET /api/v1/dashboards/ID", "old", "", reads},
		{"GET /api/v1/groups/ID", "old", "", reads},
		{"GET /api/v1/annotations", "old", "", reads},
		{"PUT /api/v1/dashboards/ID?base=0", "new", dashboard, edits},
		{"PUT /api/v1/dashboards/ID?base=1", "old", strings.Replace(dashboard, "T", "U", 1), edits},
		{"DELETE /api/v1/dashboards/ID?base=2", "old", "", edits},
		{"PUT /api/v1/groups/ID?base=0", "new", group, edits},
		{"PUT /api/v1/groups/ID?base=1", "old", strings.Replace(group, "G", "H", 1), edits},
		{"DELETE /api/v1/groups/ID?base=2", "old", "", edits},
		{"POST /api/v1/annotations", "new", note, adds},
		{"POST /api/v1/annotations", "new", note, adds}, // once more, as after a time-out
		{"POST /api/v1/annotations", "new", strings.Replace(note, `"text"`, `"end":1763726401,"text"`, 1), edits},
		{"POST /api/v1/annotations", "old", note, edits},
		{"POST /api/v1/annotations", "old", strings.Replace(note, `"start":1763726400`, `"start":1763726500,"moved_from":1763726400`, 1), edits},
		{"DELETE /api/v1/annotations?id=ID&start=1763726500", "old", "", edits},
		{"POST /api/v1/annotations/alertmanager", "new", alerts, adds},
		{"POST /api/v1/annotations/alertmanager", "new", strings.Replace(alerts, "firing", "resolved", 1), adds}, // it has ended
		{"POST /api/v1/annotations/alertmanager", "old", alerts, edits},
		{"POST /api/v1/reports", "", `[{"source":"a","measurements":[{"metric":"m","value":1}]}]`, adds},
		{"GET /api/v1/tokens", "", "", "401 403 403 403 200"},
	}
	for _, step := range steps {
		var codes []string
		for i, token := range tokens {
			method, path, _ := strings.Cut(step.request, " ")
			id := fmt.Sprint(step.id, "-", i)
			headers := []string{"Content-Type", "application/json"}
			if i == 0 {
				headers = append(headers, "Authorization", "")
			}
			w := server.send(token, method, strings.ReplaceAll(path, "ID", id), strings.ReplaceAll(step.body, "ID", id), headers...)
			codes = append(codes, fmt.Sprint(w.Code))
			if w.Code == http.StatusForbidden && step.codes == edits {
				require.Contains(t, w.Body.String(), "the role", step)
			}
		}
		require.Equal(t, step.codes, strings.Join(codes, " "), step)
	}
	stop()

	lines := make(map[string]int)
	for line := range strings.Lines(log.String()) {
		if _, rest, ok := strings.Cut(line, "component=audit "); ok && strings.Contains(rest, "outcome=done") && !strings.Contains(rest, "/tokens") {
			_, action, _ := strings.Cut(rest, `action="`)
			action, _, _ = strings.Cut(action, `"`)
			lines[action]++
		}
	}
	n := len(tokens)
	require.Equal(t, map[string]int{
		"PUT /api/v1/dashboards/{id}": n + 2*2, "DELETE /api/v1/dashboards/{id}": 2, "PUT /api/v1/groups/{id}": n + 2*2, "DELETE /api/v1/groups/{id}": 2,
		"POST /api/v1/annotations": 5, "DELETE /api/v1/annotations": 2, "POST /api/v1/annotations/alertmanager": 1,
	}, lines)
	require.Contains(t, log.String(), `path=/api/v1/dashboards/old-3 query="base=1"`)
	require.Contains(t, log.String(), `action="POST /api/v1/annotations" outcome=done code=200 replaced_or_moved=1 first=old-3`)
}
