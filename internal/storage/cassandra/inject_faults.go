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
	f := failures()
	if f == nil {
		return s
	}
	return around{s, func(ctx context.Context, request string, send func(context.Context) error) error {
		return f.do(ctx, log, request, send)
	}}
}

// failures are those of the process, nil without a rate. A store that is opened again, because a request failed, goes on with
// them: from the beginning, the same request would fail at each attempt.
var failures = sync.OnceValue(func() *failing {
	text := os.Getenv("QUERN_FAULT_RATE")
	if text == "" {
		return nil
	}
	rate, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic(err)
	}
	seed, err := strconv.ParseUint(os.Getenv("QUERN_FAULT_SEED"), 10, 64)
	if err != nil {
		panic(err)
	}
	return &failing{rate: rate, rng: rand.New(rand.NewPCG(seed, 0))}
})

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
	rate float64

	mu  sync.Mutex
	rng *rand.Rand
}

func (f *failing) do(ctx context.Context, log *slog.Logger, request string, send func(context.Context) error) error {
	f.mu.Lock()
	hit, kind := f.rng.Float64() < f.rate, injected[f.rng.IntN(len(injected))]
	f.mu.Unlock()
	if !hit {
		return send(ctx)
	}
	log.Info("a fault is injected", "kind", kind.name, "request", request)
	if kind.done {
		if err := send(ctx); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: injected: %s", kind.err, kind.name)
}
