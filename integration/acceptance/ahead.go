package acceptance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/storage/storagetest"
)

// testMarkAheadGrows: a flush that began while the clock was ahead adds a series to a late mark.
// The clock is put right, and a pass brings that mark back: it reads the mark before the flush has
// written it, and ends after that.
func testMarkAheadGrows(t *testing.T, b Backend) {
	skipIfClocksAreChecked(t, b)
	s := startAt(t, b, 8, 30)
	s.MustReport(s.point("A", 8, 10, 1), s.point("B", 8, 10, 1))
	s.setClock(10, 30)
	s.MustRun()
	const ahead = 3 * time.Hour
	s.Clock.Jump(ahead)
	s.MustReport(s.point("A", 8, 20, 7))
	read, written, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	s.Store.Add(storagetest.Rule{Op: "Write", Unfenced: true, Times: 1, Before: func() error { // the flush
		s.Clock.Jump(-ahead)
		go func() {
			_, err := s.engine.Runner.RunDue(t.Context())
			done <- err
		}()
		<-read
		return nil
	}})
	s.Store.Add(storagetest.Rule{Op: "Write", Unfenced: true, Times: 1, Before: func() error { // the pass
		close(read)
		<-written
		return nil
	}})
	s.MustReport(s.point("B", 8, 20, 7))
	close(written)
	require.NoError(t, <-done)
	s.DrainAndCheck()
}
