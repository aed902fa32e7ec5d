package main

import "slices"

// target is a set of parts that is run by name. `make test` runs the target one.
type target struct {
	Name  string
	Shows string
	Parts []part
}

// part is a step of a target. Parts run one after another, even if an earlier one has failed.
type part struct {
	Name  string
	Shows string
	Needs []need
	Runs  []goRun
	// Plain says that the tests run even without the race detector.
	Plain bool
}

// goRun is one call of go: of vet, or of test.
type goRun struct {
	Dir      string // of the module; the default is this one
	Vet      bool
	Packages []string
	Except   []string // of Packages
	Only     []string // names of tests; the default is all
	Skip     []string // names of tests
	Must     []string // tests that have to pass
	Args     []string // for the test programs
	Env      []string
	Race     bool   // with the race detector
	Short    bool   // without tests that take a Cassandra
	Serial   bool   // one test at a time: for what starts servers
	Timeout  string // of one package, which only ends one that hangs; the default is 20m
}

// The modules below this one, which ./... does not reach.
const (
	pageModule        = "integration/page"
	conformanceModule = "internal/promquery/conformance"
	releaseModule     = "integration/release"
)

// servers are the packages whose tests start servers, or build programs again and again. They run in parts of their own.
var servers = []string{
	"./integration", "./integration/breaks", "./integration/cluster", "./integration/gate",
	"./integration/migrate", "./integration/programs", "./integration/stores",
}

// shared are the packages that share memory between goroutines. The race detector makes tests about ten times slower, so
// tier one runs these with it and no others. Everything else is one goroutine that computes.
var shared = []string{
	"./internal/access", "./internal/limits", "./internal/agent", "./internal/agent/adaptor", "./internal/agent/targets", "./internal/app", "./internal/app/hostagent", "./internal/cache", "./internal/operate/deletion",
	"./internal/app/engine", "./internal/protocol/graphite", "./internal/ingest", "./internal/recovery/late", "./internal/recovery", "./internal/registry",
	"./internal/rollup", "./internal/shards", "./internal/storage/cassandra",
}

// benchmarks are packages without tests.
var benchmarks = []string{"./bench/parts"}

// concurrent are the tests of large packages that start goroutines. Tier one runs these with the race detector too.
var (
	concurrentIn = []string{"./internal/query", "./internal/storage/pebble"}
	concurrent   = []string{
		"TestCloseUnderUse", "TestLinearizable", "TestStuckDisk", "TestWritersAndReaders",
	}
)

// sweeps are tests that go through many cases or seeds, or damage each byte in turn. What they test is also tested by
// others, with fewer cases. Tier one leaves them out; a name stands for the tests of that name in all packages.
var sweeps = []string{
	"TestDamagedBlock", "TestDamagedBlockOfMarks", "TestDamagedBlockOfRollups", "TestDamagedBlocksExpire",
	"TestDamagedBlocksOfDocuments", "TestDamagedCacheBlockIsDeleted", "TestHistories",
	"TestOpenSurvivesErrors", "TestPointsAgainstSamples", "TestRollupsAreAsRaw", "TestUnpackedSlices", "TestWindowsAnywhere",
}

// costs are tests that measure the heap of the whole process or the time that something takes. Their verdict depends on
// what else runs, so tier one leaves them out.
var costs = []string{
	"TestAnAnswerHoldsNoExpression", "TestAnswerBytes", "TestBytes", "TestBytesAreWhatIsHeld", "TestBytesOfSources",
	"TestDenseSlicesAreReadInParts", "TestHostileQueriesEnd", "TestListedSeriesHoldNoLabels",
	"TestLongListsAreSentAsTheyAreMade", "TestMadeUpSourcesAreNotKept",
	"TestPatternsAreBounded", "TestQuadraticTime",
	"TestRowsCountAsWhatTheyHold", "TestSampleSetMemoryOfDuplicates", "TestSelectorsAreBounded", "TestSelectorsOfAQueryShareItsLimit",
	"TestSelectorsShareLabels", "TestSeriesAreSentOneByOne", "TestStalledExports",
	"TestStreamsOfManySeries",
}

// linears are tests that compare costs between sizes of an input. Tier one counts the bytes that they allocate, and
// the target costs measures their time too.
var linears = []string{
	"TestAdmitIsLinear", "TestHostileIsLinear", "TestLinear", "TestSelectIsLinear",
}

// reasons are parts of what a test may write when it skips.
var reasons = []string{
	"it takes a Cassandra, and -short is for tests without",
	"the backend leaves this to its database",
	"only the writers' clocks order what they write",
	"a clock that is ahead is refused there",
	"on this machine", // a shell, a program or a small file system that is not installed or cannot be mounted
	"root may write everywhere",
	"where the server is no process of ours",
	"where there are no nodes as processes",
}

// targets are what can be run, tier one first.
var targets = slices.Concat([]target{tierOne}, tierTwo, []target{everything()})

