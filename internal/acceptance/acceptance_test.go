package acceptance

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func openModel(_ testing.TB, s storage.Settings, r storage.Retention, clk clock.Clock) func() storage.Store {
	m := storagetest.NewModel(s, r, clk)
	return func() storage.Store { return m.Reopen() }
}

func TestModel(t *testing.T) { Run(t, openModel) }
