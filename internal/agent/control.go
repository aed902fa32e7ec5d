package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/agent/adaptor"
	"github.com/quern/quern/internal/protocol/respond"
	"github.com/quern/quern/internal/storage/durable"
	"github.com/quern/quern/internal/wire"
)

// addedName is the file with the adaptors that clients have added, beside the spool.
const addedName = "adaptors.yaml"

// ControlFiles are the files of a Control in the directory of the spool.
var ControlFiles = []string{addedName, addedName + ".next"}

// Control changes what an agent reads while it runs. Its adaptors are those of its own file, and behind them those that clients have
// added, which it keeps in a file beside the spool. All fields are required.
type Control struct {
	Agent *Agent
	// InFile are the adaptors of the agent's own file. After the start, Reload changes them.
	InFile []adaptor.Configured
	// Dir is that of the spool.
	Dir string
	// Commands says whether clients may add adaptors that run commands.
	Commands bool
	Logger   *slog.Logger

	mu sync.Mutex // for each change
}

var errStopped = errors.New("the agent stops")

// Load returns all adaptors.
func (c *Control) Load() ([]adaptor.Configured, error) {
	added, err := c.added()
	return c.all(added), err
}

// Reload has the agent run what its own file has now, and what clients have added. It returns how many there are.
func (c *Control) Reload(inFile []adaptor.Configured) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	added, err := c.added()
	if err != nil {
		return 0, err
	}
	c.InFile = inFile
	all := c.all(added)
	if !c.Agent.Read(all) {
		return 0, errStopped
	}
	return len(all), nil
}