var tierOne = target{"one", "what every change must pass", []part{
	{Name: "vet", Shows: "go vet, all modules", Runs: []goRun{{Vet: true}, {Dir: pageModule, Vet: true}, {Dir: conformanceModule, Vet: true}, {Dir: releaseModule, Vet: true}}},
	{Name: "unit", Shows: "each package by itself; behaviours on the model and the embedded store; orders of steps", Runs: []goRun{
		{Packages: []string{"./..."}, Except: slices.Concat(servers, shared, benchmarks), Skip: slices.Concat(sweeps, costs), Short: true},
	}},
	{Name: "race", Shows: "what goroutines share, under the race detector", Needs: []need{race}, Plain: true, Runs: []goRun{
		{Packages: shared, Skip: slices.Concat(sweeps, costs), Short: true, Race: true},
		{Packages: concurrentIn, Only: concurrent, Short: true, Race: true},
	}},
	{Name: "cassandra", Shows: "the storage contract and the programs over one node", Needs: []need{node}, Runs: []goRun{
		{Packages: []string{"./integration/gate"}, Serial: true, Must: []string{"TestConformance", "TestPrograms"}},
	}},
	{Name: "page", Shows: "a walk through the page in Chromium", Needs: []need{chromium}, Runs: []goRun{
		{Dir: pageModule, Packages: []string{"."}, Only: []string{"TestWalk"}, Serial: true, Must: []string{"TestWalk"}},
	}},
}}

var tierTwo = []target{
	{"cluster", "clusters of three nodes that are killed, slowed down and refused", []part{
		{Name: "cluster", Shows: "the programs over a cluster", Needs: []need{processes}, Runs: []goRun{
			{Packages: []string{"./integration/cluster"}, Serial: true, Timeout: "90m"},
		}},
	}},
	{"stores", "Cassandra's own time and tombstones; behaviours and histories over it", []part{
		{Name: "stores", Shows: "the store over real nodes", Needs: []need{processes}, Runs: []goRun{
			{Packages: []string{"./internal/storage/cassandra", "./integration/stores"}, Serial: true, Timeout: "90m"},
		}},
	}},
	{"serve", "the programs on one machine: kills, full disks, wrong clocks, strangers, imports, Grafana", []part{
		{Name: "serve", Shows: "the programs over the embedded store", Runs: []goRun{{Packages: []string{"./integration"}, Serial: true, Timeout: "90m"}}},
	}},
	{"page", "every view of the page, and that the page is built from its sources", []part{
		{Name: "page views", Shows: "the page in Chromium", Needs: []need{chromium, npm, apt}, Runs: []goRun{
			{Dir: pageModule, Packages: []string{"."}, Serial: true, Timeout: "90m"},
		}},
	}},
	{"programs", "programs of others: Prometheus sends; an agent reads nginx, Nagios, a node exporter, collectd and StatsD", []part{
		{Name: "programs", Shows: "programs from Debian's packages", Needs: []need{apt}, Runs: []goRun{{Packages: []string{"./integration/programs"}, Serial: true}}},
	}},
	{"release", "packages, archives, images, and the files for clusters", []part{
		{Name: "release", Shows: "what make release builds, installed in a clean Debian", Needs: []need{apt}, Runs: []goRun{
			{Dir: releaseModule, Packages: []string{"."}, Serial: true, Timeout: "90m"},
		}},
	}},
	{"rhq", "the migration of an RHQ server", []part{
		{Name: "rhq", Shows: "the migration over one node", Needs: []need{node}, Runs: []goRun{{Packages: []string{"./integration/migrate"}, Serial: true}}},
	}},
	{"breaks", "that tests find deliberate breaks", []part{
		{Name: "breaks", Shows: "each invariant broken in turn", Runs: []goRun{{Packages: []string{"./integration/breaks"}, Serial: true, Timeout: "90m"}}},
	}},
	{"sweeps", "every step, byte and seed of what tier one samples", []part{
		{Name: "sweeps", Shows: "many cases", Runs: []goRun{{Packages: []string{"./internal/..."}, Only: sweeps}}},
		{Name: "acceptance", Shows: "behaviours, stopped at every step", Runs: []goRun{{Packages: []string{"./integration/acceptance"}, Args: []string{"-acceptance.whole"}}}},
		{Name: "promql", Shows: "the scripts of Prometheus' own tests", Runs: []goRun{{Dir: conformanceModule, Packages: []string{"./..."}}}},
	}},
	{"costs", "that time and memory grow no faster than the input, on an idle machine", []part{
		{Name: "costs", Shows: "heap and processor time", Runs: []goRun{
			{Packages: []string{"./internal/..."}, Only: slices.Concat(costs, linears), Env: []string{"QUERN_TEST_COSTS=1"}, Serial: true},
		}},
	}},
	{"race", "everything under the race detector", []part{
		{Name: "race units", Shows: "each package by itself", Needs: []need{race}, Runs: []goRun{
			{Packages: []string{"./..."}, Except: slices.Concat(servers, benchmarks), Skip: slices.Concat(sweeps, costs), Short: true, Race: true, Timeout: "90m"},
		}},
		{Name: "race servers", Shows: "the programs, built with the detector", Needs: []need{race, processes}, Runs: []goRun{
			{Packages: []string{"./integration", "./integration/gate", "./integration/cluster"}, Serial: true, Race: true, Timeout: "90m"},
		}},
	}},
}

func everything() target {
	all := target{"all", "tier one, then everything of tier two", slices.Clone(tierOne.Parts)}
	for _, t := range tierTwo {
		all.Parts = append(all.Parts, t.Parts...)
	}
	return all
}
