//go:build race

package acceptance

// raceEnabled: the detector makes everything about ten times slower.
const raceEnabled = true