// added returns the adaptors that clients have added, as YAML.
func (c *Control) added() ([]*yaml.Node, error) {
	path := filepath.Join(c.Dir, addedName)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var list []yaml.Node
	if err == nil {
		err = yaml.Unmarshal(text, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: mend or remove it", path, err)
	}
	var added []*yaml.Node
	for i := range list {
		added = append(added, &list[i])
	}
	return added, nil
}

// parse reads an adaptor that a client adds, or has added.
func (c *Control) parse(from string, node ...*yaml.Node) (one adaptor.Configured, err error) {
	if len(node) != 1 {
		return one, errors.New("give one adaptor, such as {type: tail, path: /var/log/app.log, format: json}")
	}
	all, err := adaptor.Parse(from, &yaml.Node{Kind: yaml.SequenceNode, Content: node})
	if err != nil {
		return one, err
	}
	one = all[0]
	one.Added = true
	if one.RunsCommands() && !c.Commands {
		err = fmt.Errorf("%s: clients may not have commands run: the agent must be started with --allow-commands", one)
	}
	return one, err
}

// all returns the adaptors of the agent's own file, and what clients have added that is not in it. What cannot run is told.
func (c *Control) all(added []*yaml.Node) []adaptor.Configured {
	all := slices.Clone(c.InFile)
	for _, node := range added {
		one, err := c.parse(filepath.Join(c.Dir, addedName), node)
		switch {
		case err != nil:
			c.Logger.Warn("an adaptor that was added cannot run", "err", err)
		case !reads(all, one.String()):
			all = append(all, one)
		}
	}
	return all
}

func reads(all []adaptor.Configured, name string) bool {
	return slices.ContainsFunc(all, func(one adaptor.Configured) bool { return one.String() == name })
}

// change keeps the adaptors that clients have added, and has the agent run them.
func (c *Control) change(added []*yaml.Node) error {
	text, err := yaml.Marshal(&yaml.Node{Kind: yaml.SequenceNode, Content: added})
	if err != nil {
		return err
	}
	path := filepath.Join(c.Dir, addedName)
	if err := durable.Write(path+".next", bytes.NewReader(text)); err != nil {
		return err
	}
	if err := durable.Rename(path+".next", path); err != nil {
		return err
	}
	if !c.Agent.Read(c.all(added)) {
		return errStopped
	}
	return nil
}

// Register implements api.Registrar.
func (c *Control) Register(to *route.Table) {
	to.HandleFunc(access.Read, route.Refused, "GET "+wire.AdaptorsPath, c.list)
	to.HandleFunc(access.Read, route.Refused, "GET "+wire.AdaptorsPath+"/{id}", c.show)
	to.HandleFunc(access.Admin, route.Refused, "POST "+wire.AdaptorsPath, c.add)
	to.HandleFunc(access.Admin, route.Refused, "DELETE "+wire.AdaptorsPath+"/{id}", c.remove)
}

func (c *Control) list(w http.ResponseWriter, _ *http.Request) {
	st := c.Agent.Stats()
	respond.JSON(w, http.StatusOK, wire.Adaptors{
		Adaptors: c.Agent.Adaptors(), Delivered: st.Delivered, Rejected: st.Rejected, Refused: st.Refused, Dropped: st.Dropped, Waiting: st.Waiting,
	})
}

func (c *Control) show(w http.ResponseWriter, r *http.Request) {
	if one := c.find(w, r.PathValue("id")); one != nil {
		respond.JSON(w, http.StatusOK, one)
	}
}

// find returns the adaptor of an ID, or replies that there is none.
func (c *Control) find(w http.ResponseWriter, id string) *wire.Adaptor {
	all := c.Agent.Adaptors()
	i := slices.IndexFunc(all, func(one wire.Adaptor) bool { return one.ID == id })
	if i < 0 {
		respond.NotFound(w, "there is no adaptor "+id+": `quern agent list` has the IDs")
		return nil
	}
	return &all[i]
}

// add starts the adaptor in the body of a request, as YAML, which JSON is.
func (c *Control) add(w http.ResponseWriter, r *http.Request) {
	var body yaml.Node
	text, err := io.ReadAll(r.Body)
	if err == nil {
		err = yaml.Unmarshal(text, &body)
	}
	var one adaptor.Configured
	if err == nil {
		one, err = c.parse("the adaptor", body.Content...)
	}
	if err != nil {
		respond.Error(w, http.StatusBadRequest, err.Error())
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	added, err := c.added()
	if reads(c.all(added), one.String()) {
		respond.Error(w, http.StatusConflict, one.String()+" is read already")
		return
	}
	if err == nil {
		err = c.change(append(added, body.Content[0]))
	}
	if err != nil {
		fail(w, err)
		return
	}
	c.Logger.Info("a client has added an adaptor", "adaptor", one.String(), "client", r.RemoteAddr)
	if one := c.find(w, one.ID()); one != nil {
		respond.JSON(w, http.StatusOK, one)
	}
}

// remove ends an adaptor that a client has added. The answer is how far it had come.
func (c *Control) remove(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.find(w, r.PathValue("id"))
	switch {
	case one == nil:
		return
	case !one.Added:
		respond.Error(w, http.StatusConflict, one.Adaptor+" is in the file of the agent: remove it there, and send the agent SIGHUP")
		return
	}
	added, err := c.added()
	if err == nil {
		err = c.change(slices.DeleteFunc(added, func(node *yaml.Node) bool {
			other, err := c.parse("", node)
			return err == nil && other.String() == one.Adaptor
		}))
	}
	if err != nil {
		fail(w, err)
		return
	}
	c.Logger.Info("a client has ended an adaptor", "adaptor", one.Adaptor, "client", r.RemoteAddr)
	respond.JSON(w, http.StatusOK, one)
}

// fail replies why something could not be changed.
func fail(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	if errors.Is(err, errStopped) {
		code = http.StatusServiceUnavailable
	}
	respond.Error(w, code, err.Error())
}

// Adaptors returns those that run, ordered by what they read.
func (a *Agent) Adaptors() []wire.Adaptor {
	all := []wire.Adaptor{}
	for _, r := range a.snapshot() {
		one := wire.Adaptor{ID: r.ID(), Adaptor: r.String(), Added: r.Added, Streams: []wire.Stream{}}
		one.Samples, one.Rates = r.out.Samples()
		one.Error, one.ErrorMs = r.out.Trouble()
		for name, at := range a.out.Spool.Streams(one.Adaptor) {
			// That of a path with a space begins like the one without.
			if rest := name[len(one.Adaptor):]; rest == "" || rest[0] == ' ' && !strings.Contains(rest[1:], " ") {
				one.Streams = append(one.Streams, wire.Stream{Name: name, Offset: at.Seq, Acknowledged: a.out.Spool.Acknowledged(name)})
			}
		}
		slices.SortFunc(one.Streams, func(a, b wire.Stream) int { return strings.Compare(a.Name, b.Name) })
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b wire.Adaptor) int { return strings.Compare(a.Adaptor, b.Adaptor) })
	return all
}

// Describe implements prometheus.Collector.
func (a *Agent) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(a, to) }

// Collect implements prometheus.Collector.
func (a *Agent) Collect(to chan<- prometheus.Metric) {
	put := func(name, help string, kind prometheus.ValueType, v float64, labels ...string) {
		var names []string
		if labels != nil {
			names = []string{"adaptor"}
		}
		to <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, names, nil), kind, v, labels...)
	}
	st := a.Stats()
	put("quern_agent_delivered_samples_total", "Samples that the server has accepted.", prometheus.CounterValue, float64(st.Delivered))
	put("quern_agent_rejected_samples_total", "Samples that the server has rejected, one by one.", prometheus.CounterValue, float64(st.Rejected))
	put("quern_agent_refused_samples_total", "Samples that the server has refused with their request.", prometheus.CounterValue, float64(st.Refused))
	put("quern_agent_dropped_samples_total", "Samples that the spool has dropped, or that could not be written to it.", prometheus.CounterValue, float64(st.Dropped))
	put("quern_agent_waiting_samples", "Samples in the spool.", prometheus.GaugeValue, float64(st.Waiting))
	for _, r := range a.snapshot() {
		n, _ := r.out.Samples()
		put("quern_agent_read_samples_total", "Samples that an adaptor has put into the spool.", prometheus.CounterValue, float64(n), r.String())
	}
}
