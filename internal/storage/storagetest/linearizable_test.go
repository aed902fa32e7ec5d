package storagetest

import (
	"testing"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
)

func TestModelLinearizable(t *testing.T) {
	Linearizable(t, func(*testing.T) []storage.Store {
		return []storage.Store{NewModel(LinearizableSettings(), nil, clock.NewSimulated(day0))}
	})
}

func TestLWWModelLinearizable(t *testing.T) {
	Linearizable(t, func(*testing.T) []storage.Store {
		clk := clock.NewSimulated(day0)
		m := NewLWWModel(LinearizableSettings(), nil, clk)
		ahead, behind := clock.NewSimulated(day0.Add(time.Second)), clock.NewSimulated(day0.Add(-time.Second))
		return []storage.Store{m, m.Session(ahead), m.Session(behind)}
	})
}
