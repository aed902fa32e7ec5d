// Package webconfig reads the web config file: TLS, client certificates and users, in the format of Prometheus'
// programs (https://prometheus.io/docs/prometheus/latest/configuration/https/).
//
//  1. The file, and the files that it names, are read again while the process runs. What cannot be used as a whole
//     is not used at all: the process goes on with what it has.
//  2. A change takes no protection away: TLS and the demand for a client certificate end only with the process, and
//     so does the demand for a user's password where a certificate is not enough.
//  3. Only TLS 1.2 and later is offered, with ciphers that have forward secrecy and authenticate what they encrypt.
package webconfig

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	commonconfig "github.com/prometheus/common/config"
	"github.com/prometheus/exporter-toolkit/web"
	"go.yaml.in/yaml/v3"
	"golang.org/x/crypto/bcrypt"
	"golang.org/x/time/rate"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits/admission"
	"github.com/quern/quern/internal/limits/throttle"
)

const (
	// Every is the time between two looks at the files.
	Every = 5 * time.Second
	// soon is how long before its end a certificate is complained about, and sayEvery how often.
	soon     = 14 * 24 * time.Hour
	sayEvery = 6 * time.Hour
	// maxFileBytes bounds each file.
	maxFileBytes = 4 << 20
	// limitedClients bounds the clients that rate_limit remembers. Beyond it all are forgotten.
	limitedClients = 4096
)

// ciphers are those of TLS 1.2 that are offered. TLS 1.3 has no others.
var ciphers = []uint16{
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

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
	failed [sha256.Size]byte // what was last found unusable
	cache  passwords

	mu     sync.Mutex
	limits map[admission.Client]*rate.Limiter

	saysEnd *throttle.Throttle
	good    prometheus.Gauge
	reloads *prometheus.CounterVec
}

// content is what the files say. It does not change.
type content struct {
	digest  [sha256.Size]byte // of all files
	file    web.Config
	tls     *tls.Config // nil without TLS
	endMs   int64       // when the first certificate of the chain ends; 0 without TLS
	beginMs int64       // when the last one begins
	users   map[string]string
	// authorities are those that must have signed the clients' certificates, in DER.
	authorities map[string]bool
	// nobody is what the passwords of users who do not exist are compared with.
	nobody string
}

// Open reads a web config file.
func Open(path string, opts Options) (*Config, error) {
	c := &Config{path: path, opts: opts, saysEnd: throttle.New(opts.Clock, sayEvery), cache: newPasswords(), limits: make(map[admission.Client]*rate.Limiter)}
	in, err := c.read()
	if err != nil {
		return nil, err
	}
	first, err := in.parse(path)
	if err != nil {
		return nil, fmt.Errorf("--web.config.file %s: %w", path, err)
	}
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

// Watch looks at the files every few seconds until ctx is done, and at once when something is received from again.
func (c *Config) Watch(ctx context.Context, again <-chan os.Signal) {
	clock.Repeat(ctx, c.opts.Clock, Every, again, c.Reload)
}

// Reload reads the files, and uses them if they have changed and can be used. If somebody asked for it, it says so
// also if nothing has changed.
func (c *Config) Reload(asked bool) {
	defer c.lookAtEnd()
	in, err := c.read()
	switch {
	case err == nil && in.digest == c.now.Load().digest:
		c.failed = [sha256.Size]byte{}
		c.good.Set(1)
		if asked {
			c.opts.Logger.Info("web config file read again; nothing has changed", "file", c.path)
		}
		return
	case in.digest == c.failed && !asked:
		return
	}
	var next *content
	if err == nil {
		next, err = in.parse(c.path)
	}
	if err == nil {
		err = c.mayFollow(next)
	}
	if err != nil {
		c.failed = in.digest
		c.good.Set(0)
		c.reloads.WithLabelValues("failure").Inc()
		c.opts.Logger.Error("web config file cannot be used as it is now; the earlier one stays in use", "file", c.path, "err", err)
		return
	}
	c.failed = [sha256.Size]byte{}
	c.now.Store(next)
	c.good.Set(1)
	c.reloads.WithLabelValues("success").Inc()
	c.opts.Logger.Info("web config file read again", "file", c.path, "users", len(next.users))
}

// mayFollow returns why next must not replace what is in use.
func (c *Config) mayFollow(next *content) error {
	now := c.now.Load()
	nowMs := clock.NowMs(c.opts.Clock)
	switch {
	case (next.tls != nil) != (now.tls != nil):
		return errors.New("TLS can be turned on and off only by a restart")
	case now.CertificateRequired() && !next.CertificateRequired():
		return errors.New("only a restart can end the demand for client certificates")
	case len(now.users) > 0 && len(next.users) == 0 && next.takesCertificates():
		return errors.New("only a restart can take all users away where clients may have certificates: these would do for a login then")
	case next.file.HTTPConfig.HTTP2 != now.file.HTTPConfig.HTTP2, next.file.RateLimiterConfig != now.file.RateLimiterConfig:
		return errors.New("http2 and rate_limit can be changed only by a restart")
	case next.tls != nil && next.endMs <= nowMs && now.endMs > nowMs:
		return fmt.Errorf("the new certificate ended at %s", stamp(next.endMs))
	}
	return nil
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

// TLS returns the configuration of a listener, nil without TLS. A new connection gets what the files say then.
func (c *Config) TLS(protocols ...string) *tls.Config {
	if c.now.Load().tls == nil {
		return nil
	}
	var made atomic.Pointer[offer]
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			now := c.now.Load()
			if m := made.Load(); m != nil && m.of == now {
				return m.tls, nil
			}
			next := &offer{of: now, tls: now.tls.Clone()}
			next.tls.NextProtos = protocols
			made.Store(next)
			return next.tls, nil
		},
	}
}

