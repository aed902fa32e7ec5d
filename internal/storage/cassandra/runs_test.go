package cassandra

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// failingReads is a session whose reads fail.
type failingReads struct {
	session
	err error
}

func (f failingReads) page(context.Context, statement, int, []byte, any) ([]byte, error) {
	return nil, f.err
}

// A bucket that is out of reach is a gap. Any other error is none.
func TestSlicesOutOfReach(t *testing.T) {
	for _, away := range []error{storage.ErrUnavailable, storage.ErrTimeout} {
		_, err := storeOver(t, failingReads{err: away}).Slices(t.Context(), 1, 5, 9)
		var gaps *storage.GapsError
		require.ErrorAs(t, err, &gaps)
		require.Equal(t, []storage.Gap{{Bucket: 1, FromMs: 5, ToMs: 9, Err: away}}, gaps.Gaps)
	}
	_, err := storeOver(t, failingReads{err: storage.ErrCorrupt}).Slices(t.Context(), metric.Raw, 5, 9)
	require.ErrorIs(t, err, storage.ErrCorrupt)
	require.NotErrorAs(t, err, new(*storage.GapsError))
}
