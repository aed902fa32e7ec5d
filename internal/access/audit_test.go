package access_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/clock"
)

// TestAuditMasksSecrets: a line shows which token a text has, but not the secret, also if the text is a form or breaks off
// within the secret. Other texts are as they were sent.
func TestAuditMasksSecrets(t *testing.T) {
	e := newEntrance(t, access.Locked)
	token, text := e.create(access.NewToken{Name: "web-1", Roles: access.Write})
	secret := strings.TrimPrefix(text, "quern_"+token.ID+"_")
	var log bytes.Buffer
	audit := access.NewAudit(slog.New(slog.NewTextHandler(&log, nil)), clock.System{}, nil)
	for sent, want := range map[string]string{
		"id=" + text:                "id=quern_" + token.ID + "_…",
		"id=" + text[:len(text)-20]: "id=quern_" + token.ID + "_…",
		"id=" + strings.ReplaceAll(text, "_", "%5f"): "id=quern%5f" + token.ID + "%5f…",
		"a=1&password=" + secret + "&b=2":            "a=1&password=…&b=2",
		"p=" + secret:                                "p=…",
		strings.Repeat("x", 460) + text:              "_…",
		"match[]=quern_http_requests_total{}":        "match[]=quern_http_requests_total{}",
		"map=1&top=2&id=" + token.ID:                 "map=1&top=2&id=" + token.ID,
	} {
		log.Reset()
		audit.Did(e.request(far), access.Grant{}, "POST /x", 200, "form", sent)
		require.Contains(t, log.String(), want)
		require.NotContains(t, log.String(), secret[:12])
	}
	log.Reset()
	audit.Failed(e.request(far), text, "wrong")
	require.Contains(t, log.String(), token.ID)
	require.NotContains(t, log.String(), secret[:12])
}
