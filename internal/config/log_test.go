package config

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestLog: an error is one line for people, whatever else a library keeps in it.
func TestLog(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var buf bytes.Buffer
		log := Log{LogFormat: format}.Logger(&buf)
		log.Debug("not seen")
		log.Info("run", "blocks", 3, "err", nil)
		log.Warn("failed", "err", verbose{})
		assert.NotContains(t, buf.String(), "not seen")
		assert.NotContains(t, buf.String(), "nil")
		assert.NotContains(t, buf.String(), "null")
		assert.NotContains(t, buf.String(), "stack")
		assert.Contains(t, buf.String(), "in short")
		assert.Equal(t, 2, bytes.Count(buf.Bytes(), []byte("\n")))
	}
}

// verbose is an error with more text for %+v, as some libraries have.
type verbose struct{}

func (verbose) Error() string { return "in short" }

// Format implements fmt.Formatter.
func (verbose) Format(s fmt.State, _ rune) {
	_, _ = io.WriteString(s, "in short\nstack")
}
