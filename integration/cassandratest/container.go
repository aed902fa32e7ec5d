package cassandratest

import (
	"context"
	"errors"
)

type container struct{ host string }

func startContainer(ctx context.Context, o Options) (*container, error) { return nil, unavailable("Docker is not supported yet") }
func (c *container) nodetool(ctx context.Context, args ...string) (string, error) { return "", errors.New("TODO") }
func (c *container) log() string { return "" }
func (c *container) stop() {}
