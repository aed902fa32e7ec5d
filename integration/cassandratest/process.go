package cassandratest

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// watched runs a command that ends when this process ends, in whatever way. This process keeps the
// other end of standard input open, and the kernel closes it at its end. Pdeathsig does not help:
// it watches the thread that started the command, and Go's threads come and go. The shell becomes
// the command, so that signals reach the command and its exit status is visible. Only the watchdog
// stays a shell. It removes the directory $0, which may be in memory, where nothing else cleans up.
const watched = `exec 3<&0
( read -r _ <&3; kill -KILL $$; rm -rf "$0" ) >/dev/null 2>&1 &
exec "$@" </dev/null 3<&-`

// process is a command with its watchdog.
type process struct {
	cmd   *exec.Cmd
	watch *os.File      // when it is closed, the watchdog kills
	ended chan struct{} // closed when the command has ended
}

// startProcess starts a command whose output is appended to a file. If this process ends first, the
// directory dir is removed.
func startProcess(dir, logFile string, command ...string) (*process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close() //nolint:errcheck // the command has it now
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()                                                                     //nolint:errcheck // the command has it now
	cmd := exec.Command("/bin/sh", append([]string{"-c", watched, dir}, command...)...) //nolint:noctx // it outlives the context of its start
	cmd.Stdin, cmd.Stdout, cmd.Stderr = r, log, log
	// A group of its own: an interrupt at the terminal reaches only the tests, and the watchdog is
	// killed with the command.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	p := &process{cmd: cmd, watch: w, ended: make(chan struct{})}
	go p.wait()
	return p, nil
}

func (p *process) wait() {
	// ProcessState holds the state.
	_ = p.cmd.Wait()
	// The watchdog must not outlive the command and kill another process with the same number. As
	// long as the watchdog lives, the number is not reused.
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	_ = p.watch.Close()
	close(p.ended)
}

// kill ends the process at once and waits for its end.
func (p *process) kill() {
	// It may have ended already.
	_ = p.cmd.Process.Kill()
	<-p.ended
}

func (p *process) pause() error  { return p.cmd.Process.Signal(syscall.SIGSTOP) }
func (p *process) resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// memoryDir is where Linux has a file system in memory.
const memoryDir = "/dev/shm"

// roomPerNode is how many bytes must be free there for a node: for its process, and for its
// files, which take some hundred megabytes in most tests.
const roomPerNode = 3 << 30

// dataDir returns the directory for the files of n nodes: in memory if there is room, since a node
// syncs dozens of files to create or empty tables; otherwise the one for temporary files.
func dataDir(n int) string {
	var fs syscall.Statfs_t
	if syscall.Statfs(memoryDir, &fs) != nil || fs.Bavail*uint64(fs.Bsize) < uint64(n)*roomPerNode {
		return os.TempDir()
	}
	return memoryDir
}

// lockFile waits until it has locked the file. The kernel unlocks it when the process ends.
func lockFile(name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for err = syscall.EINTR; errors.Is(err, syscall.EINTR); {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}
