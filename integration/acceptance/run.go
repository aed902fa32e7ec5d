package acceptance

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

type testCase struct {
	name string
	run  func(*testing.T, Backend)
}

// Sweep runs the cases that stop a process at each of its steps.
func Sweep(t *testing.T, b Backend) {
	for _, c := range []testCase{
		{"IngestFailsAtEveryStep", testIngestFailsAtEveryStep},
		{"LandedOnOneCopy", testLandedOnOneCopy},
		{"CrashAtEveryStep", testCrashAtEveryStep},
		{"CrashWhilePuttingOff", testCrashWhilePuttingOff},
		{"EarlyRunStopsAtEveryStep", testEarlyRunStopsAtEveryStep},
		{"LeaseChange", testLeaseChange},
		{"IDs", testIDs},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, b) })
	}
}

// Run runs every case on one kind of store. A backend's own test only opens it.
func Run(t *testing.T, b Backend) {
	t.Run("scripts", func(t *testing.T) { runScripts(t, b) })
	Sweep(t, b)
	earlyRuns(t, b)
	for _, c := range []testCase{
		{"QueryCounts", testQueryCounts},
		{"LateReads", testLateReads},
		{"LateReadsExpired", testLateReadsExpired},
		{"ClosingRace", testClosingRace},
		{"LateMarkStalls", testLateMarkStalls},
		{"LateDuringRun", testLateDuringRun},
		{"Unacknowledged", testUnacknowledged},
		{"Straggler", testStraggler},
		{"Emptied", testEmptied},
		{"CacheLost", testCacheLost},
		{"Litter", testLitter},
		{"LargeCommit", testLargeCommit},
		{"ClockBack", testClockBack},
		{"CorrectionAfterRestart", testCorrectionAfterRestart},
		{"CorrectionAfterMend", testCorrectionAfterMend},
		{"DeletedAfterMigration", testDeletedAfterMigration},
		{"RetentionRaised", testRetentionRaised},
		{"RetentionLowered", testRetentionLowered},
		{"GraceRaised", testGraceRaised},
		{"DamagedIndex", testDamagedIndex},
		{"DamagedChunk", testDamagedChunk},
		{"DamagedBlock", testDamagedBlock},
		{"DamagedCache", testDamagedCache},
		{"DamagedSketches", testDamagedSketches},
		{"DeletionMeetsReports", testDeletionMeetsReports},
		{"GapClosed", testGapClosed},
		{"Surplus", testSurplus},
		{"SurplusPutOff", testSurplusPutOff},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, b) })
	}
}

// clockAhead is the script about a wrong clock, for stores that detect one.
const clockAhead = "clock_ahead"

// runScripts runs the files of testdata, whichever package the test is in.
func runScripts(t *testing.T, b Backend) {
	_, here, _, _ := runtime.Caller(0)
	dir := filepath.Join(filepath.Dir(here), "testdata")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.NotEmpty(t, entries)
	for _, e := range entries {
		if b.Believes && e.Name() == clockAhead {
			continue
		}
		t.Run(e.Name(), func(t *testing.T) { runScript(t, b, filepath.Join(dir, e.Name())) })
	}
}
