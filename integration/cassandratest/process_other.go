//go:build !linux

package cassandratest

import "errors"

// processesWork: elsewhere than on Linux there are neither loopback addresses for the
// asking nor the signals of Unix, and Docker is the way.
const processesWork = false

var errProcesses = errors.New("processes need Linux")

type process struct{ ended chan struct{} }

func startProcess(string, ...string) (*process, error) { return nil, errProcesses }

func (p *process) kill()         {}
func (p *process) pause() error  { return errProcesses }
func (p *process) resume() error { return errProcesses }
func (p *process) state() string { return "" }

func lockFile(string) (unlock func(), err error) { return nil, errProcesses }
