package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/Shopify/toxiproxy/v2/toxics"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/process"
)

// Link is a proxy in this process that connections pass through, and that can disturb them.
type Link struct {
	t     testing.TB
	proxy *toxiproxy.Proxy
	addr  string
}

// NewLink starts a proxy that listens at an address with a port and leads to another address. It
// ends with the test.
func NewLink(t testing.TB, listen, to string) *Link {
	t.Helper()
	zerolog.SetGlobalLevel(zerolog.Disabled) // a toxic ignores the logger that it is given
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), zerolog.Nop())
	l := &Link{t: t, proxy: toxiproxy.NewProxy(server, listen, listen, to)}
	require.NoError(t, l.proxy.Start())
	l.addr = l.proxy.Listen
	t.Cleanup(func() { l.change("ended", func() error { l.proxy.Stop(); return nil }) })
	return l
}

// change applies a change to the proxy, and fails the test if that takes too long. The proxy waits
// until its connections have passed on what they hold, and their peer may not read.
func (l *Link) change(what string, do func() error) {
	var err error
	if late := process.Await(func() { err = do() }); late != nil {
		l.t.Errorf("the link at %s is not %s: %s", l.addr, what, late)
		return
	}
	assert.NoError(l.t, err, what)
}

// Addr returns the address at which the proxy listens.
func (l *Link) Addr() string { return l.addr }

// LeadTo makes the proxy lead to another address. All its connections end.
func (l *Link) LeadTo(to string) {
	l.change("led to "+to, func() error {
		return l.proxy.Update(&toxiproxy.Proxy{Listen: l.addr, Upstream: to, Enabled: true})
	})
}

// toxic is a disturbance of connections, in one direction or both.
type toxic struct {
	name, kind, attributes string
	directions             []string
}

const (
	requests = "upstream"
	answers  = "downstream"
)

var kindsOfLinks = []toxic{
	{"slow", "latency", `{"latency": 250, "jitter": 200}`, []string{requests, answers}},
	{"late", "latency", `{"latency": 2000}`, []string{answers}},
	{"lossy", loss, `{}`, []string{requests, answers}},
	{"narrow", "bandwidth", `{"rate": 8}`, []string{requests, answers}}, // KB/s
	// Sent data vanishes, and the connection stays open until heal.
	{"half-open", "timeout", `{"timeout": 0}`, []string{requests, answers}},
	{"without answers", "timeout", `{"timeout": 0}`, []string{answers}},
	{"reset", "reset_peer", `{"timeout": 100}`, []string{requests}},
}

// LinkKinds returns the kinds of disturbances of connections: slow, late, lossy, narrow, half-open,
// without answers, reset.
func LinkKinds(name string, longest time.Duration, links []*Link) []Kind {
	var slots []string
	for i := range links {
		slots = append(slots, fmt.Sprintf("%s %d", name, i))
	}
	var out []Kind
	for _, x := range kindsOfLinks {
		out = append(out, Kind{Name: name + " " + x.name, Slots: slots, Longest: longest, Inject: func(i int) func() {
			return links[i].suffer(x)
		}})
	}
	return out
}

// Suffer disturbs the connections with one of those kinds until heal.
func (l *Link) Suffer(name string) (heal func()) {
	i := slices.IndexFunc(kindsOfLinks, func(x toxic) bool { return x.name == name })
	return l.suffer(kindsOfLinks[i])
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

const loss = "loss"

func init() { toxics.Register(loss, new(lossToxic)) }

// lossToxic simulates a network that loses one packet in ten, as users of TCP see it: a lost packet
// is held up until it is sent again, and so is everything after it.
type lossToxic struct{}

// sentAgain is the minimum time after which Linux sends an unacknowledged packet again.
const sentAgain = 200 * time.Millisecond

// GetBufferSize implements toxics.BufferedToxic.
func (*lossToxic) GetBufferSize() int { return 1024 }

// Pipe implements toxics.Toxic.
func (*lossToxic) Pipe(stub *toxics.ToxicStub) {
	for {
		select {
		case <-stub.Interrupt:
			return
		case c := <-stub.Input:
			if c == nil {
				stub.Close()
				return
			}
			for wait := sentAgain; rand.IntN(10) == 0; wait *= 2 {
				select {
				case <-time.After(wait):
					continue
				case <-stub.Interrupt:
					stub.Output <- c
					return
				}
			}
			stub.Output <- c
		}
	}
}
