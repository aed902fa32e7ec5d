package apitest

import (
	"net"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/client/pipes"
	"github.com/quern/quern/internal/clock"
)

// InBubble runs a test with a server on connections that have no buffers: a write returns when the
// data has been read. Time advances only when everything is blocked; deadlines use it too.
func InBubble(t *testing.T, set func(*api.Options), test func(t *testing.T, dial func() net.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := Server(t, func(o *api.Options) {
			o.Clock = clock.System{}
			set(o)
		})
		l := pipes.Listen()
		srv := s.HTTPServer()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = srv.Serve(l)
		}()
		defer func() {
			require.NoError(t, srv.Close())
			<-ended
		}()
		test(t, func() net.Conn {
			c, err := l.Dial(t.Context(), "", "")
			require.NoError(t, err)
			t.Cleanup(func() { _ = c.Close() })
			return c
		})
	})
}
