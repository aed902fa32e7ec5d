package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// count counts tests and subtests.
type count struct{ passed, failed, skipped int }

func (c *count) add(o count) {
	c.passed += o.passed
	c.failed += o.failed
	c.skipped += o.skipped
}

// event is a line of `go test -json`, see go doc test2json.
type event struct {
	Action     string
	Package    string
	ImportPath string // of what is built
	Test       string
	Elapsed    float64 // seconds
	Output     string
}

// longSeconds is how long a test takes to be worth a line of its own, which shows that a long package goes on.
const longSeconds = 10

// judge reads what `go test -json` writes. It prints a line for each package and what failed tests have written, and
// finds what a green `go test` hides: tests that left themselves out, and packages in which no test ran.
type judge struct {
	out    io.Writer
	reason []string // why a test may skip: parts of what it writes then
	must   []string // tests that have to pass

	count    count
	problems []string
	ran      map[string]int             // tests by package
	written  map[string]map[string]*log // what is not printed yet, by package and test
	passed   map[string]bool
}

func newJudge(out io.Writer, reasons, must []string) *judge {
	return &judge{out: out, reason: reasons, must: must, ran: map[string]int{}, written: map[string]map[string]*log{}, passed: map[string]bool{}}
}

// log is the output of one test, or of a package outside of its tests.
type log struct{ strings.Builder }

// read reads to the end. Lines that are no events, such as those of go itself, are printed.
func (j *judge) read(from io.Reader) error {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil || e.Action == "" {
				_, _ = j.out.Write(line)
			} else {
				j.take(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (j *judge) take(e event) {
	switch e.Action {
	case "build-output":
		fmt.Fprint(j.out, e.Output)
	case "output":
		j.log(e.Package, e.Test).WriteString(e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			j.packageEnds(e)
		} else {
			j.testEnds(e)
		}
	}
}

func (j *judge) log(pkg, test string) *log {
	if j.written[pkg] == nil {
		j.written[pkg] = map[string]*log{}
	}
	if j.written[pkg][test] == nil {
		j.written[pkg][test] = &log{}
	}
	return j.written[pkg][test]
}

func (j *judge) testEnds(e event) {
	text := j.log(e.Package, e.Test).String()
	delete(j.written[e.Package], e.Test)
	j.ran[e.Package]++
	if e.Elapsed >= longSeconds && !strings.Contains(e.Test, "/") {
		fmt.Fprintf(j.out, "      %-60s %6.1f s %s\n", e.Test, e.Elapsed, e.Action)
	}
	switch e.Action {
	case "pass":
		j.count.passed++
		j.passed[e.Test] = true
	case "fail":
		j.count.failed++
		j.problems = append(j.problems, fmt.Sprintf("%s %s", e.Package, e.Test))
		fmt.Fprint(j.out, text)
	case "skip":
		j.count.skipped++
		if !slices.ContainsFunc(j.reason, func(r string) bool { return strings.Contains(text, r) }) {
			j.problems = append(j.problems, fmt.Sprintf("%s %s left itself out, for a reason that is not listed", e.Package, e.Test))
			fmt.Fprint(j.out, text)
		}
	}
}

func (j *judge) packageEnds(e event) {
	if e.Action == "skip" {
		return // it has no test files
	}
	texts := j.written[e.Package]
	delete(j.written, e.Package)
	if e.Action == "pass" {
		if j.ran[e.Package] == 0 {
			j.problems = append(j.problems, e.Package+": no test ran")
		}
		fmt.Fprintf(j.out, "ok    %-60s %6.1f s %5d tests\n", e.Package, e.Elapsed, j.ran[e.Package])
		return
	}
	// Tests that have not ended were running when the program panicked or took too long; that is among their output.
	for _, test := range slices.Sorted(maps.Keys(texts)) {
		fmt.Fprint(j.out, texts[test])
	}
	j.problems = append(j.problems, e.Package)
	fmt.Fprintf(j.out, "FAIL  %-60s %6.1f s %5d tests\n", e.Package, e.Elapsed, j.ran[e.Package])
}

// end returns everything that is wrong, once all has been read.
func (j *judge) end() []string {
	for _, test := range j.must {
		if !j.passed[test] {
			j.problems = append(j.problems, test+" has not passed")
		}
	}
	return j.problems
}
