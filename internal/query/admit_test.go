package query_test

import (
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/treecheck/linear"
)

// list returns a pattern such as a1|a2|a3 of at least the given number of bytes.
func list(bytes int, format string) string {
	return strings.TrimSuffix(linear.Times(bytes, format+"|"), "|")
}

func matching(pattern string) string { return `{a=~` + strconv.Quote(pattern) + `}` }

// allocated returns the number of bytes that do allocates.
func allocated(do func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// Dashboards send all values of a variable in one pattern.
func TestLongListsAreAdmitted(t *testing.T) {
	for name, pattern := range map[string]string{
		"plain":        list(400_000, "web-%d"),
		"in brackets":  "(" + list(60_000, "%d-instance.example.com:9100") + ")",
		"escaped":      list(60_000, `%d\.example\.com`),
		"any case":     "(?i)(" + list(60_000, "%d-host") + ")",
		"parts":        list(30_000, ".*%d-host.*"),
		"with a port":  "(" + list(60_000, "%d-host") + "):[0-9]+",
		"of all words": strings.Repeat(`\pL+\s`, 20),
		"kanji":        `[\x{4e00}-\x{9fff}]+`,
	} {
		require.NoError(t, query.Admit(t.Context(), matching(pattern)), name)
		_, err := query.ParseSelectors(t.Context(), []string{matching(pattern)})
		require.NoError(t, err, name)
	}
}

// TestPatternsAreBounded: an expensive pattern is refused before anything compiles it, also if only
// all patterns of a request together are too expensive. The refusal itself is cheap.
func TestPatternsAreBounded(t *testing.T) {
	for name, pattern := range map[string]string{
		"classes of Unicode":  strings.Repeat(`\pL`, 19_000),
		"repetition":          strings.Repeat(`(a?b?c?){300}`, 1000),
		"repetition of class": strings.Repeat(`\pL{1000}`, 20),
		"of nothing":          strings.Repeat(`(){1000}`, 1000),
		"characters":          strings.Repeat(`.`, 500_000),
		"sets of strings":     strings.Repeat(`[ab]`, 8) + strings.Repeat(`(a)`, 4000),
		"any case":            `(?i)` + strings.Repeat(`[B-\x{1e942}]`, 1000),
		"any case, one class": `(?i)[` + strings.Repeat("B-\U0001e942", 1000) + `]`,
		"a class of classes":  `[` + strings.Repeat(`\pL`, 19_000) + `]`,
	} {
		for kind, text := range map[string]string{
			"a matcher":  matching(pattern),
			"a negative": `{a!~` + strconv.Quote(pattern) + `}`,
			"a function": `label_replace(up, "a", "b", "c", ` + strconv.Quote(pattern) + `)`,
			"the second": `up or {b="x", c=~ # why` + "\n" + strconv.Quote(pattern) + `}`,
		} {
			var err error
			took := allocated(func() { err = query.Admit(t.Context(), text) })
			var bad *query.RequestError
			require.ErrorAs(t, err, &bad, "%s: %s", name, kind)
			require.Contains(t, err.Error(), "ask in several requests")
			require.Less(t, took, int64(query.MaxParsedBytes), "%s: %s", name, kind)
		}
	}
	text := matching(strings.Repeat(`\pL`, 100))
	require.NoError(t, query.Admit(t.Context(), text))
	require.Error(t, query.Admit(t.Context(), text, text, text, text), "several selectors of one request")
	require.Error(t, query.Admit(t.Context(), strings.Repeat(text+" or ", 3)+text), "several in one expression")
	// A string that is compared with = is not a pattern.
	require.NoError(t, query.Admit(t.Context(), `{a="`+strings.Repeat(`\\pL`, 19_000)+`"}`))
}

// TestWeightIsEnough: the charge for a pattern is at least what its compilation allocates, and for
// most patterns not much more.
func TestWeightIsEnough(t *testing.T) {
	for name, pattern := range map[string]string{
		"list":           list(60_000, "web-%d"),
		"short list":     strings.Repeat("a|", 20_000),
		"empty list":     strings.Repeat("|", 20_000),
		"bracketed list": "(" + list(60_000, "%d-instance.example.com:9100") + ")",
		"escaped list":   list(60_000, `web\.%d`),
		"any case":       "(?i)(" + list(16_000, "%d-host") + ")",
		"parts":          list(16_000, ".*web-%d.*"),
		"dots":           strings.Repeat(".", 1000),
		"letters":        strings.Repeat(`\pL`, 50),
		"some letters":   strings.Repeat(`\pL+`, 50),
		"any letters":    "(?i)" + strings.Repeat(`\pL`, 10),
		"no letters":     strings.Repeat(`\PL`, 50),
		"others":         strings.Repeat(`\p{C}`, 50),
		"letters often":  `\pL{200}`,
		"not one pass":   `\pL{50}\pL{100}`,
		"repeated":       strings.Repeat(`a{1000}`, 10),
		"choices":        `(a?b?){300}`,
		"of nothing":     strings.Repeat(`(){1000}`, 10),
		"no a":           strings.Repeat(`[^a]`, 2000),
		"some of a-z":    strings.Repeat(`[a-z0-9]*`, 300),
		"nothing":        strings.Repeat(`()`, 500),
		"groups":         strings.Repeat(`(.)`, 500),
		"words":          strings.Repeat(`\w`, 300),
		"posix":          strings.Repeat(`[[:word:]]`, 300),
		"small choices":  strings.Repeat(`(a|b|c)`, 300),
		"nested":         strings.Repeat(`(`, 900) + strings.Repeat(`)`, 900),
		"nested choices": strings.Repeat(`(?:a|b`, 40) + strings.Repeat(`)`, 40),
		"choice of sets": list(8000, "[a-p][a-p]%d"),
		"wide":           "(?i)" + strings.Repeat(`[B-\x{1e942}]`, 5),
	} {
		t.Run(name, func(t *testing.T) {
			all := limits.NewBudget(query.MaxParsedBytes, 0)
			claim := all.Claim(limits.Client{})
			require.NoError(t, query.Admit(limits.WithClaim(t.Context(), &claim), matching(pattern)))
			took := allocated(func() { _ = labels.MustNewMatcher(labels.MatchRegexp, "a", pattern) })
			rest := all.Claim(limits.Client{})
			require.False(t, rest.Grow(query.MaxParsedBytes-took), "it allocates %d bytes in all", took)
		})
	}
}

// TestCapturesWeigh: a function asks for the groups of a pattern, which matching holds for each of its instructions.
func TestCapturesWeigh(t *testing.T) {
	call := func(pattern string) string {
		return `label_replace(up, "a", "$1", "c", ` + strconv.Quote(pattern) + `)`
	}
	for name, pattern := range map[string]string{
		"many":     strings.Repeat("(.?)", 1000),
		"repeated": strings.Repeat("(a?)", 100) + "(.?){1000}",
		"nested":   strings.Repeat("(", 900) + ".?" + strings.Repeat(")", 900) + strings.Repeat("(.?)", 600),
	} {
		text := strings.Repeat("x", 500)
		held := allocated(func() { regexp.MustCompile("^(?s:" + pattern + ")$").FindStringSubmatchIndex(text) })
		all := limits.NewBudget(1<<40, 0)
		claim := all.Claim(limits.Client{})
		err := query.Admit(limits.WithClaim(t.Context(), &claim), call(pattern))
		if err == nil {
			rest := all.Claim(limits.Client{})
			require.False(t, rest.Grow(1<<40-held), "%s: it allocates %d bytes", name, held)
			continue
		}
		var bad *query.RequestError
		require.ErrorAs(t, err, &bad, "%s allocates %d bytes", name, held)
		require.Contains(t, err.Error(), "groups")
	}
	require.Error(t, query.Admit(t.Context(), call(strings.Repeat("(.?)", 4000))))
	require.Error(t, query.Admit(t.Context(), strings.Repeat(call(strings.Repeat("(.?)", 600))+" or ", 5)+"up"), "several in one expression")
	for _, usual := range []string{
		"(.*):(.*)", strings.Repeat(`([^.]+)\.`, 50), "(" + list(60_000, "%d-instance.example.com:9100") + ")(:[0-9]+)?",
	} {
		require.NoError(t, query.Admit(t.Context(), call(usual)))
	}
}

func TestAdmitCharges(t *testing.T) {
	claim := limits.NewBudget(1<<20, 0).Claim(limits.Client{})
	ctx := limits.WithClaim(t.Context(), &claim)
	require.NoError(t, query.Admit(ctx, "up"))
	require.ErrorIs(t, query.Admit(ctx, matching("("+list(60_000, "%d-host")+")")), limits.ErrNoRoom)
	_, err := query.ParseSelectors(ctx, []string{matching("(" + list(60_000, "%d-host") + ")")})
	require.ErrorIs(t, err, limits.ErrNoRoom)
}

func TestAdmitIsLinear(t *testing.T) {
	for name, pattern := range map[string]func(n int) string{
		"list":      func(n int) string { return list(n, "web-%d") },
		"bracketed": func(n int) string { return "(" + list(n, "%d-host") + ")" },
		"parts":     func(n int) string { return list(n, ".*%d-host.*") },
	} {
		linear.Check(t, 8000, func(n int) string { return matching(pattern(n)) }, func(text string) {
			if err := query.Admit(t.Context(), text); err != nil {
				t.Error(name, err)
			}
		})
	}
}
