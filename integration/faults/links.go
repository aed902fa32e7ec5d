package faults

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/process"
)

// Link is a proxy of this process's that connections lead through, and that they can suffer in.
type Link struct {
	t     testing.TB
	proxy *toxiproxy.Proxy
	addr  string
}

// NewLink starts to listen, at an address with a port, and leads on to another. It ends with the test.
func NewLink(t testing.TB, listen, to string) *Link {
	t.Helper()
	zerolog.SetGlobalLevel(zerolog.Disabled) // a toxic logs past the logger that it is given
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), zerolog.Nop())
	l := &Link{t: t, proxy: toxiproxy.NewProxy(server, listen, listen, to)}
	require.NoError(t, l.proxy.Start())
	l.addr = l.proxy.Listen
	t.Cleanup(func() { l.change("ended", func() error { l.proxy.Stop(); return nil }) })
	return l
}

// change fails the test when the proxy is not changed soon: for that it waits until the connections have passed on what
// they hold, and whom they lead to may not read.
func (l *Link) change(what string, do func() error) {
	var err error
	if late := process.Await(func() { err = do() }); late != nil {
		l.t.Errorf("the link at %s is not %s: %s", l.addr, what, late)
		return
	}
	assert.NoError(l.t, err, what)
}

// Addr is where it listens.
func (l *Link) Addr() string { return l.addr }

// LeadTo has it lead to another address. All its connections end.
func (l *Link) LeadTo(to string) {
	l.change("led to "+to, func() error {
		return l.proxy.Update(&toxiproxy.Proxy{Listen: l.addr, Upstream: to, Enabled: true})
	})
}

// toxic is something that a connection suffers from, in one direction or both.
type toxic struct {
	name, kind, attributes string
	directions             []string
}

const (
	requests = "upstream"
	answers  = "downstream"
)

var toxics = []toxic{
	{"slow", "latency", `{"latency": 250, "jitter": 200}`, []string{requests, answers}},
	{"narrow", "bandwidth", `{"rate": 8}`, []string{requests, answers}}, // KB/s
	// What is sent vanishes, and the connection stays until it is made good.
	{"half-open", "timeout", `{"timeout": 0}`, []string{requests, answers}},
	{"without answers", "timeout", `{"timeout": 0}`, []string{answers}},
	{"reset", "reset_peer", `{"timeout": 100}`, []string{requests}},
}

// LinkKinds are the kinds of things that can go wrong with connections: slow, narrow, half-open, without answers, reset.
func LinkKinds(name string, longest time.Duration, links []*Link) []Kind {
	var slots []string
	for i := range links {
		slots = append(slots, fmt.Sprintf("%s %d", name, i))
	}
	var out []Kind
	for _, x := range toxics {
		out = append(out, Kind{Name: name + " " + x.name, Slots: slots, Longest: longest, Inject: func(i int) func() {
			return links[i].suffer(x)
		}})
	}
	return out
}

func (l *Link) suffer(x toxic) (heal func()) {
	for _, d := range x.directions {
		l.change(x.name, func() error {
			_, err := l.proxy.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(
				`{"name": %q, "type": %q, "stream": %q, "attributes": %s}`, d, x.kind, d, x.attributes)))
			return err
		})
	}
	return func() {
		for _, d := range x.directions {
			l.change("as it was before it was "+x.name, func() error {
				return l.proxy.Toxics.RemoveToxic(context.Background(), d) // the test may be over
			})
		}
	}
}
