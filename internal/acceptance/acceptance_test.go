package acceptance

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestModel(t *testing.T) { Run(t, Backend{Open: OpenModel, Believes: true}) }
