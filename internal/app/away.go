package app

import (
	"errors"
	"sync/atomic"
)

// condition holds why the process cannot serve now, or nil.
type condition struct{ err atomic.Pointer[error] }

func (c *condition) set(err error) { c.err.Store(&err) }

func (c *condition) get() error {
	if err := c.err.Load(); err != nil {
		return *err
	}
	return nil
}

var errOpening = errors.New("the store is being opened")
