package page

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.yaml.in/yaml/v3"

	"github.com/quern/quern/integration/debian"
	"github.com/quern/quern/integration/process"
	"github.com/quern/quern/internal/wire"
)

var (
	prometheus = debian.Program{Package: "prometheus", Path: "/usr/bin/prometheus"}
	vmagent    = debian.Program{Package: "victoria-metrics", Path: "/usr/bin/vmagent", Needs: []string{"libzstd1"}}
	collectd   = debian.Program{Package: "collectd-core", Path: "/usr/sbin/collectd", Needs: []string{"libcap2", "libyajl2", "libcurl3-gnutls"}}
	netcat     = debian.Program{Package: "netcat-openbsd", Path: "/bin/nc.openbsd", Needs: []string{"libbsd0", "libmd0"}}
)

// locked writes a web config file with the user ali, whose password is "open sesame".
func locked(t testing.TB) string {
	t.Helper()
	const hash = "$2a$05$fcSLefz5NXMYvx/qx6jAa.440lg/HKJfq.kB0xWZ1TfR64Bmrf8UC"
	conf := filepath.Join(t.TempDir(), "web.yml")
	require.NoError(t, os.WriteFile(conf, []byte("basic_auth_users:\n  ali: "+hash+"\n"), 0o600))
	return conf
}

// LogIn logs in at the page that is shown: as ali, or by a token.
func (p *Page) LogIn(token string) {
	p.t.Helper()
	p.See("dialog h2", "Log in")
	secret := token
	if token == "" {
		p.Click("#login-user")
		p.Keys("ali")
		secret = "open sesame"
	}
	p.Click("dialog input[type=password]")
	p.Keys(secret)
	p.Enter()
	p.Wait(`!document.querySelector("dialog") && document.querySelector('button[title^="Logged in"]')`)
}

// Snippets returns what the view says to paste, with a new token in it where the server asks for one.
func (p *Page) Snippets(with string) []string {
	p.t.Helper()
	p.Go("/send?with=" + with)
	p.See(".arrivals", "Waiting for the first report")
	p.Wait(`document.querySelector(".paste")`)
	if eval[bool](p, `!!document.querySelector("form.token")`) {
		p.Click("form.token input")
		p.Keys("for " + with)
		p.Enter()
		p.See(".how .banner", "The token is in the text")
	}
	texts := eval[[]string](p, `[...document.querySelectorAll(".paste pre")].map((e) => e.textContent)`)
	require.NotEmpty(p.t, texts)
	assert.NotContains(p.t, strings.Join(texts, "\n"), "YOUR_TOKEN")
	return texts
}

// Arrives waits until the view says that a new sender reports.
func (p *Page) Arrives(source string) {
	p.t.Helper()
	p.See(".arrivals .banner.good", source+" sends: ")
}

// desk is a directory in which people paste, with programs on its path.
type desk struct {
	t    *testing.T
	dir  string
	path string
	libs []string
}

func newDesk(t *testing.T) *desk {
	d := &desk{t: t, dir: t.TempDir(), path: t.TempDir()}
	d.link("quern", programs.Quern)
	return d
}

func (d *desk) link(name, path string) {
	require.NoError(d.t, os.Symlink(path, filepath.Join(d.path, name)))
}

// has puts a program of others on the path, and returns where its files are.
func (d *desk) has(name string, p debian.Program) (root string) {
	d.t.Helper()
	found, err := p.Find(d.t.Context())
	require.NoError(d.t, err)
	d.link(name, found.Path)
	if found.Root != "/" {
		libs, err := filepath.Glob(filepath.Join(found.Root, "usr/lib/*-linux-gnu"))
		require.NoError(d.t, err)
		d.libs = append(d.libs, append(libs, filepath.Join(found.Root, "usr/lib"))...)
	}
	return strings.TrimSuffix(found.Root, "/")
}

func (d *desk) shell(text string) *exec.Cmd {
	within := fmt.Sprintf("export PATH=%s:$PATH LD_LIBRARY_PATH=%s\n", d.path, strings.Join(d.libs, ":"))
	cmd := exec.CommandContext(d.t.Context(), "bash", "-e", "-o", "pipefail", "-c", within+text)
	cmd.Dir = d.dir
	return cmd
}

// run runs what was pasted, and returns what it prints.
func (d *desk) run(text string) string {
	d.t.Helper()
	out, err := d.shell(text).CombinedOutput()
	require.NoError(d.t, err, "%s", out)
	return string(out)
}

