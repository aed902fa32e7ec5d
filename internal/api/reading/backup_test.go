package reading_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/api/reading"
	"github.com/quern/quern/internal/operate/backup"
	"github.com/quern/quern/internal/wire"
)

type slowStore struct{ asked, answer chan struct{} }

func (s slowStore) Checkpoint(context.Context) (dir, store string, schema int, err error) {
	close(s.asked)
	<-s.answer
	return "", "", 0, errors.New("no room")
}

func (s slowStore) RemoveCheckpoint() error { return nil }

// TestSecondBackup: while a backup runs, a second one is answered with 409.
func TestSecondBackup(t *testing.T) {
	st := slowStore{make(chan struct{}), make(chan struct{})}
	table := route.NewTable()
	reading.NewOperate(reading.OperateOptions{Backups: &backup.Maker{Store: st, Place: t.TempDir()}}).Register(table)
	post := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		table.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, wire.BackupPath, nil))
		return w
	}
	first := make(chan *httptest.ResponseRecorder, 1)
	go func() { first <- post() }()
	<-st.asked
	w := post()
	require.Equal(t, http.StatusConflict, w.Code)
	require.Contains(t, w.Body.String(), "a backup is running")
	close(st.answer)
	w = <-first
	require.Equal(t, http.StatusInternalServerError, w.Code)
	require.Contains(t, w.Body.String(), "no room")
}
