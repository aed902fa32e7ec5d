package config

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"

	"github.com/quern/quern/internal/metric"
)

const (
	day  = 24 * time.Hour
	year = 365 * day
)

// options are the rows of one command: each says what an option is called, what its default is, what it does, how its
// text becomes a value, and where that value goes. Help, the page of flags, the variables and the keys of the file
// follow from the rows.
type options struct {
	flags []cli.Flag
	nodes map[string]*yaml.Node // keys that only the file has
	reads []func(*cli.Context) error
	errs  []error // of the rows that were read
}

// command returns the flags of a command, and what reads them. rows adds the command's rows, for a value to fill.
func command[T any](rows func(*options, *T)) (flags func() []cli.Flag, read func(*cli.Context) (T, error)) {
	flags = func() []cli.Flag {
		var o options
		rows(&o, new(T))
		return o.flags
	}
	read = func(c *cli.Context) (out T, err error) {
		var o options
		rows(&o, &out)
		places, err := applyFile(c, o.nodes)
		if err != nil {
			return out, err
		}
		// The error names all mistakes at once.
		for _, read := range o.reads {
			if err := read(c); err != nil {
				name, _, _ := strings.Cut(err.Error(), " ") // each begins with the option: --name or --name:
				if at := places[strings.Trim(name, "-:")]; at != "" {
					err = fmt.Errorf("%s: %w", at, err)
				}
				o.errs = append(o.errs, err)
			}
		}
		return out, errors.Join(o.errs...)
	}
	return flags, read
}

// node adds a key that only the file of --config has, and whose value may have any form.
func (o *options) node(key string, to *yaml.Node) { o.nodes = map[string]*yaml.Node{key: to} }

// check adds a condition on the values of the rows before it.
func (o *options) check(wrong func(*cli.Context) error) { o.reads = append(o.reads, wrong) }

// group is a heading of --help. Rows are added to it.
type group struct {
	*options
	name string
}

func (o *options) group(name string) group { return group{o, name} }

// The groups that several commands have.
func (o *options) store() group       { return o.group("Store") }
func (o *options) ingest() group      { return o.group("Ingest") }
func (o *options) aggregation() group { return o.group("Aggregation") }
func (o *options) server() group      { return o.group("Server") }
func (o *options) request() group     { return o.group("Request") }
func (o *options) transfer() group    { return o.group("Transfer") }

func (g group) add(f cli.Flag, read func(*cli.Context) error) {
	g.flags, g.reads = append(g.flags, f), append(g.reads, read)
}

// env returns the environment variable of an option.
func env(name string) []string {
	return []string{"QUERN_" + strings.ToUpper(strings.NewReplacer("-", "_", ".", "_").Replace(name))}
}

// wholeError is an error that needs no value before it.
type wholeError struct{ error }

var errEmpty = wholeError{errors.New("must not be empty")}

// mistake is the error about an option's value.
func mistake(name, value string, err error) error {
	if errors.As(err, new(wholeError)) {
		return fmt.Errorf("--%s: %w", name, err)
	}
	return fmt.Errorf("--%s %s: %w", name, value, err)
}

// parsed adds an option whose text parse turns into a value.
func parsed[T any](g group, to *T, name, value, usage string, parse func(string) (T, error)) {
	g.add(&cli.StringFlag{Name: name, Category: g.name, Value: value, Usage: usage, EnvVars: env(name)}, func(c *cli.Context) (err error) {
		if *to, err = parse(c.String(name)); err != nil {
			return mistake(name, c.String(name), err)
		}
		return nil
	})
}

// given adds an option whose value the store has if it is not given. The default is only shown.
func given[T any](g group, to *T, name, value, usage string, parse func(string) (T, error)) {
	parsed(g, to, name, value, usage, parse)
	g.onlyGiven(name)
}

// onlyGiven has the last row read only if its option is given.
func (o *options) onlyGiven(name string) {
	read := o.reads[len(o.reads)-1]
	o.reads[len(o.reads)-1] = func(c *cli.Context) error {
		if !c.IsSet(name) {
			return nil
		}
		return read(c)
	}
}

