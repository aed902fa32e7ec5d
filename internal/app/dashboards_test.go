package app

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/agent/hostmetrics"
	"github.com/quern/quern/internal/app/demo"
	"github.com/quern/quern/internal/commands"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/documents/dashboard"
	"github.com/quern/quern/internal/documents/group"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/wire"
)

// asked sends a request, and returns the data of the answer, or its error.
func asked[T any](t *testing.T, method, url, body string) (code int, data T, failure wire.Error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded") // as curl has it: it must not matter
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	var text bytes.Buffer
	_, err = text.ReadFrom(resp.Body)
	require.NoError(t, err)
	var out wire.Data[T]
	if resp.StatusCode == http.StatusOK {
		require.NoError(t, json.Unmarshal(text.Bytes(), &out), text.String())
		require.Equal(t, wire.Success, out.Status)
	} else {
		require.NoError(t, json.Unmarshal(text.Bytes(), &failure), text.String())
		require.Equal(t, wire.Failure, failure.Status)
	}
	return resp.StatusCode, out.Data, failure
}

const shop = `{"format":1,"title":"Shop","panels":[{"id":1,"kind":"text","at":{"x":0,"y":0,"w":4,"h":2},"text":"<b>hi</b>"}]}`

// TestDashboards goes through the life of a dashboard over HTTP.
func TestDashboards(t *testing.T) {
	s := testServer(t)
	addr, _ := running(t, s)
	base := addr + wire.DashboardsPath
	code, made, _ := asked[wire.DocumentVersion](t, "PUT", base+"/shop?base=0", shop)
	require.Equal(t, 200, code)
	require.Equal(t, wire.DocumentVersion{ID: "shop", Version: 1}, made)
	code, got, _ := asked[wire.Dashboard](t, "GET", base+"/shop", "")
	require.Equal(t, 200, code)
	require.EqualValues(t, 1, got.Version)
	require.Contains(t, string(got.Dashboard), `<b>hi</b>`)
	d, err := dashboard.Decode(got.Dashboard)
	require.NoError(t, err)
	require.Equal(t, "Shop", d.Title)

	code, made, _ = asked[wire.DocumentVersion](t, "PUT", base+"/shop?base=1", strings.Replace(shop, "Shop", "Store", 1))
	require.Equal(t, 200, code)
	require.EqualValues(t, 2, made.Version)
	code, _, failure := asked[wire.DocumentVersion](t, "PUT", base+"/shop?base=1", shop)
	require.Equal(t, 409, code)
	require.Equal(t, wire.Conflict, failure.ErrorType)
	require.EqualValues(t, 2, *failure.Newest)

	code, all, _ := asked[[]wire.DashboardHead](t, "GET", base, "")
	require.Equal(t, 200, code)
	require.Len(t, all, 3)
	code, gone, _ := asked[wire.DocumentVersion](t, "DELETE", base+"/shop?base=2", "")
	require.Equal(t, 200, code)
	require.EqualValues(t, 3, gone.Version)
	code, _, failure = asked[wire.Dashboard](t, "GET", base+"/shop", "")
	require.Equal(t, 404, code)
	require.Equal(t, wire.NotFound, failure.ErrorType)
	require.Contains(t, failure.Error, "these versions are kept: 1, 2")
	_, versions, _ := asked[[]wire.DashboardHead](t, "GET", base+"/shop/versions", "")
	require.Len(t, versions, 3)
	require.True(t, versions[0].Deleted)
	_, all, _ = asked[[]wire.DashboardHead](t, "GET", base+"?deleted=true", "")
	require.Len(t, all, 3)

	for _, c := range []struct {
		method, path, body string
		code               int
		kind, want         string
	}{
		{"PUT", "/shop", shop, 400, wire.BadData, "say with base=N"},
		{"PUT", "/shop?base=x", shop, 400, wire.BadData, "base must be the number of a version"},
		{"PUT", "/SHOP?base=0", shop, 400, wire.BadData, "an id has 1 to 128"},
		{"PUT", "/a?base=0", `{"format":1,"title":"t","panels":[{"id":1,"title":"P","kind":"no","at":{"w":1,"h":1}}]}`, 400, wire.BadData, `panel 1 "P": its kind is "no"`},
		{"PUT", "/a?base=0", strings.Repeat(" ", dashboard.MaxBytes+1), 413, "", "larger than the limit of 1048576 bytes"},
		{"PUT", "/a?base=7", shop, 409, wire.Conflict, "does not exist"},
		{"PUT", "/hosts?base=0", shop, 403, wire.Forbidden, "save a copy"},
		{"DELETE", "/hosts?base=0", "", 403, wire.Forbidden, "save a copy"},
		{"DELETE", "/none?base=0", "", 404, wire.NotFound, "there is no dashboard"},
		{"GET", "/shop?version=0", "", 400, wire.BadData, "version must be the number"},
		{"GET", "/shop?version=9", "", 404, wire.NotFound, "has no version 9"},
		{"GET", "/none/versions", "", 404, wire.NotFound, "there is no dashboard"},
		{"GET", "?deleted=maybe", "", 400, wire.BadData, "deleted must be true or false"},
		{"PUT", "/a?base=0", `{"title":"G","panels":[{"type":"stat","title":"Disks"}]}`, 400, wire.BadData, "quern dashboard convert"},
	} {
		code, _, failure := asked[json.RawMessage](t, c.method, base+c.path, c.body)
		require.Equal(t, c.code, code, "%s %s: %s", c.method, c.path, failure.Error)
		require.Equal(t, c.kind, failure.ErrorType)
		require.Contains(t, failure.Error, c.want)
	}
}

