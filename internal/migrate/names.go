package migrate

import (
	"bufio"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/quern/quern/internal/metric"
)

// Series is the series of a schedule in the store. Labels exclude the source.
type Series struct {
	Source string
	Labels metric.Labels
}

// unnamed returns the series of a schedule without a name.
func unnamed(source string, id int32) Series {
	return Series{source, metric.Labels{
		{Name: metric.NameLabel, Value: "rhq_schedule"},
		{Name: "schedule_id", Value: strconv.FormatInt(int64(id), 10)},
	}}
}

// ReadNames reads the lines of a CSV file: schedule_id,source,metric[,label=value…]. It skips empty
// lines, lines that begin with #, and a heading. bad lists the faulty lines with their numbers; all
// others are used.
func ReadNames(r io.Reader) (names map[int32]Series, bad []string, err error) {
	names = make(map[int32]Series)
	lines := make(map[int32]int)
	taken := make(map[string]int)
	in := bufio.NewScanner(r)
	in.Buffer(nil, 1<<20)
	for n := 1; in.Scan(); n++ {
		line := strings.TrimSpace(strings.TrimPrefix(in.Text(), "\ufeff"))
		if line == "" || strings.HasPrefix(line, "#") || n == 1 && strings.HasPrefix(line, "schedule_id,") {
			continue
		}
		id, s, err := parseName(line)
		key := s.Source + "\x00" + string(s.Labels.AppendKey(nil))
		switch {
		case err != nil:
		case lines[id] > 0:
			err = fmt.Errorf("schedule %d is named in line %d already", id, lines[id])
		case taken[key] > 0:
			err = fmt.Errorf("the series of source %q has the schedule of line %d already: %s", s.Source, taken[key], s.Labels)
		}
		if err != nil {
			bad = append(bad, fmt.Sprintf("line %d: %s", n, err))
			continue
		}
		names[id], lines[id], taken[key] = s, n, n
	}
	return names, bad, in.Err()
}

func parseName(line string) (int32, Series, error) {
	fields, err := csv.NewReader(strings.NewReader(line)).Read()
	if parse := (*csv.ParseError)(nil); errors.As(err, &parse) {
		err = parse.Err
	}
	if err == nil && len(fields) < 3 {
		err = errors.New("want schedule_id,source,metric and then any number of label=value")
	}
	if err != nil {
		return 0, Series{}, err
	}
	id, err := strconv.ParseInt(strings.TrimSpace(fields[0]), 10, 32)
	if err != nil || id < 0 {
		return 0, Series{}, fmt.Errorf("%q is not a schedule id", fields[0])
	}
	if err := cmp.Or(checkName("source", fields[1]), checkName("metric", fields[2])); err != nil {
		return 0, Series{}, err
	}
	labels := []metric.Label{{Name: metric.NameLabel, Value: fields[2]}}
	for _, f := range fields[3:] {
		name, value, ok := strings.Cut(f, "=")
		switch err := checkName("label", name); {
		case !ok:
			return 0, Series{}, fmt.Errorf("%q is not of the form label=value", f)
		case err != nil:
			return 0, Series{}, err
		case name == metric.NameLabel || name == metric.SourceLabel:
			return 0, Series{}, fmt.Errorf("label %q has a field of its own", name)
		case !utf8.ValidString(value) || len(value) > 4096:
			return 0, Series{}, fmt.Errorf("the value of label %q is not valid UTF-8, or longer than 4096 bytes", name)
		}
		labels = append(labels, metric.Label{Name: name, Value: value})
	}
	sorted, err := metric.NewLabels(labels...)
	return int32(id), Series{fields[1], sorted}, err
}

// checkName validates a name as ingest does.
func checkName(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("the %s is empty", what)
	case len(name) > 256 || !utf8.ValidString(name) ||
		strings.ContainsFunc(name, func(c rune) bool { return c < ' ' || c == 0x7f }):
		return fmt.Errorf("%s %q: must be valid UTF-8 without control characters, of at most 256 bytes", what, name)
	}
	return nil
}
