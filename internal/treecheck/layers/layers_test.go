// Package layers holds no code: its test enforces the direction of imports. They point one way,
// from the wiring down to its parts:
//
//	cmd → {app, commands} → {api → ingest, query}, engine
//	    → {ingest, rollup, recovery → cache} → registry, storage → blocks → metric
//
// A new package begins with a row in rules. An import that no row allows is either a mistake or a
// change of the architecture, which the row then shows.
package layers

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/quern/quern"

// rule says what the packages at Path may import of Quern.
type rule struct {
	// Path is relative to the module. "bench/..." means bench and everything below. The most
	// specific rule applies.
	Path string
	// May are paths relative to the module, in the same form. A package without "/..." does not
	// include what is below it.
	May []string
}

// The stack that most packages build on, bottom up.
var (
	nouns   = []string{"internal/metric", "internal/clock"}
	blocks  = with(nouns, "internal/blocks")
	storage = with(blocks, "internal/storage")
	cache   = with(storage, "internal/cache")
)

// protocol is what a protocol that pushes over HTTP needs.
var protocol = with(nouns, "internal/protocol/jsonscan", "internal/protocol/push", "internal/protocol/respond", "internal/ingest", "internal/wire")

// everywhere may be imported by all packages: these are about how the code is written, not about
// what it does.
var everywhere = []string{"internal/wire/excerpt", "internal/treecheck/invariants", "internal/limits"}

