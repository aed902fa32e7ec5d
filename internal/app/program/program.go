// Package program holds what Quern's programs share: signals, exit codes, messages about mistakes
// on the command line, and completion.
package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/app/terminal"
	"github.com/quern/quern/internal/wire/version"
)

// The exit codes that scripts may rely on.
const (
	exitFailed = 1
	exitUsage  = 2
)

// Main runs a program with the process's arguments until it is done or a signal comes, then exits.
func Main(app *cli.App) {
	keepPrivate()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal drains. After it the default behaviour is back: the second signal ends the
	// process at once.
	context.AfterFunc(ctx, stop)
	os.Exit(exitCode(Run(ctx, app, os.Args, os.Stdout, os.Stderr), app.Name, os.Stderr))
}

// exitCode prints what went wrong, and returns the exit code.
func exitCode(err error, name string, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	// The error may have text of a server.
	fmt.Fprintf(terminal.Plain(stderr), "%s: %v\n", name, err)
	if usage := (UsageError{}); errors.As(err, &usage) {
		fmt.Fprintf(stderr, "See '%s --help'.\n", usage.Command)
		return exitUsage
	}
	return exitFailed
}

// UsageError is a mistake on the command line or in the configuration.
type UsageError struct {
	error
	// Command is the full name of the command whose help explains more, such as "quern serve".
	Command string
}

// Unwrap returns the mistake.
func (e UsageError) Unwrap() error { return e.error }

// BadUsage wraps err as a usage error of c's command.
func BadUsage(c *cli.Context, err error) error { return UsageError{err, c.Command.HelpName} }

// onUsageError rewrites the flag package's message about an unknown flag: with two dashes, and with
// a suggestion.
func onUsageError(c *cli.Context, err error, _ bool) error {
	name, unknown := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !unknown {
		return BadUsage(c, err)
	}
	return BadUsage(c, fmt.Errorf("unknown flag --%s%s", name, nearest(c.Command.Flags, name)))
}

// nearest returns the end of a sentence about an unknown flag, with the flag that was probably
// meant. The library always suggests one; nearest drops a suggestion whose first two letters
// differ.
func nearest(flags []cli.Flag, unknown string) string {
	found := cli.SuggestFlag(flags, unknown, true)
	if len(unknown) < 2 || !strings.HasPrefix(found, "--"+unknown[:2]) {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", found)
}

// Run runs a program. It adds what all programs have: completion, a version, and uniform errors.
func Run(ctx context.Context, app *cli.App, args []string, stdout, stderr io.Writer) error {
	app.Version = version.Read().String()
	app.Writer, app.ErrWriter = stdout, stderr
	app.EnableBashCompletion = true
	app.DisableSliceFlagSeparator = true // selectors contain commas
	app.Commands = append(app.Commands, completionCommand(app.Name), manCommand())
	app.OnUsageError = onUsageError
	app.ExitErrHandler = func(*cli.Context, error) {}
	// A command without an action of its own shows its help.
	app.Action = group(app.Action, cli.ShowAppHelp)
	prepare(app.Commands)
	err := app.RunContext(ctx, args)
	var noTopic cli.ExitCoder // only the library's help returns one
	if errors.As(err, &noTopic) {
		return UsageError{err, app.Name}
	}
	return err
}

func prepare(commands []*cli.Command) {
	for _, c := range commands {
		c.OnUsageError = onUsageError
		c.HideHelpCommand = true // the other forms of help are enough
		prepare(c.Subcommands)
		switch {
		case c.ArgsUsage != "":
		case len(c.Subcommands) > 0:
			c.Action = group(c.Action, cli.ShowSubcommandHelp)
		default:
			c.Before = noArguments
		}
	}
}

// group is the action of a command with subcommands, for when none is named.
func group(action, help cli.ActionFunc) cli.ActionFunc {
	return func(c *cli.Context) error {
		switch {
		case c.Args().Present():
			return BadUsage(c, fmt.Errorf("unknown command %q", c.Args().First()))
		case action == nil:
			return help(c)
		}
		return action(c)
	}
}

// noArguments rejects arguments of commands that take none, so that a forgotten -- is noticed.
func noArguments(c *cli.Context) error {
	if c.Args().Present() {
		return BadUsage(c, fmt.Errorf("unexpected argument %q", c.Args().First()))
	}
	return nil
}

// Action returns a command's action: it reads the flags with read and calls do with the result.
func Action[T any](
	read func(*cli.Context) (T, error), do func(ctx context.Context, cfg T, stdout, stderr io.Writer) error,
) cli.ActionFunc {
	return func(c *cli.Context) error {
		cfg, err := read(c)
		if err != nil {
			return BadUsage(c, err)
		}
		return do(c.Context, cfg, c.App.Writer, c.App.ErrWriter)
	}
}
