//go:build !race

package acceptance

// raceEnabled says whether the race detector is on, which makes everything about ten times slower.
const raceEnabled = false
