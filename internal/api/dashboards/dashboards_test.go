package dashboards_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/admission"
	"github.com/quern/quern/internal/api/dashboards"
	"github.com/quern/quern/internal/api/route"
	"github.com/quern/quern/internal/dashboard"
	"github.com/quern/quern/internal/wire"
)

// TestConvertIsBounded: a conversion waits for a turn, and its memory is charged, however small the text is.
func TestConvertIsBounded(t *testing.T) {
	library, err := dashboard.NewLibrary(dashboard.Options{})
	require.NoError(t, err)
	turns := admission.NewTurns(admission.TurnOptions{N: 1, Name: "queries", Clients: admission.NewClients(nil)})
	table := route.NewTable()
	dashboards.New(library, turns).Register(table)
	convert := func(ctx context.Context) int {
		w := httptest.NewRecorder()
		table.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, wire.ConvertPath, strings.NewReader(`{"panels":[]}`)))
		return w.Code
	}
	require.Equal(t, http.StatusOK, convert(t.Context()))

	give, err := turns.Take(t.Context(), "192.0.2.1:1")
	require.NoError(t, err)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	require.NotEqual(t, http.StatusOK, convert(gone), "all turns are taken")
	give()
	require.Equal(t, http.StatusOK, convert(t.Context()))

	claim := admission.NewBudget(1<<20, 1<<19).Claim(admission.Client{})
	require.Equal(t, http.StatusTooManyRequests, convert(admission.WithClaim(t.Context(), &claim)))
	claim.Release()
}
