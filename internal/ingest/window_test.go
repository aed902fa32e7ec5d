package ingest_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage/storagetest"
)

// settable is the machine's clock, set by so much.
type settable struct {
	clock.System
	by atomic.Int64
}

func (s *settable) Now() time.Time { return s.System.Now().Add(time.Duration(s.by.Load())) }

// A clock that is set while a commit waits makes its window neither longer nor shorter.
func TestWindowWhenTheClockIsSet(t *testing.T) {
	for _, by := range []time.Duration{-3 * time.Second, 3 * time.Second} {
		t.Run(by.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const window = 100 * time.Millisecond
				clk := &settable{}
				store := newStore(clk)
				in := ingest.Start(t.Context(), parts(store, clk, registry.Options{}), ingest.Options{Window: window})
				_, err := in.Append(t.Context(), report(1)) // so that the next need no ids
				require.NoError(t, err)

				hold, set := make(chan struct{}), make(chan struct{})
				store.Add(storagetest.Rule{Op: "Write", Times: 1, Before: func() error {
					close(hold)
					<-set
					return nil
				}})
				errs := make(chan error, 2)
				send := func() {
					_, err := in.Append(t.Context(), report(2))
					errs <- err
				}
				go send()
				<-hold
				go send() // into the commit that is opened meanwhile
				synctest.Wait()
				clk.by.Store(int64(by))
				began := time.Now()
				close(set)
				require.NoError(t, <-errs)
				require.NoError(t, <-errs)
				require.Equal(t, window, time.Since(began))
				require.NoError(t, in.Close())
			})
		})
	}
}
