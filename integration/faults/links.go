package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
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
	t    testing.TB
	addr string

	mu    sync.Mutex
	to    string
	proxy *toxiproxy.Proxy
}

// NewLink starts a proxy that listens at an address with a port and leads to another address. It
// ends with the test.
func NewLink(t testing.TB, listen, to string) *Link {
	t.Helper()
	zerolog.SetGlobalLevel(zerolog.Disabled) // a toxic ignores the logger that it is given
	l := &Link{t: t, to: to, proxy: newProxy(listen, to)}
	require.NoError(t, l.proxy.Start())
	l.addr = l.proxy.Listen
	t.Cleanup(func() { l.change("ended", func(p *toxiproxy.Proxy) error { p.Stop(); return nil }) })
	return l
}

func newProxy(listen, to string) *toxiproxy.Proxy {
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), zerolog.Nop())
	return toxiproxy.NewProxy(server, listen, listen, to)
}

// stuckAfter is how long a change of a proxy may take. The proxy waits until its connections have passed on what they hold,
// and their peer may not read for some seconds.
const stuckAfter = time.Minute

// change applies a change to the proxy. Toxiproxy 2.12 may never end one, and takes no connection after that: under a lock it
// waits for each connection, and one that its peer has reset waits for that lock. Then another proxy takes its place.
func (l *Link) change(what string, do func(*toxiproxy.Proxy) error) {
	l.mu.Lock()
	old := l.proxy
	l.mu.Unlock()
	done := make(chan error, 1)
	go func() { done <- do(old) }()
	select {
	case err := <-done:
		assert.NoError(l.t, err, what)
		return
	case <-time.After(stuckAfter):
	}
	l.t.Logf("the proxy at %s hangs before it is %s: another one takes its place", l.addr, what)
	go old.Stop() // it leaves the port at once, and may not return
	l.mu.Lock()
	defer l.mu.Unlock()
	l.proxy = newProxy(l.addr, l.to)
	process.Eventually(l.t, "the port of the proxy", l.proxy.Start)
}

// Addr returns the address at which the proxy listens.
func (l *Link) Addr() string { return l.addr }

// LeadTo makes the proxy lead to another address. All its connections end.
func (l *Link) LeadTo(to string) {
	l.mu.Lock()
	l.to = to
	l.mu.Unlock()
	l.change("led to "+to, func(p *toxiproxy.Proxy) error {
		return p.Update(&toxiproxy.Proxy{Listen: l.addr, Upstream: to, Enabled: true})
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
		l.change(x.name, func(p *toxiproxy.Proxy) error {
			_, err := p.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(
				`{"name": %q, "type": %q, "stream": %q, "attributes": %s}`, d, x.kind, d, x.attributes)))
			return err
		})
	}
	return func() {
		for _, d := range x.directions {
			l.change("as it was before it was "+x.name, func(p *toxiproxy.Proxy) error {
				err := p.Toxics.RemoveToxic(context.Background(), d) // the test may be over
				if errors.Is(err, toxiproxy.ErrToxicNotFound) {      // another proxy has taken the place of the one that had it
					return nil
				}
				return err
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
