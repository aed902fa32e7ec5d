package gate

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/faults"
	"github.com/quern/quern/integration/process"
)

var (
	agentFaults = flag.Int("agent.faults", 24, "number of faults of TestAgent")
	agentSeed   = flag.Uint64("agent.seed", 0, "seed of TestAgent; 0 is a random one")
)

// TestAgent writes lines to files that are rotated, sends others by HTTP until they are acknowledged, and has a command and a target count
// how often they are read, while the agent and its server are killed and their connection is cut. Each line is in the server once, with
// the time at which it was read; so is what was counted, if it was read at all. Lines have series of their own: one that came twice would
// have two samples.
func TestAgent(t *testing.T) {
	seed := *agentSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-agent.seed=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 35))
	w := newAgentWorld(t, rng)
	injected := 0
	for ; injected < *agentFaults; injected++ {
		for range 2 + rng.IntN(5) {
			w.write()
			if rng.IntN(2) == 0 {
				w.relay()
			}
			if rng.IntN(4) == 0 {
				w.rotate()
			}
		}
		w.hurt()
	}
	w.reload()
	w.write()
	w.relays.Wait()
	w.relay()
	w.relays.Wait()
	require.Empty(t, w.pending, "the agent acknowledges all")
	w.server.Stop()
	w.serve()
	w.requireAll(injected)
}

// agentWorld is an agent with what it reads, and a server behind a link.
type agentWorld struct {
	t             *testing.T
	rng           *rand.Rand
	dir           string
	link          *faults.Link
	server, agent *process.Process
	heal          func() // nil if the link is whole
	lines, files  int

	relayed int
	relays  sync.WaitGroup
	mu      sync.Mutex
	pending map[int]string // what was sent by HTTP, and is not acknowledged
}

func newAgentWorld(t *testing.T, rng *rand.Rand) *agentWorld {
	w := &agentWorld{t: t, rng: rng, dir: t.TempDir(), link: faults.NewLink(t, "127.0.0.1:0", "127.0.0.1:1"), pending: map[int]string{}}
	require.NoError(t, os.Mkdir(w.path("log"), 0o700))
	var scrapes atomic.Int64
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = fmt.Fprintf(w, "it_scraped %d\n", scrapes.Add(1))
	}))
	t.Cleanup(target.Close)
	require.NoError(t, os.WriteFile(w.path("prometheus.yml"), fmt.Appendf(nil, `
scrape_configs:
  - {job_name: it, scrape_interval: 1s, static_configs: [{targets: [%s]}]}
`, target.Listener.Addr()), 0o600))
	require.NoError(t, os.WriteFile(w.path("agent.yaml"), fmt.Appendf(nil, `
url: http://%s
data-dir: %s
source: it
control: 127.0.0.1:0
control-token-file: %[6]s
adaptors:
  - {type: tail, path: %[3]s, format: json, label-fields: [line], value-fields: [it_value]}
  - {type: exec, shell: 'n=$(cat %[4]s || echo 0); echo $((n+1)) >%[4]s; echo "it_run;n=$n $n"', format: graphite, interval: 1s}
  - {type: http, listen: "127.0.0.1:0"}
  - {type: scrape, config: %[5]s}
`, w.link.Addr(), w.path("spool"), w.path("log/app.log*"), w.path("runs"), w.path("prometheus.yml"), w.path("token")), 0o600))
	require.NoError(t, os.WriteFile(w.path("token"), []byte("secret"), 0o600))
	w.serve()
	w.run()
	return w
}

func (w *agentWorld) path(name string) string { return filepath.Join(w.dir, name) }

func (w *agentWorld) start(args ...string) *process.Process {
	return process.Start(w.t, exec.CommandContext(w.t.Context(), programs.Quern, args...))
}

func (w *agentWorld) serve() {
	w.server = w.start("serve", "--listen", "127.0.0.1:0", "--data-dir", w.path("store"), "--host-metrics=false")
	w.server.Ready()
	w.link.LeadTo(strings.TrimPrefix(w.server.URL, "http://"))
}

func (w *agentWorld) run() { w.agent = w.start("agent", "--config", w.path("agent.yaml")) }

