// Package webconfig reads the web config file: TLS, client certificates and users, in the format of Prometheus'
// programs (https://prometheus.io/docs/prometheus/latest/configuration/https/).
//
//  1. The file, and the files that it names, are read again while the process runs. What cannot be used as a whole
//     is not used at all: the process goes on with what it has.
//  2. Users, headers and the server's certificate change while the process runs. All else changes only by a restart, so no
//     protection is taken away, and no connection lasts that could not be made now.
//  3. Only TLS 1.2 and later is offered, with ciphers that have forward secrecy and authenticate what they encrypt.
package webconfig

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	commonconfig "github.com/prometheus/common/config"
	"github.com/prometheus/exporter-toolkit/web"
	"go.yaml.in/yaml/v3"
	"golang.org/x/crypto/bcrypt"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
)

const (
	// soon is how long before its end a certificate is complained about, and sayEvery how often.
	soon     = 14 * 24 * time.Hour
	sayEvery = 6 * time.Hour
)

// ciphers are those of TLS 1.2 that are offered, and ciphers13 all of TLS 1.3.
var (
	ciphers = []uint16{
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
		tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
	}
	ciphers13 = []uint16{tls.TLS_AES_128_GCM_SHA256, tls.TLS_AES_256_GCM_SHA384, tls.TLS_CHACHA20_POLY1305_SHA256}
)

// Options configure a Config. All are required but Metrics.
type Options struct {
	Clock   clock.Clock
	Logger  *slog.Logger
	Metrics prometheus.Registerer
}

// Config is a web config file that is in use.
type Config struct {
	path   string
	opts   Options
	now    atomic.Pointer[content]
	failed string // why the files could not be used the last time
	cache  passwords

	requests limits.Meters[limits.Client]
	saysEnd  *limits.Throttle
	good     prometheus.Gauge
	reloads  *prometheus.CounterVec
}

// content is what the files say. It does not change.
type content struct {
	digest  [sha256.Size]byte // of all files
	file    web.Config        // with the texts of the files that it names
	tls     *tls.Config       // nil without TLS
	cert    *tls.Certificate
	endMs   int64 // when the first certificate of the chain ends; 0 without TLS
	beginMs int64 // when the last one begins
	users   map[string]string
	// nobody is what the passwords of users who do not exist are compared with.
	nobody string
}

// Open reads a web config file.
func Open(path string, opts Options) (*Config, error) {
	first, err := load(path)
	if err != nil {
		return nil, fmt.Errorf("--web.config.file %s: %w", path, err)
	}
	c := &Config{path: path, opts: opts, saysEnd: limits.NewThrottle(opts.Clock, sayEvery), cache: newPasswords()}
	c.now.Store(first)
	c.register()
	c.lookAtEnd()
	return c, nil
}

func (c *Config) register() {
	f := promauto.With(c.opts.Metrics)
	c.good = f.NewGauge(prometheus.GaugeOpts{
		Name: "quern_web_config_last_reload_successful",
		Help: "Whether the web config file and the files that it names can be used as they are now; if not, earlier ones are in use.",
	})
	c.good.Set(1)
	c.reloads = f.NewCounterVec(prometheus.CounterOpts{
		Name: "quern_web_config_reloads_total",
		Help: "Changes of the web config file or the files that it names, by outcome.",
	}, []string{"outcome"})
	c.reloads.WithLabelValues("success")
	c.reloads.WithLabelValues("failure")
	if c.now.Load().tls != nil {
		f.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "quern_tls_certificate_not_after_timestamp_seconds",
			Help: "Unix time at which the server's certificate, or the first of its chain, ends.",
		}, func() float64 { return float64(c.now.Load().endMs) / 1000 })
	}
}

