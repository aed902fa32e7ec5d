package commands

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/quern/quern/internal/app/terminal"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/operate/explain"
	"github.com/quern/quern/internal/wire"
)

// Explain asks a server why rows are what they are, and prints the answer in words.
func Explain(ctx context.Context, cfg config.Explain, stdout, stderr io.Writer) error {
	answer, text, err := answered[explain.Answer](ctx, &cfg.Connection, stderr, http.MethodPost, wire.ExplainPath, url.Values{
		"match[]": cfg.Match, "time": {cfg.Time}, "limit": {strconv.Itoa(cfg.Limit)},
	})
	if err != nil {
		return err
	}
	stdout = terminal.Plain(stdout)
	if cfg.JSON {
		if _, err := stdout.Write(text); err != nil {
			return err
		}
	}
	switch {
	case answer.Matched == 0:
		return fmt.Errorf("no series match %s", strings.Join(cfg.Match, " "))
	case cfg.JSON:
		return nil
	}
	return answer.WriteText(stdout)
}
