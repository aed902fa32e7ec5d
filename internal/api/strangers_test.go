package api_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/protocol/respond"
)

func takesStrangers(o *api.Options) {
	takesAll(o)
	o.Extra = append(o.Extra, apitest.Registrar(func(to *route.Table) {
		to.HandleFunc(access.Anyone, route.NoData, "POST /enter", func(w http.ResponseWriter, r *http.Request) { respond.Text(w, 200, r.FormValue("x")) })
	}))
}

// TestFormsOfStrangers: a form to an endpoint that is open to all is small, must arrive in one window as a whole, and
// takes no memory from others. A GET has none.
func TestFormsOfStrangers(t *testing.T) {
	const form = "Content-Type: application/x-www-form-urlencoded\r\n"
	forms := limits.NewBudget(1<<30, 0)
	apitest.InBubble(t, func(o *api.Options) {
		takesStrangers(o)
		o.Forms = forms
	}, func(t *testing.T, dial func() net.Conn) {
		post := func(path, body string) (int, string) {
			conn := dial()
			go func() {
				_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n%s", path, form, len(body), body)
			}()
			return reply(t, conn)
		}
		code, body := post("/enter", "x=1")
		require.Equal(t, 200, code)
		require.Equal(t, "1", body)
		code, body = post("/enter", "x="+strings.Repeat("1", 4<<10))
		require.Equal(t, 413, code)
		require.Contains(t, body, "4096 bytes")
		code, _ = post("/form", "x="+strings.Repeat("1", 4<<10))
		require.Equal(t, 200, code)

		others := forms.Claim(limits.Client{})
		require.True(t, others.Grow(1<<30))
		code, _ = post("/form", "x=1")
		require.Equal(t, 429, code)
		code, _ = post("/enter", "x=1")
		require.Equal(t, 200, code)
		others.Release()

		// A byte now and then is no progress.
		conn, sent := dial(), make(chan struct{})
		go func() {
			defer close(sent)
			_, err := fmt.Fprintf(conn, "POST /enter HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: 1000\r\n\r\n", form)
			for err == nil {
				time.Sleep(time.Second)
				_, err = io.WriteString(conn, "x")
			}
		}()
		began := time.Now()
		code, _ = reply(t, conn)
		require.Equal(t, 408, code)
		require.Equal(t, 30*time.Second, time.Since(began), "by the clock of the bubble")
		require.NoError(t, conn.Close())
		<-sent

		// No handler reads the body of a GET.
		conn = dial()
		fmt.Fprintf(conn, "GET /-/healthy HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
		code, _ = reply(t, conn)
		require.Equal(t, 200, code)
	})
}
