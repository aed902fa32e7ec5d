package commands

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/quern/quern/internal/app/terminal"
	"github.com/quern/quern/internal/client"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/operate/explain"
	"github.com/quern/quern/internal/wire"
)

// Explain asks a server why rows are what they are, and prints the answer in words.
func Explain(ctx context.Context, cfg config.Explain, stdout, stderr io.Writer) error {
	body, err := ask(ctx, &cfg.Connection, stderr, wire.ExplainPath, url.Values{
		"match[]": cfg.Match, "time": {cfg.Time}, "limit": {strconv.Itoa(cfg.Limit)},
	})
	if err != nil {
		return stopped(ctx, err, "stopped")
	}
	defer body.Close()
	text, err := client.ReadAll(body)
	if err != nil {
		return stopped(ctx, err, "stopped")
	}
	var answer explain.Answer
	if err := json.Unmarshal(text, &answer); err != nil {
		return fmt.Errorf("the server's answer is not a Quern response: %w", err)
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
