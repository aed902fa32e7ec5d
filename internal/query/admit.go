package query

import (
	"context"
	"regexp/syntax"
	"strings"

	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/strutil"

	"github.com/quern/quern/internal/admission"
)

const (
	// MaxWords bounds the words of an expression or selector: names, numbers, strings, operators,
	// parentheses. The parser and the engine recurse. An expression nested a million deep exceeds
	// the maximum stack size, which ends the process.
	MaxWords = 10_000
	// MaxParsedBytes bounds the memory that parsing one request takes. Regular expressions matter
	// most: a pattern can compile to a hundred thousand times its length. The estimate errs
	// upwards, see weigher. A list of values such as (a|b|c) costs about 400 bytes per byte of
	// text, so 150 kB of text fit. The same list without parentheses, a|b|c, may have 1 MB.
	MaxParsedBytes = 64 << 20
)

// Admit checks whether the PromQL expressions or selectors of one request may be parsed. It charges
// the memory that parsing takes to the request; see admission.Charge. Call it before any parser
// sees outside input, because the parser compiles regular expressions as it goes. Admit does not
// check syntax; the parser does. The error is a *RequestError or admission.ErrNoRoom.
func Admit(ctx context.Context, texts ...string) error {
	if len(texts) > MaxSelectors {
		return badRequest("there are %d selectors, more than the %d that one request may have", len(texts), MaxSelectors)
	}
	w := weigher{ctx: ctx}
	for _, text := range texts {
		if err := w.text(text); err != nil {
			return err
		}
	}
	return nil
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

// weigher estimates the memory that parsing the texts of a request takes. The constants are the
// total allocations of labels.NewMatcher, rounded up, measured on patterns that consist of one
// construct each. TestWeightIsEnough checks them.
type weigher struct {
	ctx context.Context //nolint:containedctx // that of Admit
	sum int64
}

const (
	wordBytes      = 512 // per word in the syntax tree
	listedBytes    = 64  // per byte of a list of values, which is not compiled
	scannedBytes   = 300 // per byte of a pattern, to parse it
	nodeBytes      = 1000
	literalBytes   = 500       // per literal character
	runeBytes      = 72        // per bound of a range in a class
	unicodeBytes   = 256 << 10 // per class such as \pL, which is costly when case is ignored
	wideRangeBytes = 1 << 20
	// captureBytes is what matching holds of a group for each instruction: where it begins and ends. Each way through a
	// pattern has its own.
	captureBytes = 16
	// mostSets is how many strings a pattern may stand for and still be kept as those.
	mostSets = 256
)

// add counts bytes and charges them.
func (w *weigher) add(n int64) error {
	if w.sum+n > MaxParsedBytes {
		return badRequest("the regular expressions and selectors would take more than %d MB to compile, the limit for one request: "+
			"list fewer values, repeat less, use fewer groups or classes such as \\pL, or ask in several requests", MaxParsedBytes>>20)
	}
	w.sum += n
	return admission.Charge(w.ctx, n)
}

func (w *weigher) text(text string) error {
	words := parser.Lex(text)
	var word, before parser.Item
	for n := 1; ; n++ {
		before = word
		if words.NextItem(&word); word.Typ == parser.EOF || word.Typ == parser.ERROR {
			return nil
		}
		if n > MaxWords {
			return badRequest("it has more than %d words", MaxWords)
		}
		err := w.add(wordBytes + int64(len(word.Val)))
		// Any string that is not compared with = or != may be a pattern, also as an argument of a
		// function such as label_replace.
		if word.Typ == parser.STRING && before.Typ != parser.EQL && before.Typ != parser.NEQ && err == nil {
			err = w.quoted(word.Val, before.Typ != parser.EQL_REGEX && before.Typ != parser.NEQ_REGEX)
		}
		if err != nil {
			return err
		}
	}
}

func (w *weigher) quoted(text string, captures bool) error {
	pattern, err := strutil.Unquote(text)
	if err != nil {
		return nil //nolint:nilerr // the parser says it better
	}
	return w.pattern(pattern, captures)
}

// pattern counts a regular expression. What is seen of its text bounds what its syntax tree takes, which tells the
// rest. Captures says that it is asked where its groups match, as functions do.
func (w *weigher) pattern(pattern string, captures bool) error {
	if !strings.ContainsAny(pattern, `\.+*?()[]{}^$`) {
		return w.add(listedBytes * int64(len(pattern)))
	}
	scanned := scannedBytes * int64(len(pattern))
	for i := range len(pattern) - 1 {
		switch next := pattern[i+1]; {
		case pattern[i] == '\\' && (next == 'p' || next == 'P'):
			scanned += unicodeBytes
		case pattern[i] == '-' && (next >= 0x80 || strings.HasPrefix(pattern[i+1:], `\x`)):
			// When case is ignored, each character of such a range is looked up.
			scanned += wideRangeBytes
		}
	}
	if err := w.add(scanned); err != nil {
		return err
	}
	tree, err := syntax.Parse(pattern, syntax.Perl|syntax.DotNL)
	if err != nil {
		return nil //nolint:nilerr // the parser says it better
	}
	if err := w.add(max(weigh(tree).bytes-scanned, 0)); err != nil || !captures {
		return err
	}
	groups := int64(tree.MaxCap() + 1)
	prog, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return nil //nolint:nilerr // the parser says it better
	}
	return w.add(captureBytes * groups * int64(len(prog.Inst)))
}

// weight is the cost of one part of a compiled pattern.
type weight struct {
	bytes int64
	// nodes and characters count those on the longest path through the part.
	nodes, characters int64
	// strings is the number of strings that the part expands to, up to mostSets.
	strings int64
}

func weigh(re *syntax.Regexp) weight {
	w := weight{bytes: nodeBytes + runeBytes*int64(len(re.Rune)), nodes: 1, strings: 1}
	switch re.Op {
	case syntax.OpLiteral:
		w.characters = int64(len(re.Rune))
		w.bytes = nodeBytes + literalBytes*w.characters
	case syntax.OpCharClass:
		w.strings = 0
		for i := 1; i < len(re.Rune); i += 2 {
			w.strings = min(w.strings+int64(re.Rune[i]-re.Rune[i-1])+1, mostSets+1)
		}
		if w.strings <= mostSets {
			w.characters = 1
		}
	case syntax.OpAlternate:
		w.strings = 0
	default:
	}
	for _, sub := range re.Sub {
		s := weigh(sub)
		w.bytes += s.bytes
		if re.Op == syntax.OpAlternate {
			w.nodes, w.characters = max(w.nodes, s.nodes+1), max(w.characters, s.characters)
			w.strings = min(w.strings+s.strings, mostSets)
		} else {
			w.nodes, w.characters = w.nodes+s.nodes, w.characters+s.characters
			w.strings = min(w.strings*max(s.strings, 1), mostSets)
		}
	}
	switch re.Op {
	case syntax.OpRepeat:
		w.bytes *= int64(max(re.Min, re.Max, 1))
	case syntax.OpConcat:
		// The list of expanded strings grows with each part and is copied each time.
		w.bytes += w.strings * w.nodes * w.characters
	default:
	}
	return w
}