var rules = []rule{
	// Leaves.
	{"internal/metric", nil},
	{"internal/clock", nil},
	{"internal/limits", []string{"internal/clock"}},
	{"internal/wire/excerpt", nil},
	{"internal/treecheck/invariants", nil},
	{"internal/treecheck/layers", nil},
	{"internal/treecheck/links", nil},
	{"internal/treecheck/linear", nil},
	{"internal/wire", nil},
	{"internal/wire/version", nil},
	{"internal/storage/durable", nil},
	{"internal/client/pipes", nil},
	{"internal/query/postings", nil},
	{"internal/api/compress", nil},
	{"internal/api/page", nil},
	{"schema", nil},
	{"internal/access/bound", nil},
	{"internal/access", []string{"internal/access/bound", "internal/clock", "internal/documents/shelf", "internal/storage"}},
	{"internal/access/accesstest", []string{"internal/storage"}},
	{"internal/access/webconfig", []string{"internal/clock"}},

	// Settings use the nouns: a ladder, a width, a store's policy.
	{"internal/config", []string{"internal/access", "internal/client", "internal/metric", "internal/storage"}},

	// Stored bytes: no I/O and no clock.
	{"internal/blocks", []string{"internal/blocks/columns", "internal/metric"}},
	{"internal/blocks/columns", []string{"internal/metric"}},
	{"internal/blocks/sketch", []string{"internal/metric"}},

	// The contract and its implementations. A store knows nothing of its users.
	{"internal/storage", blocks},
	{"internal/storage/pebble", with(storage, "internal/blocks/sketch")},
	{"internal/storage/cassandra", with(storage, "internal/blocks/sketch", "schema")},
	{"internal/storage/storagetest", with(storage, "internal/blocks/sketch")},

	// Ingest and aggregation meet in the cache's protocol and nowhere else.
	{"internal/registry", storage},
	{"internal/documents/shelf", []string{"internal/clock", "internal/storage"}},
	{"internal/documents/dashboard", []string{"internal/clock", "internal/metric", "internal/documents/shelf", "internal/storage"}},
	{"internal/documents/dashboard/grafana", []string{"internal/documents/dashboard", "internal/metric"}},
	{"internal/documents/group", []string{"internal/clock", "internal/documents/shelf", "internal/storage"}},
	{"internal/documents/metadata", storage},
	{"internal/cache", storage},
	{"internal/recovery", cache},
	{"internal/rollup/packing", storage},
	{"internal/shards", storage},
	{"internal/rollup", with(cache, "internal/recovery", "internal/rollup/packing", "internal/shards", "internal/blocks/sketch")},
	{"internal/ingest", with(cache, "internal/access/bound", "internal/registry")},
	{"internal/app/engine", with(cache, "internal/ingest", "internal/recovery/late", "internal/recovery", "internal/registry", "internal/rollup", "internal/shards")},

	// The migration from a legacy keyspace.
	{"internal/migrate/legacy", []string{"internal/storage", "internal/storage/cassandra"}},
	{"internal/migrate", with(cache, "internal/migrate/legacy", "internal/registry", "internal/blocks/sketch")},

	// Reading goes past the cache: raw is the truth, roll-ups are in their tables.
	{"internal/recovery/late", storage},
	{"internal/query", with(storage, "internal/access/bound", "internal/recovery/late", "internal/query/postings", "internal/registry", "internal/blocks/sketch")},
	{"internal/query/querytest", with(storage, "internal/query", "internal/blocks/sketch", "internal/storage/pebble", "internal/storage/storagetest")},
	{"internal/promquery", with(storage, "internal/query", "internal/blocks/sketch")},

	// Requests of operators: these read what the runs read, for series that a selector names.
	{"internal/operate/reaggregate", with(cache, "internal/query")},
	{"internal/operate/backup", []string{"internal/clock", "internal/limits", "internal/storage/durable", "internal/wire"}},
	{"internal/operate/deletion", with(blocks, "internal/query")},
	{"internal/operate/explain", with(cache, "internal/access/bound", "internal/recovery", "internal/shards", "internal/rollup", "internal/query")},

	// What operators see of the runs, in the form that they see.
	{"internal/operate/aggregation", with(storage, "internal/recovery", "internal/rollup/packing", "internal/shards", "internal/wire")},

	// HTTP: decoding in, encoding out. A protocol knows what pushes share, and no other protocol; only
	// the server knows them all.
	{"internal/protocol/respond", []string{"internal/ingest", "internal/storage", "internal/wire"}},
	{"internal/protocol/jsonscan", []string{"internal/metric"}},
	{"internal/access/route", []string{"internal/access"}},
	{"internal/protocol/push", with(nouns, "internal/protocol/respond", "internal/ingest", "internal/storage", "internal/wire")},
	{"internal/protocol/reports", protocol},
	{"internal/protocol/annotations", with(protocol, "internal/access", "internal/access/route", "internal/query", "internal/storage")},
	{"internal/protocol/collectd", protocol},
	// An export has annotations, too.
	{"internal/protocol/importer", with(protocol, "internal/protocol/annotations")},
	{"internal/protocol/influx", with(protocol, "internal/access", "internal/access/route")},
	{"internal/protocol/otlp", protocol},
	{"internal/protocol/remotewrite", protocol},
	{"internal/api/reading", with(nouns, "internal/access", "internal/access/bound", "internal/protocol/annotations", "internal/access/route", "internal/protocol/jsonscan", "internal/protocol/push", "internal/protocol/respond", "internal/client", "internal/operate/backup", "internal/operate/explain", "internal/client/pipes", "internal/query", "internal/operate/reaggregate", "internal/registry", "internal/storage", "internal/operate/verify", "internal/wire")},
	{"internal/api/promapi", with(nouns, "internal/access", "internal/access/bound", "internal/access/route", "internal/protocol/respond", "internal/operate/deletion", "internal/query", "internal/storage")},
	{"internal/api/documents", []string{"internal/access", "internal/access/route", "internal/protocol/respond", "internal/documents/dashboard", "internal/documents/group", "internal/documents/shelf", "internal/storage", "internal/wire"}},
	{"internal/api", with(nouns, "internal/access", "internal/access/bound", "internal/access/...", "internal/api/...", "internal/protocol/...", "internal/api/compress", "internal/ingest", "internal/api/page", "internal/query", "internal/wire")},
	{"internal/api/apitest", with(storage, "internal/storage/storagetest", "internal/api", "internal/access/...", "internal/api/...", "internal/protocol/...", "internal/ingest", "internal/client/pipes", "internal/wire")},

	// Graphite's lines, past HTTP.
	{"internal/protocol/graphite", with(nouns, "internal/ingest", "internal/storage")},

	// The other end of the wire, which is no part of the server.
	{"internal/agent/hostmetrics", []string{"internal/ingest", "internal/metric"}},
	// Nor is the verification, also where a server asks itself: it shares no code with the grinding, only the storage format of
	// percentiles.
	{"internal/client", []string{"internal/wire/version", "internal/wire"}},
	{"internal/operate/verify", []string{"internal/client", "internal/metric", "internal/blocks/sketch", "internal/wire"}},
	{"internal/client/transfer", []string{"internal/client", "internal/clock", "internal/storage/durable", "internal/wire"}},
	{"internal/agent/spool", nouns},
	{"internal/agent/targets", nouns},
	// Its samples have the form that ingest takes, so that the decoders of both are the same.
	{"internal/agent/format", with(nouns, "internal/ingest", "internal/protocol/graphite", "internal/protocol/influx", "internal/protocol/jsonscan")},
	{"internal/agent/adaptor", with(nouns, "internal/agent/format", "internal/agent/hostmetrics", "internal/agent/spool", "internal/agent/targets", "internal/access", "internal/api", "internal/ingest", "internal/storage", "internal/wire/version")},
	{"internal/agent", with(nouns, "internal/access", "internal/access/route", "internal/agent/adaptor", "internal/agent/spool", "internal/ingest", "internal/protocol/remotewrite", "internal/protocol/respond", "internal/storage/durable", "internal/wire", "internal/wire/version")},
	{"internal/app/demo", []string{"internal/ingest", "internal/metric"}},

	// What people see at a terminal.
	{"internal/app/terminal", nil},

	// Opening the store that the options name, for the servers and for the commands beside them.
	{"internal/app/backend", with(blocks, "internal/config", "internal/storage", "internal/storage/cassandra", "internal/storage/pebble", "internal/wire/version")},
	{"internal/commands", with(
		cache, "internal/access", "internal/app/backend", "internal/client", "internal/config", "internal/documents/dashboard", "internal/documents/dashboard/grafana", "internal/operate/backup", "internal/operate/explain", "internal/migrate", "internal/migrate/legacy", "internal/query",
		"internal/operate/reaggregate", "internal/storage/cassandra", "internal/storage/pebble", "internal/app/terminal", "internal/client/transfer", "internal/operate/verify", "internal/wire",
	)},

	// The only wiring of servers, and the programs.
	{"internal/app", []string{"internal/...", "schema"}},
	// A program of its own links this, and no store.
	{"internal/app/hostagent", []string{"internal/access", "internal/agent", "internal/agent/adaptor", "internal/agent/spool", "internal/api", "internal/app/program", "internal/client", "internal/clock", "internal/config"}},
	{"internal/app/program", []string{"internal/app/terminal", "internal/wire/version"}},
	{"internal/app/program/programtest", []string{"internal/app/program"}},
	{"cmd/...", []string{"internal/app", "internal/app/hostagent", "internal/client", "internal/commands", "internal/config", "internal/app/program", "internal/app/program/programtest"}},

	// Programs and tests that may import everything.
	{"bench/...", []string{"..."}},
	{"integration/...", []string{"..."}},

	// The exploration itself knows nothing of Quern; its tests do.
	{"integration/explore", nil},
}

