package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// server is a running peer.
type server struct {
	peer
	url  string
	cmd  *exec.Cmd
	log  bytes.Buffer
	http *http.Client
}

func start(ctx context.Context, p peer, dir string) (*server, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, err
	}
	s := &server{
		peer: p, url: "http://" + address,
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}},
	}
	s.cmd = exec.CommandContext(ctx, p.path, p.args(dir, address)...)
	s.cmd.Env = append(s.cmd.Environ(), p.env...)
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if code, _, err := s.get(ctx, p.ready); err == nil && code/100 == 2 {
			return s, nil
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			_ = s.cmd.Process.Kill()
			_ = s.cmd.Wait()
			return nil, fmt.Errorf("%s is not ready:\n%s", p.name, s.log.Bytes())
		}
	}
}

func (s *server) stop() error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := s.cmd.Wait(); err != nil {
		return fmt.Errorf("%w:\n%s", err, s.log.Bytes())
	}
	return nil
}

func (s *server) get(ctx context.Context, path string) (code int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return 0, nil, err
	}
	return s.do(req)
}

func (s *server) post(ctx context.Context, path string, h http.Header, b []byte) (code int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, bytes.NewReader(b))
	if err != nil {
		return 0, nil, err
	}
	req.Header = h
	return s.do(req)
}

func (s *server) do(req *http.Request) (code int, body []byte, err error) {
	res, err := s.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err = io.ReadAll(res.Body)
	return res.StatusCode, body, err
}

// peakRSS returns the process's peak resident memory in bytes, if the system reports it.
func (s *server) peakRSS() (float64, bool) {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(s.cmd.Process.Pid) + "/status")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(status)) {
		if rest, found := strings.CutPrefix(line, "VmHWM:"); found {
			kb, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kb * 1024, err == nil
		}
	}
	return 0, false
}

// cpuTime returns the processor time that the process has taken, in seconds, if the system reports it. Other than a rate
// it hardly depends on what else the machine does.
func (s *server) cpuTime() (float64, bool) {
	const ticks = 100 // a second, on every Linux
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(s.cmd.Process.Pid) + "/stat")
	if err != nil {
		return 0, false
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return 0, false
	}
	user, errUser := strconv.ParseFloat(fields[11], 64)
	system, errSystem := strconv.ParseFloat(fields[12], 64)
	return (user + system) / ticks, errUser == nil && errSystem == nil
}

// profile starts a CPU profile of some seconds, and returns a function that waits for its end.
func (s *server) profile(ctx context.Context, path string) func() error {
	done := make(chan error, 1)
	go func() {
		code, body, err := s.get(ctx, "/debug/pprof/profile?seconds=3")
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("no profile: status %d: %.300s", code, body)
		}
		if err == nil {
			err = os.WriteFile(path, body, 0o600)
		}
		done <- err
	}()
	return func() error { return <-done }
}