// start starts what was pasted, which goes on until the test ends.
func (d *desk) start(text string) *process.Process {
	d.t.Helper()
	return process.Start(d.t, d.shell("exec "+text))
}

func (d *desk) write(name, text string) {
	d.t.Helper()
	require.NoError(d.t, os.WriteFile(filepath.Join(d.dir, name), []byte(text), 0o600))
}

// TestSend pastes each text of the view where it says, and sees in the view that it arrives. The server is locked, so
// the tokens that the view makes are right, too.
func TestSend(t *testing.T) {
	server := serve(t, "--web.config.file", locked(t), "--graphite-listen", "127.0.0.1:0")
	_, lines, err := net.SplitHostPort(server.Wrote(`graphite_address=(\S+)`)[1])
	require.NoError(t, err)
	p := open(t, server.URL)
	p.Expect("401")
	p.Go("/send")
	p.LogIn("")
	step := func(name string, do func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			defer func(was testing.TB) { p.t = was }(p.t)
			p.t = t
			do(t)
		})
	}

	step("curl", func(t *testing.T) {
		texts := p.Snippets("curl")
		assert.Contains(t, texts[0], server.URL+"/api/v1/reports")
		assert.JSONEq(t, `{"accepted":1,"rejected":[]}`, newDesk(t).run(texts[0]))
		p.Arrives("my-host")
		p.See(".arrived-metrics", "room_celsius")
		p.BothThemes("send-arrived")
		p.Click(".arrived-metrics a")
		p.Drawn("1 series")
		assert.Equal(t, `{__name__="room_celsius",source="my-host"}`, p.Parameter("q"))
	})
	step("agent", func(t *testing.T) {
		texts, d := p.Snippets("agent"), newDesk(t)
		d.run(texts[0])
		d.start(texts[1])
		host, err := os.Hostname()
		require.NoError(t, err)
		p.Arrives(host)
		p.See(".arrived-metrics", "host_")
	})
	step("prometheus", func(t *testing.T) {
		texts, d := p.Snippets("prometheus"), newDesk(t)
		d.has("prometheus", prometheus)
		target := strings.TrimPrefix(server.URL, "http://")
		d.write("prometheus.yml", texts[0]+scrape(target))
		d.start("prometheus --config.file=prometheus.yml --storage.tsdb.path=data --web.listen-address=127.0.0.1:0")
		p.Arrives(target)
		p.See(".arrived-metrics", "up")
	})
	step("vmagent", func(t *testing.T) {
		texts, d := p.Snippets("vmagent"), newDesk(t)
		d.has("vmagent", vmagent)
		d.run(texts[0])
		target := strings.Replace(strings.TrimPrefix(server.URL, "http://"), "127.0.0.1", "localhost", 1)
		d.write("prometheus.yml", scrape(target))
		d.start(texts[1] + " -remoteWrite.tmpDataPath=data -httpListenAddr=127.0.0.1:0 -loggerLevel=WARN")
		p.Arrives(target)
	})
	step("telegraf", func(t *testing.T) {
		// Debian has no Telegraf. Its file is read, and the request sent that this output sends.
		var conf struct {
			Outputs struct {
				V2 []struct {
					URLs                 []string
					Organization, Bucket string
					Token                string
					Encoding             string `toml:"content_encoding"`
					Unsigned             bool   `toml:"influx_uint_support"`
				} `toml:"influxdb_v2"`
			}
		}
		meta, err := toml.Decode(p.Snippets("telegraf")[0], &conf)
		require.NoError(t, err)
		require.Empty(t, meta.Undecoded())
		out := conf.Outputs.V2[0]
		require.Equal(t, "gzip", out.Encoding)
		var body bytes.Buffer
		zip := gzip.NewWriter(&body)
		_, err = io.WriteString(zip, "mem,host=telegraf-host used=17u,free=4i\n")
		require.NoError(t, err)
		require.NoError(t, zip.Close())
		to := out.URLs[0] + "/api/v2/write?" + url.Values{"org": {out.Organization}, "bucket": {out.Bucket}}.Encode()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, to, &body)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Token "+out.Token)
		req.Header.Set("Content-Encoding", "gzip")
		resp, err := process.Client.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusNoContent, resp.StatusCode)
		p.Arrives("telegraf-host")
		p.See(".arrived-metrics", "mem_used")
	})
	step("opentelemetry", func(t *testing.T) {
		texts := p.Snippets("opentelemetry")
		// Debian has no collector. Its file is read, and sent to as its exporter does.
		var conf struct {
			Exporters map[string]struct {
				Endpoint string            `yaml:"metrics_endpoint"`
				Headers  map[string]string `yaml:"headers"`
			}
			Service struct {
				Pipelines map[string]struct{ Receivers, Exporters []string }
			}
		}
		require.NoError(t, yaml.Unmarshal([]byte(texts[0]), &conf))
		to := conf.Exporters[conf.Service.Pipelines["metrics"].Exporters[0]]
		exporter, err := otlpmetrichttp.New(t.Context(), otlpmetrichttp.WithEndpointURL(to.Endpoint), otlpmetrichttp.WithHeaders(to.Headers))
		require.NoError(t, err)
		measure(t, exporter, "collector")
		p.Arrives("collector")

		// The environment is that of a real SDK.
		for line := range strings.Lines(newDesk(t).run(texts[1] + "\nenv | grep ^OTEL_")) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			t.Setenv(name, value)
		}
		p.Do(chromedp.Reload())
		p.See(".arrivals", "Waiting for the first report")
		exporter, err = otlpmetrichttp.New(t.Context())
		require.NoError(t, err)
		measure(t, exporter, "shop")
		p.Arrives("shop")
		p.See(".arrived-metrics", "it_orders_total")
	})
	step("collectd", func(t *testing.T) {
		texts, d := p.Snippets("collectd"), newDesk(t)
		root := d.has("collectd", collectd)
		d.write("collectd.conf", fmt.Sprintf("Hostname \"collectd.host\"\nFQDNLookup false\nInterval 1\nBaseDir %q\nPIDFile %q\nPluginDir %q\nTypesDB %q\nLoadPlugin cpu\nLoadPlugin memory\nLoadPlugin load\n",
			d.dir, filepath.Join(d.dir, "pid"), root+"/usr/lib/collectd", root+"/usr/share/collectd/types.db")+texts[0])
		d.start("collectd -f -C collectd.conf")
		p.Arrives("collectd.host")
		p.See(".arrived-metrics", "collectd_load")
	})
	step("graphite", func(t *testing.T) {
		p.Go("/send?with=graphite&port=" + lines)
		p.See(".arrivals", "Waiting for the first report")
		d := newDesk(t)
		d.has("nc", netcat)
		text := eval[string](p, `document.querySelector(".paste pre").textContent`)
		assert.Contains(t, text, lines)
		d.run(text)
		p.See(".arrived-metrics", "room.celsius")
		p.Shot("send-graphite")
		p.Accessible("send-graphite")
	})
	step("influxdb", func(t *testing.T) {
		assert.Empty(t, newDesk(t).run(p.Snippets("influxdb")[0]))
		p.See(".arrived-metrics", "room_celsius")
	})
	step("storm", func(t *testing.T) {
		p.Go("/send?with=storm&port=" + lines)
		p.See(".arrivals", "Waiting for the first report")
		var conf map[string][]map[string]any
		require.NoError(t, yaml.Unmarshal([]byte(eval[string](p, `document.querySelector(".paste pre").textContent`)), &conf))
		reporter := conf["topology.metrics.reporters"][0]
		assert.Equal(t, "org.apache.storm.metrics2.reporters.GraphiteStormReporter", reporter["class"])
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", net.JoinHostPort(fmt.Sprint(reporter["graphite.host"]), fmt.Sprint(reporter["graphite.port"])))
		require.NoError(t, err)
		_, err = fmt.Fprintf(conn, "storm.worker.words-1.node1.split.6700-emitted.count;host=storm1 20 -1\n")
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		p.Arrives("storm1")
		p.See(".arrived-metrics", "storm.worker.words-1")
	})
}

