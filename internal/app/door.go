package app

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/webconfig"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/documents/dashboard"
	"github.com/quern/quern/internal/protocol/respond"
)

// openWebConfig reads the web config file, if there is one.
func (s *server) openWebConfig() (err error) {
	if s.cfg.WebConfig == "" {
		return nil
	}
	s.web, err = webconfig.Open(s.cfg.WebConfig, webconfig.Options{Clock: s.clk, Logger: component(s.log, "web"), Metrics: s.metrics})
	return err
}

// openDashboards reads the directory of dashboards, if there is one.
func (s *server) openDashboards() (err error) {
	if s.cfg.Dashboards == "" {
		return nil
	}
	s.dashboards, err = dashboard.OpenFiles(s.cfg.Dashboards, dashboard.FilesOptions{
		Clock: s.clk, Logger: component(s.log, "dashboards"), Metrics: s.metrics,
	})
	return err
}

// lock says whom the server lets in. It returns an error if that would be strangers.
func (s *server) lock(l net.Listener) (access.Lock, error) {
	loopback := onLoopback(l)
	switch {
	case s.web != nil:
		return access.Locked, s.lockLines()
	case loopback && (s.lines == nil || onLoopback(s.lines) || s.cfg.Insecure):
		return access.Open, nil
	case s.cfg.Insecure:
		return access.Insecure, nil
	case loopback:
		return 0, config.Exposed("graphite-listen", s.cfg.GraphiteListen)
	}
	// Here a name has led to another address than it seemed to.
	return 0, config.Exposed("listen", s.cfg.Listen)
}

// lockLines returns an error if strangers could send Graphite's lines, which carry no password.
func (s *server) lockLines() error {
	if s.lines == nil || onLoopback(s.lines) || s.web.CertificateRequired() {
		return nil
	}
	return fmt.Errorf("--graphite-listen %s: other machines reach this address, and Graphite's lines carry no password: "+
		"demand client certificates in the web config file (client_auth_type: RequireAndVerifyClientCert), or listen on 127.0.0.1", s.cfg.GraphiteListen)
}

// awayFor returns why there is no store yet, for whoever asks. Strangers learn no names of machines.
func (s *server) awayFor() error {
	if s.web != nil {
		return errOpening
	}
	return s.away.get()
}

// scheme returns what the server's URL begins with.
func (s *server) scheme() string {
	if s.web != nil && s.web.TLS() != nil {
		return "https://"
	}
	return "http://"
}

// linesOverTLS adds TLS to the listener for Graphite's lines, if the web config has it.
func (s *server) linesOverTLS(l net.Listener) net.Listener {
	if s.web == nil {
		return l
	}
	if conf := s.web.TLS(); conf != nil {
		return tls.NewListener(l, conf)
	}
	return l
}

// onLoopback returns whether only this machine reaches a listener. The bound address decides, not a name.
func onLoopback(l net.Listener) bool {
	at, err := netip.ParseAddrPort(l.Addr().String())
	return err == nil && at.Addr().Unmap().IsLoopback()
}

// guarded adds what the web config file demands of every reply.
func (s *server) guarded(next http.Handler) http.Handler {
	if s.web == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range s.web.Headers() {
			w.Header().Set(name, value)
		}
		if !s.web.Allow(s.clients.ByAddress(r.RemoteAddr)) {
			w.Header().Set("Retry-After", respond.RetryBusy)
			respond.Error(w, http.StatusTooManyRequests, "more requests than the rate_limit of the web config file allows")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// serveOn answers on a listener, over TLS if the web config says so, until the server is shut down.
func (s *server) serveOn(web *http.Server, l net.Listener) error {
	if s.web == nil {
		return web.Serve(l)
	}
	protocols := []string{"http/1.1"}
	if s.web.HTTP2() {
		protocols = []string{"h2", "http/1.1"}
	} else {
		web.Protocols = new(http.Protocols)
		web.Protocols.SetHTTP1(true)
	}
	if web.TLSConfig = s.web.TLS(protocols...); web.TLSConfig == nil {
		return web.Serve(l)
	}
	return web.ServeTLS(l, "", "")
}
