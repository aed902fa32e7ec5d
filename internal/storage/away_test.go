package storage

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
)

var errAway = fmt.Errorf("nobody at home: %w", ErrUnavailable)

func TestWhileAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var at, waits []time.Duration
		try := func(context.Context) error {
			at = append(at, time.Since(begin))
			if len(at) < 8 {
				return errAway
			}
			return nil
		}
		tell := func(err error, wait time.Duration) {
			assert.ErrorIs(t, err, errAway)
			waits = append(waits, wait/time.Second)
		}
		require.NoError(t, WhileAway(t.Context(), clock.System{}, try, tell))
		assert.Equal(t, []time.Duration{1, 2, 4, 8, 16, 30, 30}, waits)
		assert.Equal(t, 91*time.Second, at[7])

		refusal := errors.New("another ladder")
		require.ErrorIs(t, WhileAway(t.Context(), clock.System{}, func(context.Context) error { return refusal }, nil), refusal)

		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		begin = time.Now()
		err := WhileAway(ctx, clock.System{}, func(context.Context) error { return errAway }, func(error, time.Duration) {})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 10*time.Second, time.Since(begin), "in the middle of a wait")
	})
}