// Reload reads the files, and uses them if they have changed and can be used; if not, the error says why. Reload is called
// by one goroutine at a time.
func (c *Config) Reload() error {
	defer c.lookAtEnd()
	next, err := load(c.path)
	if err == nil && next.digest != c.now.Load().digest {
		err = c.mayFollow(next)
	}
	if err != nil {
		if err.Error() != c.failed {
			c.good.Set(0)
			c.reloads.WithLabelValues("failure").Inc()
			c.opts.Logger.Error("web config file cannot be used as it is now; the earlier one stays in use", "file", c.path, "err", err)
		}
		c.failed = err.Error()
		return fmt.Errorf("--web.config.file %s: %w", c.path, err)
	}
	c.failed = ""
	c.good.Set(1)
	if next.digest != c.now.Load().digest {
		c.now.Store(next)
		c.reloads.WithLabelValues("success").Inc()
		c.opts.Logger.Info("web config file read again", "file", c.path, "users", len(next.users))
	}
	return nil
}

// mayFollow returns why next must not replace what is in use.
func (c *Config) mayFollow(next *content) error {
	now, nowMs := c.now.Load(), clock.NowMs(c.opts.Clock)
	switch {
	case (now.tls == nil) != (next.tls == nil), !reflect.DeepEqual(now.lasting(), next.lasting()):
		return errors.New("only users, headers and the server's certificate can be changed without a restart")
	case len(now.users) > 0 && len(next.users) == 0:
		return errors.New("only a restart can take all users away: without users, client certificates do for a login")
	case next.tls != nil && next.endMs <= nowMs && now.endMs > nowMs:
		return fmt.Errorf("the new certificate ended at %s", stamp(next.endMs))
	}
	return nil
}

// lasting returns what changes only by a restart.
func (c *content) lasting() web.Config {
	lasting := c.file
	lasting.Users, lasting.HTTPConfig.Header = nil, nil
	lasting.TLSConfig.TLSCert, lasting.TLSConfig.TLSKey = "", ""
	return lasting
}

// lookAtEnd says now and then that the certificate is not valid, or not for long.
func (c *Config) lookAtEnd() {
	now, nowMs := c.now.Load(), clock.NowMs(c.opts.Clock)
	if now.tls == nil || nowMs >= now.beginMs && nowMs < now.endMs-soon.Milliseconds() {
		return
	}
	if _, pass := c.saysEnd.Pass(); !pass {
		return
	}
	switch {
	case nowMs < now.beginMs:
		c.opts.Logger.Error("TLS certificate is not valid yet by this machine's clock; clients refuse it", "not_before", stamp(now.beginMs))
	case nowMs >= now.endMs:
		c.opts.Logger.Error("TLS certificate has expired; clients refuse it until its file is replaced", "not_after", stamp(now.endMs))
	default:
		c.opts.Logger.Warn("TLS certificate expires soon; replace its file, no restart is needed", "not_after", stamp(now.endMs))
	}
}

func stamp(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }

// TLS returns the configuration of a listener, nil without TLS. A new connection gets the certificate that the files have
// then.
func (c *Config) TLS(protocols ...string) *tls.Config {
	now := c.now.Load()
	if now.tls == nil {
		return nil
	}
	out := now.tls.Clone()
	out.NextProtos = protocols
	out.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.now.Load().cert, nil }
	return out
}

// HTTP2 returns whether HTTP/2 is offered over TLS.
func (c *Config) HTTP2() bool { return c.now.Load().file.HTTPConfig.HTTP2 }

// Headers returns the headers that every HTTP reply gets.
func (c *Config) Headers() map[string]string { return c.now.Load().file.HTTPConfig.Header }

// Allow returns whether the file's rate_limit allows a request of a client now. Each client has the limit for itself.
// All unknown clients share one.
func (c *Config) Allow(who limits.Client) bool {
	most := c.now.Load().file.RateLimiterConfig
	if most.Interval <= 0 {
		return true
	}
	return c.requests.Get(who, most.Interval, most.Burst).AllowN(c.opts.Clock.Now(), 1)
}

// CertificateRequired returns whether each client must have a certificate that the file's CA has signed.
func (c *Config) CertificateRequired() bool {
	now := c.now.Load()
	return now.tls != nil && now.tls.ClientAuth == tls.RequireAndVerifyClientCert
}