// offer is the configuration of a listener for as long as the files stay as they are, so that clients can resume
// their TLS sessions.
type offer struct {
	of  *content
	tls *tls.Config
}

// HTTP2 returns whether HTTP/2 is offered over TLS.
func (c *Config) HTTP2() bool { return c.now.Load().file.HTTPConfig.HTTP2 }

// Headers returns the headers that every HTTP reply gets.
func (c *Config) Headers() map[string]string { return c.now.Load().file.HTTPConfig.Header }

// Allow returns false if the file's rate_limit allows no request of a client now. The limit is that of each client, so
// that none takes what is others'. Unknown clients are one.
func (c *Config) Allow(who admission.Client) bool {
	most := c.now.Load().file.RateLimiterConfig
	if most.Interval <= 0 {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.limits[who]
	if of == nil {
		if len(c.limits) >= limitedClients {
			clear(c.limits)
		}
		of = rate.NewLimiter(rate.Every(most.Interval), most.Burst)
		c.limits[who] = of
	}
	return of.AllowN(c.opts.Clock.Now(), 1)
}

// Admits returns whether the client of a connection could connect now. The files may have changed since it did: the
// authority that signed its certificate may be gone, or certificates may be demanded. state is nil without TLS.
func (c *Config) Admits(state *tls.ConnectionState) bool {
	now := c.now.Load()
	if state == nil || len(state.VerifiedChains) == 0 {
		return !now.CertificateRequired()
	}
	return slices.ContainsFunc(state.VerifiedChains, func(chain []*x509.Certificate) bool {
		return now.authorities[string(chain[len(chain)-1].Raw)]
	})
}

// CertificateRequired returns whether each client must have a certificate that the file's CA has signed.
func (c *Config) CertificateRequired() bool { return c.now.Load().CertificateRequired() }

// CertificateRequired is Config.CertificateRequired.
func (c *content) CertificateRequired() bool {
	return c.tls != nil && c.tls.ClientAuth == tls.RequireAndVerifyClientCert
}

// takesCertificates returns whether clients may show certificates. Without users these do for a login.
func (c *content) takesCertificates() bool {
	return c.tls != nil && c.tls.ClientAuth >= tls.VerifyClientCertIfGiven
}

// HasUsers returns whether the file has users.
func (c *Config) HasUsers() bool { return len(c.now.Load().users) > 0 }

// input is the content of all files, unchecked.
type input struct {
	digest        [sha256.Size]byte
	text          []byte
	cert, key, ca []byte // nil where the file names none
}

// read reads all files. The error, if any, has its digest too.
func (c *Config) read() (in input, err error) {
	sum := sha256.New()
	defer func() {
		if err != nil {
			_, _ = fmt.Fprintf(sum, "%v", err)
		}
		sum.Sum(in.digest[:0])
	}()
	take := func(path string) ([]byte, error) {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close() //nolint:errcheck // only read
		var text bytes.Buffer
		if _, err := text.ReadFrom(io.LimitReader(f, maxFileBytes+1)); err != nil {
			return nil, err
		}
		if text.Len() > maxFileBytes {
			return nil, fmt.Errorf("%s is larger than %d MiB", path, maxFileBytes>>20)
		}
		_, _ = fmt.Fprintf(sum, "%s %d\n", path, text.Len())
		_, _ = sum.Write(text.Bytes())
		return text.Bytes(), nil
	}
	if in.text, err = take(c.path); err != nil {
		return in, fmt.Errorf("--web.config.file: %w", err)
	}
	var names struct {
		TLS struct {
			Cert string `yaml:"cert_file"`
			Key  string `yaml:"key_file"`
			CA   string `yaml:"client_ca_file"`
		} `yaml:"tls_server_config"`
	}
	if yaml.Unmarshal(in.text, &names) != nil {
		return in, nil // parse says what is wrong
	}
	dir := filepath.Dir(c.path)
	for _, f := range []struct {
		name string
		to   *[]byte
	}{{names.TLS.Cert, &in.cert}, {names.TLS.Key, &in.key}, {names.TLS.CA, &in.ca}} {
		if f.name == "" {
			continue
		}
		if *f.to, err = take(commonconfig.JoinDir(dir, f.name)); err != nil {
			return in, fmt.Errorf("--web.config.file %s: %w", c.path, err)
		}
	}
	return in, nil
}

// parse checks what was read, as the toolkit of Prometheus' programs does, and more strictly where that takes what
// protects nobody.
func (in *input) parse(path string) (*content, error) {
	// The toolkit checks headers only here.
	if err := web.Validate(path); err != nil {
		return nil, err
	}
	out := &content{digest: in.digest, users: make(map[string]string)}
	out.file = web.Config{
		TLSConfig:  web.TLSConfig{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS13},
		HTTPConfig: web.HTTPConfig{HTTP2: true},
	}
	strict := yaml.NewDecoder(bytes.NewReader(in.text))
	strict.KnownFields(true)
	if err := strict.Decode(&out.file); err != nil && !errors.Is(err, io.EOF) { // an empty file is valid
		return nil, err
	}
	if err := out.parseUsers(); err != nil {
		return nil, err
	}
	return out, out.parseTLS(in)
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

func (c *content) parseTLS(in *input) error {
	conf := c.file.TLSConfig
	if !conf.IsEnabled() {
		return nil
	}
	// From memory, so that what was checked is what is used.
	if in.cert != nil {
		conf.TLSCert, conf.TLSCertPath = string(in.cert), ""
	}
	if in.key != nil {
		conf.TLSKey, conf.TLSKeyPath = commonconfig.Secret(in.key), ""
	}
	if in.ca != nil {
		conf.ClientCAsText, conf.ClientCAs = string(in.ca), ""
	}
	c.authorities = authoritiesIn([]byte(conf.ClientCAsText))
	made, err := web.ConfigToTLSConfig(&conf)
	if err != nil {
		return err
	}
	switch {
	case made.MinVersion < tls.VersionTLS12:
		return errors.New("min_version must be TLS12 or TLS13: earlier versions are broken")
	case made.MaxVersion < made.MinVersion:
		return errors.New("max_version must not be below min_version")
	case conf.ClientCAsText != "" && len(c.authorities) == 0:
		return errors.New("there is no certificate among those that must have signed the clients' (client_ca)")
	case made.ClientCAs == nil && (made.ClientAuth == tls.RequireAndVerifyClientCert || made.ClientAuth == tls.VerifyClientCertIfGiven):
		return errors.New("client_auth_type needs client_ca_file: otherwise any certificate that the system trusts would do")
	}
	for _, id := range made.CipherSuites {
		if !slices.Contains(ciphers, id) && !of13(id) {
			return fmt.Errorf("cipher_suites: %s is not sound; leave cipher_suites out", tls.CipherSuiteName(id))
		}
	}
	if len(made.CipherSuites) == 0 {
		made.CipherSuites = ciphers
	}
	cert, err := made.GetCertificate(nil)
	if err != nil {
		return err
	}
	made.Certificates, made.GetCertificate = []tls.Certificate{*cert}, nil
	for _, der := range cert.Certificate {
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

// authoritiesIn returns the certificates in a PEM text, as x509.CertPool.AppendCertsFromPEM takes them from it.
func authoritiesIn(text []byte) map[string]bool {
	all := make(map[string]bool)
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return all
		}
		if block.Type != "CERTIFICATE" || len(block.Headers) > 0 {
			continue
		}
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
			all[string(cert.Raw)] = true
		}
	}
}

// of13 returns whether a cipher is one of TLS 1.3.
func of13(id uint16) bool {
	for _, s := range tls.CipherSuites() {
		if s.ID == id {
			return slices.Contains(s.SupportedVersions, tls.VersionTLS13)
		}
	}
	return false
}
