package programs

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/debian"
	"github.com/quern/quern/integration/process"
)

var (
	nginx     = debian.Program{Package: "nginx", Path: "/usr/sbin/nginx"}
	checkLoad = debian.Program{Package: "monitoring-plugins-basic", Path: "/usr/lib/nagios/plugins/check_load"}
)

// TestAgent has an agent read the access log of a real nginx, which is rotated as nginx is, and a real plugin of Nagios.
func TestAgent(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "access.log")
	addr := freePort(t)
	write(t, filepath.Join(dir, "nginx.conf"), fmt.Sprintf(`
daemon off; master_process off; worker_processes 1; pid %[1]s/pid; error_log stderr;
events {}
http {
  log_format timed '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent" $request_time';
  access_log %[2]s timed;
  client_body_temp_path %[1]s; proxy_temp_path %[1]s; fastcgi_temp_path %[1]s; uwsgi_temp_path %[1]s; scgi_temp_path %[1]s;
  server { listen %[3]s; location / { return 200 "hello"; } location /no { return 404; } }
}
`, dir, log, addr))
	server := start(t, nginx, "-c", filepath.Join(dir, "nginx.conf"), "-e", "stderr")
	url := "http://" + addr
	bytes := 0
	get := func(path string, n int) { // each line has its number: files with the same lines would be copies
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("%s%s?%d", url, path, n), http.NoBody)
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		if path == "/" {
			bytes += len(body)
		}
	}
	process.Eventually(t, "nginx", func() error {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
		if err == nil {
			err = conn.Close()
		}
		return err
	})

	store := serve(t)
	plugin := find(t, checkLoad)
	write(t, filepath.Join(dir, "agent.yaml"), fmt.Sprintf(`
url: %s
data-dir: %s
source: web-1
adaptors:
  - {type: tail, path: %s*, format: access}
  - {type: exec, command: [%s, -w, "100,100,100", -c, "200,200,200"], format: nagios, interval: 1s}
`, store.URL, filepath.Join(dir, "spool"), log, plugin.Path))
	agent := process.Start(t, exec.CommandContext(t.Context(), quern, "agent", "--config", filepath.Join(dir, "agent.yaml")))
	const requests = 300
	for n := range requests {
		switch {
		case n%3 == 0:
			get("/no", n)
		default:
			get("/", n)
		}
		switch n {
		case 100: // as logrotate does it
			require.NoError(t, os.Rename(log, log+".1"))
			server.Signal(syscall.SIGUSR1)
		case 200:
			agent.Kill()
			agent = process.Start(t, exec.CommandContext(t.Context(), quern, "agent", "--config", filepath.Join(dir, "agent.yaml")))
		}
	}
	// The counters of both processes of the agent together: each of them begins at zero.
	counted := func(metric string) map[string]float64 {
		lines, err := process.Lines[struct {
			Metric     map[string]string
			Timestamps []int64
			Values     []float64
		}](store, "/api/v1/export", process.Within(metric, time.Hour))
		require.NoError(t, err)
		sums := map[string]float64{}
		for _, l := range lines {
			last := 0.0
			for _, v := range l.Values {
				if v < last {
					last = 0
				}
				sums[l.Metric["method"]+" "+l.Metric["status"]] += v - last
				last = v
			}
		}
		return sums
	}
	process.Eventually(t, "every request in the store", func() error {
		got := counted("access_requests_total")
		if got["GET 200"] != requests*2/3 || got["GET 404"] != requests/3 || len(got) != 2 {
			return fmt.Errorf("%v", got)
		}
		return nil
	})
	require.Equal(t, float64(bytes), counted("access_bytes_total")["GET 200"])
	process.Eventually(t, "the plugin's data", func() error {
		lines, err := exported(store)
		if err != nil {
			return err
		}
		for _, want := range []string{`"nagios_state"`, `perfdata="load1"`, `perfdata="load15"`} {
			found := false
			for p := range lines {
				found = found || strings.Contains(p.series, want)
			}
			if !found {
				return fmt.Errorf("no %s", want)
			}
		}
		return nil
	})
	agent.Stop()
	require.Contains(t, agent.Stderr.String(), "rejected=0 refused=0 dropped=0 waiting=0")
}
