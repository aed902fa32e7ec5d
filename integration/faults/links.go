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

var kindsOfLinks = []toxic{
	{"slow", "latency", `{"latency": 250, "jitter": 200}`, []string{requests, answers}},
	{"late", "latency", `{"latency": 2000}`, []string{answers}},
	{"lossy", loss, `{}`, []string{requests, answers}},
	{"narrow", "bandwidth", `{"rate": 8}`, []string{requests, answers}}, // KB/s
	// What is sent vanishes, and the connection stays until it is made good.
	{"half-open", "timeout", `{"timeout": 0}`, []string{requests, answers}},
	{"without answers", "timeout", `{"timeout": 0}`, []string{answers}},
	{"reset", "reset_peer", `{"timeout": 100}`, []string{requests}},
}

// LinkKinds are the kinds of things that can go wrong with connections: slow, late, lossy, narrow, half-open, without
// answers, reset.
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

// Suffer has the connections suffer from one of those kinds until heal.
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

// lossToxic is a network that loses one packet in ten, as those who use TCP see it: what is sent is held up
// until it has been sent again, and all that comes after it too.
type lossToxic struct{}

// sentAgain is how soon, at best, Linux sends a packet again that nobody has acknowledged.
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
