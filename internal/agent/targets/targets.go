// Package targets finds what to scrape, as the scrape_configs of a prometheus.yml say.
package targets

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"

	"github.com/quern/quern/internal/clock"
)

// Target is what is scraped. It can be the key of a map: labels that are the same are equal.
type Target struct {
	URL               string
	Labels            labels.Labels // with job and instance
	Interval, Timeout time.Duration
	Refused           bool // it is down without a scrape: the job has more targets than its TargetLimit
}

func (t Target) compare(o Target) int {
	return cmp.Or(labels.Compare(t.Labels, o.Labels), cmp.Compare(t.URL, o.URL), cmp.Compare(t.Interval, o.Interval), cmp.Compare(t.Timeout, o.Timeout))
}

// Discover finds targets until ctx ends, and calls found with all, without duplicates, each time that they changed: first when each
// discovery has answered or failed. The targets of what failed stay as they were. One discovery is waited for at a time.
func (j *Job) Discover(ctx context.Context, c clock.Clock, warn func(message string, args ...any), found func([]Target)) {
	static := j.targets(j.Static, nil, warn)
	var last []Target
	for ctx.Err() == nil {
		now, wait := append([]Target{}, static...), time.Hour
		for _, d := range slices.Concat(j.Files, j.DNS, j.HTTP) {
			if d.due == 0 || d.due <= c.Elapsed() {
				j.look(ctx, d, warn)
				d.due = c.Elapsed() + time.Duration(d.Refresh)
			}
			for _, targets := range d.known {
				now = append(now, targets...)
			}
			wait = min(wait, d.due-c.Elapsed())
		}
		slices.SortFunc(now, Target.compare)
		now = slices.Compact(now)
		if j.TargetLimit > 0 && len(now) > int(j.TargetLimit) {
			warn("there are more targets than target_limit: all are down", "targets", len(now), "limit", j.TargetLimit)
			for i := range now {
				now[i].Refused = true
			}
		}
		if ctx.Err() == nil && (last == nil || !slices.Equal(last, now)) {
			last = now
			found(now)
		}
		_ = c.Sleep(ctx, wait) // the loop sees that ctx has ended
	}
}

// targets returns the targets of groups, all of which have more labels.
func (j *Job) targets(groups []targetgroup.Group, more model.LabelSet, warn func(message string, args ...any)) (targets []Target) {
	for _, g := range groups {
		for _, labels := range g.Targets {
			if t, keep, err := j.target(g.Labels.Merge(labels).Merge(more)); err != nil {
				warn("a target cannot be scraped", "target", labels, "labels", more, "err", err)
			} else if keep {
				targets = append(targets, t)
			}
		}
	}
	return targets
}

// target relabels what was discovered.
func (j *Job) target(discovered model.LabelSet) (t Target, keep bool, err error) {
	b := labels.NewBuilder(labels.FromStrings(
		model.JobLabel, j.Name, model.ScrapeIntervalLabel, j.Interval.String(), model.ScrapeTimeoutLabel, j.Timeout.String(),
		model.MetricsPathLabel, j.MetricsPath, model.SchemeLabel, j.Scheme,
	))
	query := url.Values{}
	for name, values := range j.Params {
		query[name] = values
		b.Set(model.ParamLabelPrefix+name, j.Params.Get(name))
	}
	for name, value := range discovered {
		if value != "" {
			b.Set(string(name), string(value))
		}
	}
	if !relabel.ProcessBuilder(b, j.Relabel...) {
		return t, false, nil
	}
	address, every, limit := b.Get(model.AddressLabel), b.Get(model.ScrapeIntervalLabel), b.Get(model.ScrapeTimeoutLabel)
	interval, err1 := model.ParseDuration(every)
	timeout, err2 := model.ParseDuration(limit)
	if address == "" || strings.Contains(address, "/") || err1 != nil || err2 != nil || timeout == 0 || timeout > interval {
		return t, false, fmt.Errorf("address %q must be HOST:PORT; timeout %q must be above zero, and at most interval %q", address, limit, every)
	}
	u := url.URL{Scheme: b.Get(model.SchemeLabel), Host: address, Path: b.Get(model.MetricsPathLabel)}
	b.Set(model.InstanceLabel, cmp.Or(b.Get(model.InstanceLabel), address))
	b.Range(func(l labels.Label) {
		if name, ok := strings.CutPrefix(l.Name, model.ParamLabelPrefix); ok {
			query[name] = append([]string{l.Value}, query[name][min(1, len(query[name])):]...)
		}
		if strings.HasPrefix(l.Name, model.ReservedLabelPrefix) {
			b.Del(l.Name)
		}
	})
	u.RawQuery = query.Encode()
	return Target{URL: u.String(), Labels: b.Labels(), Interval: time.Duration(interval), Timeout: time.Duration(timeout)}, true, nil
}

