package query

import (
	"context"
	"strconv"
	"strings"

	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/strutil"

	"github.com/quern/quern/internal/limits"
)

const (
	// MaxWords bounds the words of an expression or selector: names, numbers, strings, operators,
	// parentheses. The parser and the engine recurse. An expression nested a million deep exceeds
	// the maximum stack size, which ends the process.
	MaxWords = 10_000
	// MaxParsedBytes bounds the memory that parsing one request takes. Regular expressions matter
	// most: a pattern can compile to a hundred thousand times its length. The text of a pattern tells
	// roughly, see compiled. Of a list of values such as (a|b|c), 100 kB fit. The same list
	// without parentheses, a|b|c, may have 1 MB.
	MaxParsedBytes = 64 << 20
)

// Admit checks whether the PromQL expressions or selectors of one request may be parsed. It charges
// the memory that parsing takes to the request; see limits.Charge. Call it before any parser
// sees outside input, because the parser compiles regular expressions as it goes. Admit does not
// check syntax; the parser does. The error is a *RequestError or limits.ErrNoRoom.
func Admit(ctx context.Context, texts ...string) error {
	if len(texts) > MaxSelectors {
		return badRequest("there are %d selectors, more than the %d that one request may have", len(texts), MaxSelectors)
	}
	var p parsed
	for _, text := range texts {
		if err := p.admit(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

// parsed is the memory that the texts of a request take so far.
type parsed int64

// admit adds a text, and charges what it takes to the request of ctx.
func (p *parsed) admit(ctx context.Context, text string) error {
	n, err := parsedBytes(text)
	if err != nil {
		return err
	}
	if *p+parsed(n) > MaxParsedBytes { // a text that is refused takes nothing from the next one
		return badRequest("the regular expressions and selectors would take more than %d MB to compile, the limit for one request: "+
			"list fewer values, repeat less, use fewer groups or classes such as \\pL, or ask in several requests", MaxParsedBytes>>20)
	}
	*p += parsed(n)
	return limits.Charge(ctx, n)
}

// maxCopying bounds the depth of an expression times its length. The engine writes the text of each node again for each
// node above it. A thousand selectors one after the other may have all the length of a form.
const maxCopying = 1 << 30

// AdmitDepth checks whether the expression that a text was parsed to may be evaluated. The error is a *RequestError.
func AdmitDepth(e parser.Node, text string) error {
	if deep := Depth(e); deep*len(text) > maxCopying {
		return badRequest("it nests %d levels deep, too deep for an expression of its length", deep)
	}
	return nil
}

// Depth is the number of nodes on the longest way down an expression.
func Depth(e parser.Node) int {
	deepest := 0
	for child := range parser.ChildrenIter(e) {
		deepest = max(deepest, Depth(child))
	}
	return deepest + 1
}

const (
	wordBytes      = 512       // per word in the syntax tree
	listedBytes    = 64        // per byte of a list of values, which is not compiled
	compiledBytes  = 640       // per byte of any other pattern
	groupBytes     = 16        // per byte and group: where it begins and ends, for each instruction
	unicodeBytes   = 256 << 10 // per class such as \pL, which is costly when case is ignored
	wideRangeBytes = 1 << 20   // per range of characters beyond ASCII, of which each is looked up when case is ignored
	// maxRepeat is how often a pattern may repeat a part, also where repetitions nest. Package regexp refuses more.
	maxRepeat = 1000
)

// parsedBytes is roughly what parsing a text takes, patterns included.
func parsedBytes(text string) (sum int64, err error) {
	words := parser.Lex(text)
	var word, before parser.Item
	for n := 1; ; n++ {
		before = word
		if words.NextItem(&word); word.Typ == parser.EOF || word.Typ == parser.ERROR {
			return sum, nil
		}
		if n > MaxWords {
			return 0, badRequest("it has more than %d words", MaxWords)
		}
		sum += wordBytes + int64(len(word.Val))
		// Any string that is not compared with = or != may be a pattern, also as an argument of a
		// function such as label_replace.
		if word.Typ == parser.STRING && before.Typ != parser.EQL && before.Typ != parser.NEQ {
			if pattern, err := strutil.Unquote(word.Val); err == nil { // otherwise the parser says it better
				sum += compiled(pattern)
			}
		}
	}
}

// compiled is roughly what a regular expression takes.
func compiled(pattern string) int64 {
	if !strings.ContainsAny(pattern, `\.+*?()[]{}^$`) {
		return listedBytes * int64(len(pattern))
	}
	classes := int64(0)
	for i := range len(pattern) - 1 {
		switch next := pattern[i+1]; {
		case pattern[i] == '\\' && (next == 'p' || next == 'P'):
			classes += unicodeBytes
		case pattern[i] == '-' && (next >= 0x80 || strings.HasPrefix(pattern[i+1:], `\x`)):
			classes += wideRangeBytes
		}
	}
	groups := int64(strings.Count(pattern, "("))
	return repeats(pattern) * (int64(len(pattern))*(compiledBytes+groupBytes*groups) + classes)
}

// PatternSize is the length of a regular expression with what it repeats written out, at most.
func PatternSize(pattern string) int64 { return int64(len(pattern)) * repeats(pattern) }

// repeats returns how often a pattern such as (a{2,5}b){10} repeats any part of it, at most.
func repeats(pattern string) int64 {
	all, most := int64(1), int64(1)
	before, rest, some := strings.Cut(pattern, "{")
	for some {
		inside, _, _ := strings.Cut(rest, "}")
		least, upTo, _ := strings.Cut(inside, ",")
		n := int64(1)
		for _, digits := range []string{least, upTo} {
			if i, err := strconv.ParseInt(digits, 10, 32); err == nil && i <= maxRepeat && !strings.HasSuffix(before, `\x`) {
				n = max(n, i)
			}
		}
		all, most = min(all*n, maxRepeat), max(most, n)
		before, rest, some = strings.Cut(rest, "{")
	}
	if strings.Contains(pattern, "){") { // they may nest
		return all
	}
	return most
}
