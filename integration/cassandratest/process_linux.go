package cassandratest

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// watched runs a command that ends with this process, however that ends: the parent
// keeps the other end of standard input open, and the kernel closes it. (Pdeathsig is
// no help: it looks at the thread that started the command, and Go's threads come
// and go.) The shell becomes the command, so that signals reach it and its exit status
// is seen; only the watchdog stays a shell.
const watched = `exec 3<&0
( read -r _ <&3; kill -KILL $$ ) >/dev/null 2>&1 &
exec "$@" </dev/null 3<&-`

// process is a command under watch.
type process struct {
	cmd   *exec.Cmd
	watch *os.File      // closed: the watchdog bites
	ended chan struct{} // closed when the command has ended
}

// startProcess starts a command whose output is appended to a file.
func startProcess(logFile string, command ...string) (*process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close() //nolint:errcheck // the command has it now
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()                                                                                 //nolint:errcheck // the command has it now
	cmd := exec.Command("/bin/sh", append([]string{"-c", watched, "cassandratest"}, command...)...) //nolint:noctx // it outlives the context of its start
	cmd.Stdin, cmd.Stdout, cmd.Stderr = r, log, log
	// A group of its own: an interrupt at the terminal is for the tests, and the
	// watchdog goes with the command.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	p := &process{cmd: cmd, watch: w, ended: make(chan struct{})}
	go p.wait()
	return p, nil
}

func (p *process) wait() {
	// The state is in ProcessState.
	_ = p.cmd.Wait()
	// The watchdog must not live on to kill another process of the same number; as long
	// as it does, no other has that number.
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	_ = p.watch.Close()
	close(p.ended)
}

// kill ends the process at once and waits until it has.
func (p *process) kill() {
	// It may have ended already.
	_ = p.cmd.Process.Kill()
	<-p.ended
}

func (p *process) pause() error  { return p.cmd.Process.Signal(syscall.SIGSTOP) }
func (p *process) resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

func (p *process) state() string { return p.cmd.ProcessState.String() }

// lockFile waits until the file is ours. The kernel unlocks it when the process ends.
func lockFile(name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// processesWork says whether nodes can run as processes here.
const processesWork = true