// discovery finds groups of targets in files, by names in DNS, or at a URL.
type discovery struct {
	Refresh  model.Duration          `yaml:"refresh_interval"`
	Files    []string                `yaml:"files"`
	Names    []string                `yaml:"names"`
	Type     string                  `yaml:"type"`
	Port     uint16                  `yaml:"port"`
	URL      string                  `yaml:"url"`
	Client   config.HTTPClientConfig `yaml:",inline"`
	resolver *net.Resolver
	due      time.Duration       // when to look, by the clock's Elapsed
	known    map[string][]Target // by source
}

// UnmarshalYAML is called by yaml.
func (d *discovery) UnmarshalYAML(decode func(any) error) error {
	type plain discovery
	*d = discovery{Type: "SRV", Client: config.DefaultHTTPClientConfig}
	if err := decode((*plain)(d)); err != nil {
		return err
	}
	u, err := url.Parse(d.URL)
	switch d.Type = strings.ToUpper(d.Type); {
	case len(d.Names) > 0 && d.Type != "SRV" && (d.Port == 0 || d.Type != "A" && d.Type != "AAAA"):
		return fmt.Errorf("type %q, port %d: must be SRV, or A or AAAA with a port", d.Type, d.Port)
	case len(d.Names) > 0:
		d.Refresh = cmp.Or(d.Refresh, 30e9)
	case len(d.Files) > 0:
		d.Refresh = min(cmp.Or(d.Refresh, 30e9), 30e9) // nobody tells that they changed, as Prometheus is told
	case err != nil || u.Host == "":
		return fmt.Errorf("files, names, url %q: there must be one, and the url be complete", d.URL)
	default:
		d.Refresh = cmp.Or(d.Refresh, 60e9)
	}
	return d.Client.Validate()
}

// look has a discovery know what its sources have now, and what those that fail had before.
func (j *Job) look(ctx context.Context, d *discovery, warn func(message string, args ...any)) {
	sources := slices.Clone(d.Names)
	for _, pattern := range d.Files {
		paths, _ := filepath.Glob(pattern)
		sources = append(sources, paths...)
	}
	if d.URL != "" {
		sources = append(sources, d.URL)
	}
	known := map[string][]Target{}
	for _, source := range sources {
		known[source] = d.known[source]
		if groups, label, err := d.read(ctx, source); err == nil {
			known[source] = j.targets(groups, model.LabelSet{label: model.LabelValue(source)}, warn)
		} else if ctx.Err() == nil {
			warn("targets cannot be discovered; those known stay", "source", source, "err", err)
		}
	}
	d.known = known
}

// read returns the groups of a source, and the label for its name.
func (d *discovery) read(ctx context.Context, source string) (groups []targetgroup.Group, label model.LabelName, err error) {
	var text []byte
	decode := json.Unmarshal
	switch {
	case len(d.Names) > 0:
		targets, err := d.lookUp(ctx, source)
		return []targetgroup.Group{{Targets: targets}}, "__meta_dns_name", err
	case d.URL != "":
		label = "__meta_url"
		text, err = d.fetch(ctx)
	default:
		label = "__meta_filepath"
		text, err = os.ReadFile(source)
		if !strings.EqualFold(filepath.Ext(source), ".json") {
			decode = strictly
		}
	}
	err = cmp.Or(err, decode(text, &groups))
	return groups, label, err
}

func (d *discovery) fetch(ctx context.Context) ([]byte, error) {
	client, err := config.NewClientFromConfig(d.Client, "targets")
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	client.Timeout = 30 * time.Second
	request, _ := http.NewRequestWithContext(ctx, http.MethodGet, d.URL, http.NoBody) // the URL is valid
	request.Header.Set("Accept", "application/json")
	request.Header.Set("X-Prometheus-Refresh-Interval-Seconds", strconv.FormatFloat(time.Duration(d.Refresh).Seconds(), 'f', -1, 64))
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the answer is %s, not 200", response.Status)
	}
	return io.ReadAll(io.LimitReader(response.Body, 64<<20)) // what is cut is no JSON
}

func (d *discovery) lookUp(ctx context.Context, name string) (targets []model.LabelSet, err error) {
	var servers []*net.SRV
	var addresses []netip.Addr
	if d.Type == "SRV" {
		_, servers, err = d.resolver.LookupSRV(ctx, "", "", name)
	} else {
		addresses, err = d.resolver.LookupNetIP(ctx, map[string]string{"A": "ip4", "AAAA": "ip6"}[d.Type], name)
	}
	for _, s := range servers {
		targets = append(targets, model.LabelSet{
			model.AddressLabel:             model.LabelValue(net.JoinHostPort(strings.TrimSuffix(s.Target, "."), strconv.Itoa(int(s.Port)))),
			"__meta_dns_srv_record_target": model.LabelValue(s.Target),
			"__meta_dns_srv_record_port":   model.LabelValue(strconv.Itoa(int(s.Port))),
		})
	}
	for _, a := range addresses {
		targets = append(targets, model.LabelSet{model.AddressLabel: model.LabelValue(netip.AddrPortFrom(a.Unmap(), d.Port).String())})
	}
	if failed := (*net.DNSError)(nil); errors.As(err, &failed) && failed.IsNotFound {
		err = nil // there is none
	}
	return targets, err
}