// TestGroups goes through the life of a group of metrics over HTTP.
func TestGroups(t *testing.T) {
	s := testServer(t)
	addr, _ := running(t, s)
	base := addr + wire.GroupsPath
	code, made, _ := asked[wire.DocumentVersion](t, "PUT", base+"/cpu?base=0", `{"name":"CPU","metrics":["b","a","b"],"sources":["web-1"]}`)
	require.Equal(t, 200, code)
	require.Equal(t, wire.DocumentVersion{ID: "cpu", Version: 1}, made)
	code, got, _ := asked[wire.Group](t, "GET", base+"/cpu", "")
	require.Equal(t, 200, code)
	require.JSONEq(t, `{"name":"CPU","metrics":["a","b"],"sources":["web-1"]}`, string(got.Group))

	code, _, failure := asked[wire.DocumentVersion](t, "PUT", base+"/cpu?base=0", `{"name":"Mine","metrics":["a"]}`)
	require.Equal(t, 409, code)
	require.EqualValues(t, 1, *failure.Newest)
	code, _, failure = asked[wire.DocumentVersion](t, "PUT", base+"/cpu?base=1", `{"name":"","metrics":["a"]}`)
	require.Equal(t, 400, code, failure.Error)
	code, _, failure = asked[wire.DocumentVersion](t, "PUT", base+"/cpu?base=1", `{"name":"`+strings.Repeat("x", group.MaxBytes)+`"}`)
	require.Equal(t, 413, code, failure.Error)
	code, all, _ := asked[[]wire.GroupHead](t, "GET", base, "")
	require.Equal(t, 200, code)
	require.Len(t, all, 1)
	require.Equal(t, "CPU", all[0].Name)

	// Dashboards and groups do not share their ids.
	code, _, _ = asked[wire.Dashboard](t, "GET", addr+wire.DashboardsPath+"/cpu", "")
	require.Equal(t, 404, code)
	code, _, _ = asked[wire.DocumentVersion](t, "DELETE", base+"/cpu?base=1", "")
	require.Equal(t, 200, code)
	code, _, failure = asked[wire.Group](t, "GET", base+"/cpu", "")
	require.Equal(t, 404, code)
	require.Contains(t, failure.Error, `the group "cpu" was deleted; these versions are kept: 1`)
	_, all, _ = asked[[]wire.GroupHead](t, "GET", base, "")
	require.Empty(t, all)
}

// TestDashboardCommands goes through the commands, with a file of Grafana and a server with files of its own.
func TestDashboardCommands(t *testing.T) {
	s := testServer(t)
	s.cfg.Dashboards = t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(s.cfg.Dashboards, "team.json"), []byte(`{"format":1,"title":"Team"}`), 0o600))
	require.NoError(t, s.openDashboards())
	addr, _ := running(t, s)
	at := config.Connection{URL: addr}
	file := filepath.Join(t.TempDir(), "My Shop.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"title":"Shop","panels":[{"type":"piechart","title":"Disks"},{"type":"stat","targets":[{"expr":"up"}]}]}`), 0o600))

	var out, notes bytes.Buffer
	put := config.DashboardFile{Connection: at, File: file, Base: config.NewestVersion}
	require.NoError(t, commands.PutDashboard(t.Context(), put, &out, &notes))
	require.Equal(t, "Dashboard my-shop is stored as version 1: "+addr+"/dashboards/my-shop\n", out.String())
	require.Equal(t, "note: panel \"Disks\": kind piechart is not supported, left out\n", notes.String())
	put.Base = 7
	require.NoError(t, commands.PutDashboard(t.Context(), put, &out, &notes), "the same content is there already")

	out.Reset()
	require.NoError(t, commands.GetDashboard(t.Context(), config.Dashboard{Connection: at, ID: "my-shop"}, &out, &notes))
	require.Contains(t, out.String(), "  \"title\": \"Shop\"")
	require.NoError(t, os.WriteFile(file, bytes.Replace(out.Bytes(), []byte("Shop"), []byte("Shop 2"), 1), 0o600))
	require.ErrorContains(t, commands.PutDashboard(t.Context(), put, &out, &notes), "its newest version is 1; get it, and make your change again")
	put.Base = config.NewestVersion
	require.NoError(t, commands.PutDashboard(t.Context(), put, &out, &notes))
	out.Reset()
	require.NoError(t, commands.ListDashboards(t.Context(), config.ListDashboards{Connection: at}, &out, &notes))
	require.Regexp(t, `my-shop +Shop 2 +2 +20\S+ +- +stored`, out.String())
	require.Regexp(t, `team +Team +- +20\S+ +- +team.json`, out.String())
	require.Regexp(t, `hosts +Hosts +- +- +- +built in`, out.String())
	require.ErrorContains(t, commands.DeleteDashboard(t.Context(), config.Dashboard{Connection: at, ID: "team", Base: config.NewestVersion}, &out, &notes), "save a copy")
	require.ErrorContains(t, commands.GetDashboard(t.Context(), config.Dashboard{Connection: at, ID: "No"}, &out, &notes), "no id of a dashboard")
	require.NoError(t, commands.DeleteDashboard(t.Context(), config.Dashboard{Connection: at, ID: "my-shop", Base: config.NewestVersion}, &out, &notes))
	out.Reset()
	require.NoError(t, commands.DashboardVersions(t.Context(), config.Dashboard{Connection: at, ID: "my-shop"}, &out, &notes))
	require.Contains(t, out.String(), "Shop 2 (deleted)")
	require.EqualError(t, commands.GetDashboard(t.Context(), config.Dashboard{Connection: at, ID: "my-shop"}, &out, &notes),
		`the dashboard "my-shop" was deleted; these versions are kept: 1, 2`)
	out.Reset()
	require.NoError(t, commands.ConvertDashboard(t.Context(), config.DashboardFile{File: file}, &out, &notes))
	require.Contains(t, out.String(), `"format": 1`)
}