// number adds an option that is a whole number between low and high.
func number[N int | int64](g group, to *N, name string, value, low, high int, usage string) {
	g.add(&cli.IntFlag{Name: name, Category: g.name, Value: value, Usage: usage, EnvVars: env(name)}, func(c *cli.Context) error {
		n := c.Int(name)
		*to = N(n)
		if n < low || n > high {
			return fmt.Errorf("--%s %d: must be between %d and %d", name, n, low, high)
		}
		return nil
	})
}

// givenNumber adds a number that is 0 if it is not given: the store has it then, and the default is only shown.
func givenNumber(g group, to *int, name string, value, high int, usage string) {
	number(g, to, name, value, 1, high, usage)
	g.onlyGiven(name)
}

func (g group) boolean(to *bool, name string, value bool, usage string) {
	g.add(&cli.BoolFlag{Name: name, Category: g.name, Value: value, Usage: usage, EnvVars: env(name)}, func(c *cli.Context) error {
		*to = c.Bool(name)
		return nil
	})
}

// repeated adds an option that may be given several times.
func (g group) repeated(to *[]string, name, usage string) {
	g.add(&cli.StringSliceFlag{Name: name, Category: g.name, Usage: usage, EnvVars: env(name)}, func(c *cli.Context) error {
		*to = c.StringSlice(name)
		return nil
	})
}

// text adds an option that may be any text.
func (g group) text(to *string, name, value, usage string) {
	parsed(g, to, name, value, usage, func(s string) (string, error) { return s, nil })
}

// required adds a text that must not be empty: an empty environment variable must not choose where data is stored or
// which port is opened.
func (g group) required(to *string, name, value, usage string) {
	parsed(g, to, name, value, usage, notEmpty)
}

func notEmpty(s string) (string, error) {
	if s == "" {
		return "", errEmpty
	}
	return s, nil
}

// list adds an option with words between commas. It may be empty.
func (g group) list(to *[]string, name, value, usage string) {
	parsed(g, to, name, value, usage, func(s string) ([]string, error) { return splitWords(s), nil })
}

func splitWords(text string) (out []string) {
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word != "" {
			out = append(out, word)
		}
	}
	return out
}

// oneOf adds an option that is one of a few words, in any case.
func (g group) oneOf(to *string, name, value, usage string, words ...string) {
	parsed(g, to, name, value, usage, func(s string) (string, error) { return oneOf(s, words...) })
}

func oneOf(text string, words ...string) (string, error) {
	for _, w := range words {
		if strings.EqualFold(w, text) {
			return w, nil
		}
	}
	return "", fmt.Errorf("must be %s or %s", strings.Join(words[:len(words)-1], ", "), words[len(words)-1])
}

// span adds a duration.
func (g group) span(to *time.Duration, name string, value time.Duration, valid spanCheck, usage string) {
	parsed(g, to, name, metric.FormatSpan(value), usage, valid.parse)
}

// givenSpan adds a duration that is nil if it is not given.
func (g group) givenSpan(to **time.Duration, name string, value time.Duration, valid spanCheck, usage string) {
	given(g, to, name, metric.FormatSpan(value), usage, func(s string) (*time.Duration, error) {
		d, err := valid.parse(s)
		if err != nil {
			return nil, err
		}
		return &d, nil
	})
}

// spanCheck says which durations are valid, and how to say so.
type spanCheck struct {
	valid func(time.Duration) bool
	must  string
}

var (
	positive    = spanCheck{func(d time.Duration) bool { return d > 0 }, "must be more than 0"}
	notNegative = spanCheck{func(d time.Duration) bool { return d >= 0 }, "must not be negative"}
	// interval is a span between times in Unix ms.
	interval = spanCheck{func(d time.Duration) bool { return d >= time.Millisecond && d%time.Millisecond == 0 }, "must be whole milliseconds, at least 1ms"}
)

func (s spanCheck) parse(text string) (time.Duration, error) {
	d, err := metric.ParseSpan(text)
	if err == nil && !s.valid(d) {
		err = errors.New(s.must)
	}
	return d, err
}

// argument adds the only argument of a command. without says what to do if there is not exactly one.
func (o *options) argument(to *string, without string) {
	o.check(func(c *cli.Context) error {
		if *to = c.Args().First(); c.NArg() != 1 || *to == "" {
			return errors.New(without)
		}
		return nil
	})
}
