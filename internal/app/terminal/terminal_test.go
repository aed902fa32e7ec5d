package terminal_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/quern/quern/internal/app/terminal"
)

func TestIs(t *testing.T) {
	assert.False(t, terminal.IsTerminal(new(bytes.Buffer)))
}