// scrape is the rest of a configuration that scrapes a target.
func scrape(target string) string {
	return fmt.Sprintf("scrape_configs:\n- job_name: it\n  scrape_interval: 1s\n  metrics_path: /-/ready\n  static_configs: [{targets: [%q]}]\n", target)
}

// measure measures once, and sends that as a service.
func measure(t *testing.T, to sdk.Exporter, service string) {
	t.Helper()
	provider := sdk.NewMeterProvider(sdk.WithReader(sdk.NewPeriodicReader(to)),
		sdk.WithResource(resource.NewSchemaless(attribute.String("service.name", service))))
	orders, err := provider.Meter("it").Int64Counter("it.orders")
	require.NoError(t, err)
	orders.Add(t.Context(), 3)
	require.NoError(t, provider.Shutdown(context.WithoutCancel(t.Context())))
}

// TestSendOpen: a server that asks nobody for a token needs none in the texts.
func TestSendOpen(t *testing.T) {
	server := serve(t, "--demo")
	p := open(t, server.URL)
	p.Go("/send")
	p.See(".arrivals", "Waiting for the first report")
	p.BothThemes("send")
	tabs := eval[[]string](p, `[...document.querySelectorAll("[role=tab]")].map((e) => e.id.slice(4))`)
	assert.Len(t, tabs, 10)
	for _, with := range tabs {
		p.Click("#tab-" + with)
		p.Wait(`document.querySelector("#tab-` + with + `[aria-selected=true]") && document.querySelector(".paste pre")`)
		text := eval[string](p, `document.querySelector(".how").textContent`)
		assert.NotRegexp(t, `(?i)bearer|YOUR_TOKEN|quern_`, text, with)
	}
	p.See(".how .banner.warn", "--graphite-listen")
	assert.Equal(t, "storm", p.Parameter("with"))
	assert.Contains(t, newDesk(t).run(p.Snippets("curl")[0]), `"accepted":1`)
	p.Arrives("my-host")
}