// hostNames are the metrics of the agent, each with the labels that it has; see docs/agent.md.
var hostNames = map[string]string{
	"host_cpu_seconds_total": "mode", "host_cpu_usage_ratio": "", "host_cpus": "",
	"host_memory_total_bytes": "", "host_memory_used_bytes": "", "host_memory_available_bytes": "", "host_memory_free_bytes": "",
	"host_memory_cached_bytes": "", "host_memory_buffers_bytes": "",
	"host_swap_total_bytes": "", "host_swap_used_bytes": "", "host_swap_in_bytes_total": "", "host_swap_out_bytes_total": "",
	"host_filesystem_size_bytes": "mountpoint", "host_filesystem_used_bytes": "mountpoint", "host_filesystem_available_bytes": "mountpoint",
	"host_filesystem_inodes": "mountpoint", "host_filesystem_inodes_used": "mountpoint",
	"host_disk_read_bytes_total": "device", "host_disk_written_bytes_total": "device", "host_disk_reads_total": "device",
	"host_disk_writes_total": "device", "host_disk_io_seconds_total": "device",
	"host_network_receive_bytes_total": "device", "host_network_transmit_bytes_total": "device",
	"host_network_receive_packets_total": "device", "host_network_transmit_packets_total": "device",
	"host_network_receive_errors_total": "device", "host_network_transmit_errors_total": "device",
	"host_network_receive_drops_total": "device", "host_network_transmit_drops_total": "device",
	"host_load1": "", "host_load5": "", "host_load15": "", "host_uptime_seconds": "", "host_processes": "",
}

// TestBuiltInHaveData: over what the agent and the demo send, each query of their dashboards has an answer.
func TestBuiltInHaveData(t *testing.T) {
	host, err := hostmetrics.New()
	require.NoError(t, err)
	measured, _ := host.Collect(t.Context())
	require.NotEmpty(t, measured)
	for _, m := range measured {
		require.Contains(t, hostNames, m.Metric, "the table above must have what the agent sends")
	}
	s := testServer(t)
	s.cfg.Demo = true
	addr, _ := running(t, s)
	g := demo.New(20)
	nowMs := time.Now().UnixMilli()
	for back := int64(8); back >= 0; back-- {
		atMs := nowMs - back*60_000
		_, err := s.engine.Ingest.Append(t.Context(), g.Reports(atMs))
		require.NoError(t, err)
		host := ingest.Report{Source: "web-1"}
		for name, label := range hostNames {
			m := ingest.Measurement{Metric: name, TimeMs: atMs, Value: float64(100 - back)}
			if label != "" {
				m.Labels = []metric.Label{{Name: label, Value: "x"}}
			}
			host.Measurements = append(host.Measurements, m)
		}
		_, err = s.engine.Ingest.Append(t.Context(), []ingest.Report{host})
		require.NoError(t, err)
	}
	stand := strings.NewReplacer("$__rate_interval", "5m", "$quantile", "0.9", "$host", ".*", "$region", ".*", "$role", ".*")
	for _, id := range []string{"hosts", "demo"} {
		_, got, _ := asked[wire.Dashboard](t, "GET", addr+wire.DashboardsPath+"/"+id, "")
		d, err := dashboard.Decode(got.Dashboard)
		require.NoError(t, err)
		for _, p := range d.Panels {
			for _, q := range p.Queries {
				expr := stand.Replace(q.Expr)
				code, answer, failure := asked[struct{ Result []json.RawMessage }](t, "GET", addr+"/api/v1/query?query="+url.QueryEscape(expr), "")
				require.Equal(t, 200, code, "%s: %s", expr, failure.Error)
				require.NotEmpty(t, answer.Result, "%s, panel %s: %s", id, p.Title, expr)
			}
		}
	}
}
