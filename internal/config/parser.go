package config

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/metric"
)

// parser reads flags and collects their mistakes.
type parser struct {
	c    *cli.Context
	errs []error
}

func (p *parser) add(err error) {
	if err != nil {
		p.errs = append(p.errs, err)
	}
}

func (p *parser) fail(flag, format string, args ...any) {
	p.add(fmt.Errorf("--%s %s: %s", flag, p.c.String(flag), fmt.Sprintf(format, args...)))
}

func (p *parser) within(flag string, low, high int) int {
	n := p.c.Int(flag)
	if n < low || n > high {
		p.add(fmt.Errorf("--%s %d: must be between %d and %d", flag, n, low, high))
	}
	return n
}

// required reads a text that must not be empty: an empty environment variable must not choose where
// data is stored or which port is opened.
func (p *parser) required(flag string) string {
	text := p.c.String(flag)
	if text == "" {
		p.add(fmt.Errorf("--%s: must not be empty", flag))
	}
	return text
}

// list reads words between commas; it may be empty.
func (p *parser) list(flag string) []string {
	var out []string
	for word := range strings.SplitSeq(p.c.String(flag), ",") {
		if word = strings.TrimSpace(word); word != "" {
			out = append(out, word)
		}
	}
	return out
}

func (p *parser) address(flag string) string {
	text := p.required(flag)
	if text == "" {
		return text
	}
	if _, port, err := net.SplitHostPort(text); err != nil || port == "" {
		p.fail(flag, "must be HOST:PORT, such as 127.0.0.1:9095, or :9095 for all addresses")
	}
	return text
}

// locked rejects an address that other machines reach, if nobody would have to log in there.
func (p *parser) locked(cfg *Config, flag, address string) {
	host, _, err := net.SplitHostPort(address)
	if err != nil || cfg.WebConfig != "" || cfg.Insecure || strings.EqualFold(host, "localhost") {
		return
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.Unmap().IsLoopback() {
		p.add(Exposed(flag, address))
	}
}

// Exposed is the error for an address on which strangers would be let in.
func Exposed(flag, address string) error {
	return fmt.Errorf("--%s %s: other machines reach this address, and nobody would have to log in: "+
		"give --web.config.file FILE with TLS and users (docs/security.md), listen on 127.0.0.1, or let everybody in with --insecure", flag, address)
}

// addresses reads a list of IP addresses and networks.
func (p *parser) addresses(flag string) []netip.Prefix {
	var out []netip.Prefix
	for _, word := range p.list(flag) {
		prefix, err := netip.ParsePrefix(word)
		if err != nil {
			var addr netip.Addr
			if addr, err = netip.ParseAddr(word); err == nil {
				prefix, err = addr.Prefix(addr.BitLen())
			}
		}
		if err != nil {
			p.fail(flag, "must be addresses such as 192.0.2.1 or 192.0.2.0/24, separated by commas")
			return nil
		}
		out = append(out, prefix)
	}
	return out
}

// expression reads a regular expression for a whole text, nil for none.
func (p *parser) expression(flag string) *regexp.Regexp {
	text := p.c.String(flag)
	if text == "" {
		return nil
	}
	re, err := regexp.Compile("^(?s:" + text + ")$")
	if err != nil {
		p.fail(flag, "%s", err)
	}
	return re
}

func (p *parser) span(flag string) time.Duration { return p.spanOf(flag, "", nil) }

func (p *parser) positive(flag string) time.Duration {
	return p.spanOf(flag, "must be more than 0", positive)
}

func positive(d time.Duration) bool { return d > 0 }

func notNegative(d time.Duration) bool { return d >= 0 }

func (p *parser) notNegative(flag string) time.Duration {
	return p.spanOf(flag, "must not be negative", notNegative)
}

// interval reads a span between times in Unix ms.
func (p *parser) interval(flag string) time.Duration {
	return p.spanOf(flag, "must be whole milliseconds, at least 1ms", func(d time.Duration) bool {
		return d >= time.Millisecond && d%time.Millisecond == 0
	})
}

// spanOf reads a span and checks it. The error says what it must be.
func (p *parser) spanOf(flag, must string, valid func(time.Duration) bool) time.Duration {
	d, err := metric.ParseSpan(p.c.String(flag))
	switch {
	case err != nil:
		p.fail(flag, "%s", err)
	case valid != nil && !valid(d):
		p.fail(flag, "%s", must)
	}
	return d
}

// oneOf reads one of a few words and ignores case.
func (p *parser) oneOf(flag string, words ...string) string {
	text := p.c.String(flag)
	for _, w := range words {
		if strings.EqualFold(w, text) {
			return w
		}
	}
	p.fail(flag, "must be %s or %s", strings.Join(words[:len(words)-1], ", "), words[len(words)-1])
	return ""
}

// made reads a number of Made, 0 if it is not given.
func (p *parser) made(flag string, high int) int {
	if !p.c.IsSet(flag) {
		return 0
	}
	return p.within(flag, 1, high)
}

func (p *parser) ladder() metric.Ladder {
	if !p.c.IsSet("rollups") {
		return metric.Ladder{}
	}
	l, err := metric.ParseLadder(p.c.String("rollups"))
	if err != nil {
		p.add(fmt.Errorf("--rollups: %w", err))
	}
	return l
}

func (p *parser) log() Log {
	var level slog.Level
	if err := level.UnmarshalText([]byte(p.c.String("log-level"))); err != nil {
		p.fail("log-level", "must be debug, info, warn or error")
	}
	return Log{LogLevel: level, LogFormat: p.oneOf("log-format", "text", "json")}
}
