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

// onUsageError says what the flag package says of an unknown flag in the form in which
// flags are given here, and with the name that may have been meant.
func onUsageError(c *cli.Context, err error, _ bool) error {
	name, unknown := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !unknown {
		return badUsage(c, err)
	}
	return badUsage(c, fmt.Errorf("there is no flag --%s%s", name, nearest(c.Command.Flags, name)))
}

// nearest is the end of a sentence about an unknown flag: the one that was meant. The
// library always finds some; one that does not even begin alike was hardly meant.
func nearest(flags []cli.Flag, unknown string) string {
	found := cli.SuggestFlag(flags, unknown, true)
	if len(unknown) < 2 || !strings.HasPrefix(found, "--"+unknown[:2]) {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", found)
}

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
		c.HideHelpCommand = true // `quern help serve` and `quern serve --help` are enough
		c.Before = noArguments
	}
	err := app.RunContext(ctx, args)
	var noTopic cli.ExitCoder // only the library's help makes one
	if errors.As(err, &noTopic) {
		return usageError{err, ""}
	}
	return err
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
