// Command quern stores measurement reports and grinds them into roll-ups.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"
)

// The exit codes that scripts may rely on.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal drains. After it the default holds again: the second ends at once.
	context.AfterFunc(ctx, stop)
	err := run(ctx, os.Args, os.Stdout, os.Stderr)
	var usage usageError
	switch {
	case err == nil:
		return
	case errors.As(err, &usage):
		fmt.Fprintf(os.Stderr, "quern: %v\nSee 'quern %s--help'.\n", err, usage.command)
		os.Exit(exitUsage)
	}
	fmt.Fprintf(os.Stderr, "quern: %v\n", err)
	os.Exit(exitFailed)
}

// usageError is a mistake on the command line or in the configuration.
type usageError struct {
	error
	command string
}

func (e usageError) Unwrap() error { return e.error }

func badUsage(c *cli.Context, err error) error {
	command := ""
	if c.Command != nil && c.Command.Name != "" && c.Command.Name != "quern" {
		command = c.Command.Name + " "
	}
	return usageError{err, command}
}

func onUsageError(c *cli.Context, err error, _ bool) error { return badUsage(c, err) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	app := &cli.App{
		Name:  "quern",
		Usage: "a metrics store that grinds reports into roll-ups by block",
		Description: `Start with

   quern serve --demo

which fills a store with 26 hours of generated data and serves it together with
this host's own metrics on http://127.0.0.1:9095.`,
		Version:              version(),
		Writer:               stdout,
		ErrWriter:            stderr,
		EnableBashCompletion: true,
		Suggest:              true,
		Commands:             []*cli.Command{serveCommand(), agentCommand(), completionCommand()},
		OnUsageError:         onUsageError,
		ExitErrHandler:       func(*cli.Context, error) {},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return badUsage(c, fmt.Errorf("there is no command %q", c.Args().First()))
			}
			return cli.ShowAppHelp(c)
		},
	}
	for _, c := range app.Commands {
		c.OnUsageError = onUsageError
		c.Before = noArguments
	}
	return app.RunContext(ctx, args)
}

// noArguments rejects what no command takes, so that a forgotten -- is not overlooked.
func noArguments(c *cli.Context) error {
	if c.Command.Name != "completion" && c.Args().Present() {
		return badUsage(c, fmt.Errorf("unexpected argument %q", c.Args().First()))
	}
	return nil
}

// version is the module's version as the toolchain recorded it.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return strings.TrimPrefix(info.Main.Version, "v")
}
