//go:build !linux

package cassandratest

import (
	"errors"
	"os"
)

// processesWork is false: outside Linux there are no free loopback addresses and no Unix signals.
// Docker is the way there.
const processesWork = false

var errProcesses = errors.New("processes need Linux")

type process struct{ ended chan struct{} }

func startProcess(string, string, ...string) (*process, error) { return nil, errProcesses }

func (p *process) kill()         {}
func (p *process) end() error    { return errProcesses }
func (p *process) pause() error  { return errProcesses }
func (p *process) resume() error { return errProcesses }
func (p *process) state() string { return "" }

func dataDir(int) string { return os.TempDir() }

func lockFile(string) (unlock func(), err error) { return nil, errProcesses }
