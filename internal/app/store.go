package app

import (
	"context"

	"github.com/quern/quern/internal/app/backend"
)

type store = backend.Store

func (s *setup) opener() *backend.Opener {
	return &backend.Opener{Config: s.cfg, Clock: s.clk, Logger: s.log}
}

func (s *setup) openStore(ctx context.Context, onFatal func(error)) (store, error) {
	return s.opener().OpenAndAdopt(ctx, onFatal)
}