// forTests hold what tests share, in files that are not tests. Of the packages outside, only test
// files may import them, whatever their rows say. The benchmarks are no part of the product either.
var (
	forTests  = []string{"integration/...", "internal/access/accesstest", "internal/api/apitest", "internal/query/querytest", "internal/storage/storagetest", "internal/app/program/programtest", "internal/treecheck/linear"}
	noProduct = with(forTests, "bench/...")
)

// drivers may be imported only where they are wrapped, so that another store, or another version of
// a driver, is a change in one package.
var drivers = []struct {
	Prefix string
	Within []string
}{
	{"github.com/cockroachdb/pebble", []string{"internal/storage/...", "internal/query/querytest", "internal/agent/spool", "bench/..."}},
	{"github.com/gocql/gocql", []string{"internal/storage/...", "bench/...", "integration/..."}},
	{"github.com/apache/cassandra-gocql-driver", []string{"internal/storage/...", "bench/..."}},
	{"github.com/scylladb/", []string{"internal/storage/...", "bench/..."}},
}

func TestImportsPointOneWay(t *testing.T) {
	packages, err := readPackages(os.DirFS("../../.."))
	require.NoError(t, err)
	// A walk that finds no packages would find no problems either.
	require.Contains(t, packages, "internal/metric")

	for _, problem := range check(packages) {
		t.Error(problem)
	}
}

// TestCheck runs the checker on a few trees that must fail.
func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name    string
		pkg     string
		imports []string
		want    []string
	}{
		{"a leaf", "internal/metric", []string{"fmt"}, nil},
		{"downwards", "internal/cache", []string{module + "/internal/storage"}, nil},
		{"assertions", "internal/metric", []string{module + "/internal/treecheck/invariants"}, nil},
		{"a subtree", "cmd/quern", []string{module + "/internal/app"}, nil},
		{"everything", "bench", []string{module + "/internal/cache", "github.com/cockroachdb/pebble/v2"}, nil},
		{
			"upwards", "internal/storage",
			[]string{module + "/internal/cache"},
			[]string{"internal/storage imports internal/cache, but its row"},
		},
		{
			"named alone does not open what is below", "internal/cache",
			[]string{module + "/internal/storage/pebble"},
			[]string{"internal/cache imports internal/storage/pebble, but its row"},
		},
		{
			"past the wiring", "cmd/quern",
			[]string{module + "/internal/ingest"},
			[]string{"cmd/quern imports internal/ingest, but its row"},
		},
		{
			"the root", "internal/cache",
			[]string{module},
			[]string{"internal/cache imports ., but its row"},
		},
		{
			"what tests share", "internal/app",
			[]string{module + "/internal/storage/storagetest"},
			[]string{"internal/app imports internal/storage/storagetest, which only tests may import"},
		},
		{
			"the tests outside", "internal/cache",
			[]string{module + "/integration/acceptance"},
			[]string{"internal/cache imports integration/acceptance, but its row", "internal/cache imports integration/acceptance, which only tests may import"},
		},
		{"tests outside share too", "integration/acceptance", []string{module + "/internal/storage/storagetest", module + "/integration/oracle"}, nil},
		{
			"unknown", "internal/util", nil,
			[]string{"internal/util has no row in rules"},
		},
		{
			"a driver outside", "internal/ingest",
			[]string{"github.com/cockroachdb/pebble/v2/vfs"},
			[]string{"internal/ingest imports github.com/cockroachdb/pebble/v2/vfs, a driver"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := check(map[string][]string{c.pkg: c.imports})
			require.Len(t, got, len(c.want), "%v", got)
			for i := range got {
				require.Contains(t, got[i], c.want[i])
			}
		})
	}
}

