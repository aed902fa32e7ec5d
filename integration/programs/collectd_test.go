package programs

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/debian"
	"github.com/quern/quern/integration/process"
)

var collectd = debian.Program{
	Package: "collectd-core", Path: "/usr/sbin/collectd", Needs: []string{"libcap2", "libyajl2", "libcurl3-gnutls"},
}

// TestCollectd makes collectd send its measurements twice, by write_graphite and by write_http, and
// also write them to files.
func TestCollectd(t *testing.T) {
	t.Parallel()
	p := serve(t, "--graphite-listen", "127.0.0.1:0")
	_, port, err := net.SplitHostPort(p.Wrote(`graphite_address=(\S+)`)[1])
	require.NoError(t, err)
	front := record(t, p)
	addr, said := tap(t, net.JoinHostPort("127.0.0.1", port))
	_, port, err = net.SplitHostPort(addr)
	require.NoError(t, err)

	dir := t.TempDir()
	found := find(t, collectd)
	file := filepath.Join(dir, "collectd.conf")
	// collectd keeps times with a resolution of 2^-30 s. csv and write_http write them with three
	// digits, write_graphite in seconds.
	write(t, file, fmt.Sprintf(`
Hostname "it.host"
FQDNLookup false
Interval 1
BaseDir "%[1]s"
PIDFile "%[1]s/pid"
PluginDir "%[2]s/usr/lib/collectd"
TypesDB "%[2]s/usr/share/collectd/types.db"
LoadPlugin cpu
LoadPlugin load
LoadPlugin memory
LoadPlugin csv
LoadPlugin write_graphite
LoadPlugin write_http
<Plugin csv>
  DataDir "%[1]s/csv"
  StoreRates false
</Plugin>
<Plugin write_graphite>
  <Node "quern">
    Host "127.0.0.1"
    Port "%[3]s"
    Protocol "tcp"
    EscapeCharacter "_"
    AlwaysAppendDS false
    StoreRates false
  </Node>
</Plugin>
<Plugin write_http>
  <Node "quern">
    URL "%[4]s/api/v1/push/collectd"
    Format "JSON"
    StoreRates false
  </Node>
</Plugin>
`, dir, strings.TrimSuffix(found.Root, "/"), port, front.URL))
	daemon := start(t, collectd, "-f", "-C", file)
	// The csv plugin writes measurements to a file per metric and day.
	measured := func() (lines map[string][][]string, n int) {
		lines = map[string][][]string{}
		require.NoError(t, filepath.WalkDir(filepath.Join(dir, "csv"), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) || d.IsDir() {
				return nil
			}
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			text = text[:bytes.LastIndexByte(text, '\n')+1]
			rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
			require.NoError(t, err)
			name, err := filepath.Rel(filepath.Join(dir, "csv"), path)
			require.NoError(t, err)
			name = name[:len(name)-len("-2006-01-02")]
			lines[name] = append(lines[name], rows...)
			n = max(n, len(rows))
			return nil
		}))
		return lines, n
	}
	process.Eventually(t, "measurements", func() error {
		if _, n := measured(); n <= scrapes {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	// collectd sends what it has left when it ends.
	daemon.Stop()

	// What was measured and sent. Each value is paired with what the file and a plugin agree on:
	// its time, or its name. A file's time cannot be rounded to a second as write_graphite does,
	// since the file has it rounded already.
	var timed, pushed, named, printed []string
	lines, _ := measured()
	for name, rows := range lines {
		path := strings.ReplaceAll(strings.Replace(name, "it.host", "it_host", 1), "/", ".")
		for _, row := range rows {
			if row[0] == "epoch" {
				continue
			}
			at, err := strconv.ParseFloat(row[0], 64)
			require.NoError(t, err)
			for i, text := range row[1:] {
				v, err := strconv.ParseFloat(text, 64)
				require.NoError(t, err)
				series := path
				if strings.HasSuffix(path, ".load") {
					series += []string{".shortterm", ".midterm", ".longterm"}[i]
				}
				timed = append(timed, fmt.Sprintf("%.3f %.6f", at, v))
				named = append(named, fmt.Sprintf("%s %.6f", series, v))
			}
		}
	}
	// What was sent. Of two values within a second the last one counts.
	plain, labelled := points{}, points{}
	process.Eventually(t, "the last lines", func() error {
		text := said.String()
		if n := strings.Count(text, "\n"); n != len(named) {
			return fmt.Errorf("%d values were measured, of which %d are sent", len(named), n)
		}
		for line := range strings.Lines(text) {
			fields := strings.Fields(line)
			require.Len(t, fields, 3, line)
			v, err := strconv.ParseFloat(fields[1], 64)
			require.NoError(t, err)
			at, err := strconv.ParseInt(fields[2], 10, 64)
			require.NoError(t, err)
			plain.add(labels.FromStrings("__name__", fields[0]), at*1000, v)
			printed = append(printed, fmt.Sprintf("%s %.6f", fields[0], v))
		}
		return nil
	})
	for _, r := range front.all() {
		if len(r.body) == 0 {
			continue
		}
		var lists []struct {
			Values, DSTypes, DSNames []any
			Time                     float64
			Plugin, Type             string
			PluginInstance           string `json:"plugin_instance"`
			TypeInstance             string `json:"type_instance"`
		}
		require.NoError(t, json.Unmarshal(r.body, &lists))
		for _, l := range lists {
			for i, v := range l.Values {
				m := map[string]string{"instance": "it.host", "__name__": "collectd_" + l.Plugin}
				if l.Type != l.Plugin {
					m["__name__"] += "_" + l.Type
				}
				if name := l.DSNames[i].(string); name != "value" {
					m["__name__"] += "_" + name
				}
				if l.DSTypes[i] == "derive" || l.DSTypes[i] == "counter" {
					m["__name__"] += "_total"
				}
				if l.PluginInstance != "" {
					m[l.Plugin] = l.PluginInstance
				}
				if l.TypeInstance != "" {
					if l.PluginInstance == "" {
						m[l.Plugin] = l.TypeInstance
					} else {
						m["type"] = l.TypeInstance
					}
				}
				labelled.add(labels.FromMap(m), int64(math.Floor(l.Time*1000+1e-6)), v.(float64))
				pushed = append(pushed, fmt.Sprintf("%.3f %.6f", l.Time, v))
			}
		}
	}
	for _, list := range [][]string{timed, pushed, named, printed} {
		slices.Sort(list)
	}
	assert.Equal(t, timed, pushed, "write_http has sent all that was measured")
	assert.Equal(t, named, printed, "write_graphite has sent all that was measured")
	stored := storedAll(t, p, func() (int, error) { return len(plain) + len(labelled), nil })
	byHTTP, byGraphite := points{}, points{}
	for k, v := range stored {
		if strings.HasPrefix(k.series, `{__name__="it_host.`) {
			byGraphite[k] = v
		} else {
			byHTTP[k] = v
		}
	}
	requireSame(t, labelled, byHTTP)
	requireSame(t, plain, byGraphite)
	front.keep(t, "collectd-5.12.json", func(r request) bool { return len(r.body) > 0 })
	ground(t, p)
}
