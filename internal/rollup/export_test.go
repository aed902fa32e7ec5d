package rollup

// The tests of the aggregator, which are outside the package, need these.
const (
	FirstRetry = firstRetry
	LookEvery  = lookEvery
)
