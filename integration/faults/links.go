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
)

// Link is a proxy of this process's that connections lead through, and that they can suffer in.
type Link struct {
	t     testing.TB
	proxy *toxiproxy.Proxy
}

// NewLink starts to listen, at an address with a port, and leads on to another. It ends with the test.
func NewLink(t testing.TB, listen, to string) *Link {
	t.Helper()
	zerolog.SetGlobalLevel(zerolog.Disabled) // a toxic logs past the logger that it is given
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), zerolog.Nop())
	l := &Link{t, toxiproxy.NewProxy(server, listen, listen, to)}
	require.NoError(t, l.proxy.Start())
	t.Cleanup(l.proxy.Stop)
	return l
}

// Addr is where it listens.
func (l *Link) Addr() string { return l.proxy.Listen }

// LeadTo has it lead to another address. All its connections end.
func (l *Link) LeadTo(to string) {
	assert.NoError(l.t, l.proxy.Update(&toxiproxy.Proxy{Listen: l.proxy.Listen, Upstream: to, Enabled: true}))
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
		_, err := l.proxy.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(
			`{"name": %q, "type": %q, "stream": %q, "attributes": %s}`, d, x.kind, d, x.attributes)))
		assert.NoError(l.t, err)
	}
	return func() {
		for _, d := range x.directions {
			// The test may be over.
			assert.NoError(l.t, l.proxy.Toxics.RemoveToxic(context.Background(), d))
		}
	}
}
