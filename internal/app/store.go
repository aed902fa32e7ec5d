package app

import (
	"context"

	"github.com/quern/quern/internal/backend"
	"github.com/quern/quern/internal/storage"
)

type store = backend.Store

func (s *setup) opener() *backend.Opener {
	return &backend.Opener{Config: s.cfg, Clock: s.clk, Logger: s.log}
}

func (s *setup) openStore(ctx context.Context, onFatal func(error)) (store, error) {
	return s.opener().OpenAndAdopt(ctx, onFatal)
}

func (s *setup) openBackend(ctx context.Context, onFatal func(error)) (store, error) {
	return s.opener().Open(ctx, onFatal)
}

func (s *setup) adopt(ctx context.Context, st storage.Store) error { return s.opener().Adopt(ctx, st) }