// write appends lines to the log.
func (w *agentWorld) write() {
	f, err := os.OpenFile(w.path("log/app.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	require.NoError(w.t, err)
	for range 1 + w.rng.IntN(30) {
		w.lines++
		_, err := fmt.Fprintf(f, `{"line":"%[1]d","it_value":%[1]d}`+"\n", w.lines)
		require.NoError(w.t, err)
	}
	require.NoError(w.t, f.Close())
}

// relay sends a line by HTTP, with all that were not acknowledged before.
func (w *agentWorld) relay() {
	w.mu.Lock()
	w.relayed++
	w.pending[w.relayed] = fmt.Sprintf("it,n=%[1]d relayed=%[1]d %[2]d\n", w.relayed, time.Now().UnixNano())
	sent := maps.Clone(w.pending)
	w.mu.Unlock()
	url := "http://" + w.agent.Wrote(`stream="http 127.0.0.1:0" address=(\S+)`)[1] + "/write"
	w.relays.Go(func() {
		body := strings.NewReader(strings.Join(slices.Collect(maps.Values(sent)), ""))
		req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, url, body)
		if err != nil {
			return // nothing is acknowledged
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return // the agent is killed
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusNoContent {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		for n := range sent {
			delete(w.pending, n)
		}
	})
}

// rotate renames the log, copies and truncates it, or compresses it.
func (w *agentWorld) rotate() {
	log := w.path("log/app.log")
	if _, err := os.Stat(log); err != nil {
		return
	}
	w.files++
	to := fmt.Sprintf("%s.%d", log, w.files)
	kind := w.rng.IntN(3)
	if kind > 0 {
		require.NoError(w.t, os.Rename(log, to))
	}
	switch kind {
	case 0:
		text, err := os.ReadFile(log)
		require.NoError(w.t, err)
		require.NoError(w.t, os.WriteFile(to, text, 0o600))
		require.NoError(w.t, os.Truncate(log, 0))
	case 2:
		in, err := os.Open(to)
		require.NoError(w.t, err)
		out, err := os.Create(to + ".gz")
		require.NoError(w.t, err)
		z := gzip.NewWriter(out)
		_, err = io.Copy(z, in)
		require.NoError(w.t, err)
		require.NoError(w.t, z.Close())
		require.NoError(w.t, out.Close())
		require.NoError(w.t, in.Close())
		require.NoError(w.t, os.Remove(to))
	}
}

// hurt kills the agent or the server, or disturbs their connection until the next fault.
func (w *agentWorld) hurt() {
	if w.heal != nil {
		w.heal()
		w.heal = nil
	}
	switch w.rng.IntN(5) {
	case 0, 1:
		w.agent.Kill()
		w.run()
	case 2:
		w.agent.Wrote("msg=reading") // before, a signal ends it
		w.agent.Stop()
		w.write()
		w.run()
	case 3:
		w.server.Kill()
		w.serve()
	case 4:
		kinds := []string{"slow", "lossy", "half-open", "without answers", "reset"}
		w.heal = w.link.Suffer(kinds[w.rng.IntN(len(kinds))])
	}
	// What comes next meets the agent at different places of its work.
	time.Sleep(time.Duration(w.rng.IntN(1500)) * time.Millisecond)
}

// reload gives the agent another file to read and another command while it runs, and then a configuration that it cannot use.
func (w *agentWorld) reload() {
	w.agent.Wrote("msg=reading") // before, the signal ends it
	require.NoError(w.t, os.WriteFile(w.path("added.log"), []byte("it_run;n=added 0.25\n"), 0o600))
	at := "--agent=http://" + w.agent.Wrote(`msg=listening address=(\S+)`)[1]
	out, err := exec.CommandContext(w.t.Context(), programs.Quern, "agent", "add", at, "--token-file="+w.path("token"), "{type: tail, path: "+w.path("added.log")+", format: graphite}").CombinedOutput()
	require.NoError(w.t, err, "%s", out)
	file, err := os.ReadFile(w.path("agent.yaml"))
	require.NoError(w.t, err)
	file = append(file, "  - {type: exec, shell: 'echo \"it_run;n=reloaded 0.5\"', format: graphite, interval: 1h}\n"...)
	require.NoError(w.t, os.WriteFile(w.path("agent.yaml"), file, 0o600))
	w.agent.Signal(syscall.SIGHUP)
	w.agent.Wrote("msg=reloaded adaptors=6")
	require.NoError(w.t, os.WriteFile(w.path("agent.yaml"), append(file, "  - {type: tial}\n"...), 0o600))
	w.agent.Signal(syscall.SIGHUP)
	w.agent.Wrote(`the adaptors stay as they were" err=".*agent.yaml, line 13: type \\"tial`)
}

// requireAll waits until the last line is in the server, and asserts that all are, once.
func (w *agentWorld) requireAll(injected int) {
	if w.heal != nil {
		w.heal()
	}
	var samples []process.Sample
	process.Eventually(w.t, "every line in the server", func() (err error) {
		samples, err = w.server.Export(`{__name__=~"it_.*"}`, time.Hour)
		values, relayed := map[float64]bool{}, map[float64]bool{}
		for _, s := range samples {
			switch s.Metric {
			case "it_value":
				values[s.Value] = true
			case "it_relayed":
				relayed[s.Value] = true
			}
		}
		if err == nil && (len(values) < w.lines || len(relayed) < w.relayed) {
			err = fmt.Errorf("%d of %d lines, %d of %d by HTTP", len(values), w.lines, len(relayed), w.relayed)
		}
		return err
	})
	w.agent.Stop() // what it would send twice it has sent
	samples, err := w.server.Export(`{__name__=~"it_.*"}`, time.Hour)
	require.NoError(w.t, err)
	times := map[string]int{}
	for _, s := range samples {
		times[s.Metric+" "+strconv.FormatFloat(s.Value, 'f', -1, 64)]++
	}
	delete(times, "it_scraped NaN") // the marker of an end
	runs, scrapes := 0, 0
	for one, n := range times {
		require.Equal(w.t, 1, n, one)
		if strings.HasPrefix(one, "it_run") {
			runs++
		}
		if strings.HasPrefix(one, "it_scraped") {
			scrapes++
		}
	}
	require.Greater(w.t, runs, 1)
	require.Greater(w.t, scrapes, 1)
	require.Equal(w.t, 1, times["it_run 0.5"], "the command that the reload brought")
	require.Equal(w.t, 1, times["it_run 0.25"], "the file that was added")
	w.t.Logf("%d faults, %d lines in %d files, %d by HTTP, %d runs of the command, %d scrapes", injected, w.lines, w.files, w.relayed, runs, scrapes)
	w.server.Stop()
}