// check returns each import that no rule allows, or that only tests may have, and each package
// without a rule.
func check(packages map[string][]string) []string {
	var problems []string
	for _, pkg := range slices.Sorted(maps.Keys(packages)) {
		r, ok := ruleFor(pkg)
		if !ok {
			problems = append(problems, fmt.Sprintf(
				"%s has no row in rules: add one that says what it may import", pkg))
			continue
		}
		for _, imp := range packages[pkg] {
			if imported, ok := withinModule(imp); ok {
				// Parts of a tree with one rule, such as bench, may import each other.
				within := strings.HasSuffix(r.Path, "/...") && matches(r.Path, imported)
				if !within && !matchesAny(with(r.May, everywhere...), imported) {
					problems = append(problems, fmt.Sprintf(
						"%s imports %s, but its row (%s) allows only %s",
						pkg, imported, r.Path, orNothing(r.May)))
				}
				if matchesAny(forTests, imported) && !matchesAny(noProduct, pkg) {
					problems = append(problems, fmt.Sprintf("%s imports %s, which only tests may import", pkg, imported))
				}
				continue
			}
			for _, d := range drivers {
				if !strings.HasPrefix(imp, d.Prefix) {
					continue
				}
				if !matchesAny(d.Within, pkg) {
					problems = append(problems, fmt.Sprintf(
						"%s imports %s, a driver that stays within %s",
						pkg, imp, strings.Join(d.Within, ", ")))
				}
				break
			}
		}
	}
	return problems
}

// readPackages returns the packages below root and what their files import. It leaves out test
// files, which may import anything. It includes files of every platform and build tag, since the
// rules hold for all.
func readPackages(root fs.FS) (map[string][]string, error) {
	packages := make(map[string][]string)
	err := fs.WalkDir(root, ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			// The go command does not see these directories either.
			if name := d.Name(); name != "." &&
				(name == "testdata" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		src, err := fs.ReadFile(root, file)
		if err != nil {
			return err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, src, parser.ImportsOnly)
		if err != nil {
			return err
		}
		pkg := path.Dir(filepath.ToSlash(file))
		imports := packages[pkg]
		for _, spec := range parsed.Imports {
			imp, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if !slices.Contains(imports, imp) {
				imports = append(imports, imp)
			}
		}
		packages[pkg] = imports
		return nil
	})
	return packages, err
}

// ruleFor returns the most specific rule for a package.
func ruleFor(pkg string) (rule, bool) {
	best, found := rule{}, false
	for _, r := range rules {
		if matches(r.Path, pkg) && (!found || len(r.Path) > len(best.Path)) {
			best, found = r, true
		}
	}
	return best, found
}

// matches reports whether pattern covers pkg: "a/b" covers only itself, "a/b/..." also everything
// below.
func matches(pattern, pkg string) bool {
	if pattern == "..." {
		return true
	}
	tree, isTree := strings.CutSuffix(pattern, "/...")
	return pkg == tree || isTree && strings.HasPrefix(pkg, tree+"/")
}

func matchesAny(patterns []string, pkg string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, pkg) })
}

func withinModule(imp string) (string, bool) {
	if imp == module {
		return ".", true
	}
	return strings.CutPrefix(imp, module+"/")
}

// with returns base and more in a new slice.
func with(base []string, more ...string) []string {
	return append(slices.Clone(base), more...)
}

func orNothing(may []string) string {
	if len(may) == 0 {
		return "nothing of Quern"
	}
	return strings.Join(may, ", ")
}