// HasUsers returns whether the file has users.
func (c *Config) HasUsers() bool { return len(c.now.Load().users) > 0 }

// load reads all files, and checks them as the toolkit of Prometheus' programs does, and more strictly where that takes
// what protects nobody.
func load(path string) (*content, error) {
	// The toolkit checks headers only here.
	if err := web.Validate(path); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c := &content{users: make(map[string]string), file: web.Config{
		TLSConfig:  web.TLSConfig{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS13},
		HTTPConfig: web.HTTPConfig{HTTP2: true},
	}}
	strict := yaml.NewDecoder(bytes.NewReader(text))
	strict.KnownFields(true)
	if err := strict.Decode(&c.file); err != nil && !errors.Is(err, io.EOF) { // an empty file is valid
		return nil, err
	}
	conf := &c.file.TLSConfig
	sum := sha256.New()
	_, _ = sum.Write(text)
	// From memory, so that what is checked is what is used.
	for _, named := range []struct {
		path *string
		set  func(text []byte)
	}{
		{&conf.TLSCertPath, func(text []byte) { conf.TLSCert = string(text) }},
		{&conf.TLSKeyPath, func(text []byte) { conf.TLSKey = commonconfig.Secret(text) }},
		{&conf.ClientCAs, func(text []byte) { conf.ClientCAsText = string(text) }},
	} {
		if *named.path == "" {
			continue
		}
		text, err := os.ReadFile(commonconfig.JoinDir(filepath.Dir(path), *named.path))
		if err != nil {
			return nil, err
		}
		_, _ = fmt.Fprintf(sum, "\n%d\n%s", len(text), text)
		named.set(text)
		*named.path = ""
	}
	sum.Sum(c.digest[:0])
	if err := c.parseUsers(); err != nil {
		return nil, err
	}
	return c, c.parseTLS()
}

func (c *content) parseUsers() error {
	cost := bcrypt.MinCost
	for _, name := range slices.Sorted(maps.Keys(c.file.Users)) {
		hash := string(c.file.Users[name])
		n, err := bcrypt.Cost([]byte(hash))
		if err != nil {
			return fmt.Errorf("the password of user %q: %w", name, err)
		}
		cost = max(cost, n)
		c.users[name] = hash
	}
	c.nobody = hashOfNobody(cost)
	return nil
}

func (c *content) parseTLS() error {
	conf := c.file.TLSConfig
	if !conf.IsEnabled() {
		return nil
	}
	made, err := web.ConfigToTLSConfig(&conf)
	if err != nil {
		return err
	}
	switch {
	case made.MinVersion < tls.VersionTLS12:
		return errors.New("min_version must be TLS12 or TLS13: earlier versions are broken")
	case made.MaxVersion < made.MinVersion:
		return errors.New("max_version must not be below min_version")
	case conf.ClientCAsText != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(conf.ClientCAsText)):
		return errors.New("there is no certificate among those that must have signed the clients' (client_ca)")
	case made.ClientCAs == nil && (made.ClientAuth == tls.RequireAndVerifyClientCert || made.ClientAuth == tls.VerifyClientCertIfGiven):
		return errors.New("client_auth_type needs client_ca_file: otherwise any certificate that the system trusts would do")
	}
	for _, id := range made.CipherSuites {
		if !slices.Contains(ciphers, id) && !slices.Contains(ciphers13, id) {
			return fmt.Errorf("cipher_suites: %s is not sound; leave cipher_suites out", tls.CipherSuiteName(id))
		}
	}
	if len(made.CipherSuites) == 0 {
		made.CipherSuites = ciphers
	}
	if c.cert, err = made.GetCertificate(nil); err != nil {
		return err
	}
	for _, der := range c.cert.Certificate {
		one, err := x509.ParseCertificate(der)
		if err != nil {
			return err
		}
		if end := one.NotAfter.UnixMilli(); c.endMs == 0 || end < c.endMs {
			c.endMs = end
		}
		c.beginMs = max(c.beginMs, one.NotBefore.UnixMilli())
	}
	c.tls = made
	return nil
}
