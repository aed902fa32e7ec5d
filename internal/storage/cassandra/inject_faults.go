//go:build faults

package cassandra

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"

	"github.com/quern/quern/internal/storage"
)

// inject makes requests fail, for tests of the whole process. QUERN_FAULT_RATE is the share that
// fails, from 0 to 1, QUERN_FAULT_SEED the seed. Each fault is logged.
func inject(s session, log *slog.Logger) session {
	text := os.Getenv("QUERN_FAULT_RATE")
	if text == "" {
		return s
	}
	rate, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic(err)
	}
	seed, err := strconv.ParseUint(os.Getenv("QUERN_FAULT_SEED"), 10, 64)
	if err != nil {
		panic(err)
	}
	return &failing{session: s, log: log, rate: rate, rng: rand.New(rand.NewPCG(seed, 0))}
}

// injected are the kinds of faults: whether the request is executed, and which error it returns.
var injected = []struct {
	name string
	done bool
	err  error
}{
	{"refused", false, storage.ErrUnavailable},
	{"overloaded", false, storage.ErrOverloaded},
	{"lost", false, storage.ErrTimeout},
	{"unanswered", true, storage.ErrTimeout},
}

type failing struct {
	session
	log  *slog.Logger
	rate float64

	mu  sync.Mutex
	rng *rand.Rand
}

func (f *failing) do(request string, send func() error) error {
	f.mu.Lock()
	hit, kind := f.rng.Float64() < f.rate, injected[f.rng.IntN(len(injected))]
	f.mu.Unlock()
	if !hit {
		return send()
	}
	f.log.Info("a fault is injected", "kind", kind.name, "request", request)
	if kind.done {
		if err := send(); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: injected: %s", kind.err, kind.name)
}

func (f *failing) exec(ctx context.Context, tsUs int64, stmts ...statement) error {
	return f.do("exec", func() error { return f.session.exec(ctx, tsUs, stmts...) })
}

func (f *failing) cas(ctx context.Context, stmts ...statement) (applied bool, err error) {
	err = f.do("cas", func() error {
		applied, err = f.session.cas(ctx, stmts...)
		return err
	})
	return applied && err == nil, err
}

func (f *failing) page(ctx context.Context, st statement, size int, from []byte, dest any) (next []byte, err error) {
	err = f.do("page", func() error {
		next, err = f.session.page(ctx, st, size, from, dest)
		return err
	})
	return next, err
}

func (f *failing) clocks(ctx context.Context) (found []reading, err error) {
	err = f.do("clocks", func() error {
		found, err = f.session.clocks(ctx)
		return err
	})
	return found, err
}