// TestSendWrongly: what the server does not take is seen, so a sender that is wrong is found.
func TestSendWrongly(t *testing.T) {
	server := serve(t)
	p := open(t, server.URL)
	p.Go("/send")
	p.See(".arrivals", "Nothing was refused or lost")
	post := func(path, body string) {
		t.Helper()
		_, err := server.Post(path, []byte(body))
		require.NoError(t, err)
	}
	post("/api/v1/reports", `{"source":"slow","measurements":[{"metric":"m","value":1,"time":1700000000}]}`)
	p.See(".refused", "Samples rejected as too_old: 1")
	p.See(".refused", "Requests to /api/v1/reports, answered 400: 1")
	post("/api/v1/wirte", `{}`)
	p.See(".refused", "an address that is none of this server's")
	post("/v1/metrics", "not protobuf")
	p.See(".refused", "Requests to /v1/metrics, answered 400: 1")
	post("/write?db=a", "room celsius=1,celsius=2 1\n")
	p.BothThemes("send-refused")
}

// TestSendRoles: who may not make tokens is told how to get one, and who may not read sees why nothing is shown.
func TestSendRoles(t *testing.T) {
	server := serve(t, "--web.config.file", locked(t))
	p := open(t, server.URL)
	p.Expect("401")
	p.Go("/send")
	p.LogIn(token(t, server, "read"))
	p.See(".how", "An administrator makes one")
	p.Wait(`document.querySelectorAll(".paste pre").length === 2`)
	assert.Equal(t, "quern token create --url "+server.URL+" --name my-host --role write", eval[string](p, `document.querySelector(".paste pre").textContent`))
	assert.Contains(t, p.Text(".paste:nth-of-type(2) pre"), "YOUR_TOKEN")
	p.BothThemes("send-reader")

	p = open(t, server.URL)
	p.Expect("401")
	p.Expect("403")
	p.Go("/send")
	p.LogIn(token(t, server, "write"))
	p.See(".arrivals [role=alert]", "needs the role read")
	p.See(".how", "YOUR_TOKEN")
}

// TestSendTextIsText: what a sender calls itself and its metrics is shown as text.
func TestSendTextIsText(t *testing.T) {
	server := serve(t)
	p := open(t, server.URL)
	p.Go("/send")
	p.See(".arrivals", "Nothing was refused or lost")
	const evil = `<img src=x onerror="window.ran=1">`
	r, err := server.Post(wire.ReportsPath, fmt.Appendf(nil, `{"source":%q,"measurements":[{"metric":%q,"value":1}]}`, evil, evil))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, r.Code, "%s", r.Body)
	p.Arrives(evil)
	p.See(".arrived-metrics", evil)
	assert.Equal(t, "undefined", eval[string](p, "typeof window.ran"))
	assert.Zero(t, eval[int](p, `document.querySelectorAll("img, body script").length`))
}
