package pipes

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestListener(t *testing.T) {
	l := Listen()
	written := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = io.WriteString(c, "hello")
			err = errors.Join(err, c.Close())
		}
		written <- err
	}()
	c, err := l.Dial(t.Context(), "tcp", "anywhere:1")
	require.NoError(t, err)
	heard, err := io.ReadAll(c)
	require.NoError(t, err)
	require.NoError(t, <-written)
	require.Equal(t, "hello", string(heard))

	gone, stop := context.WithCancelCause(t.Context())
	why := errors.New("gave up")
	stop(why)
	_, err = l.Dial(gone, "", "")
	require.ErrorIs(t, err, why, "nobody accepts")

	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	_, err = l.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = l.Dial(t.Context(), "", "")
	require.ErrorIs(t, err, net.ErrClosed)
}
