package importer

// These are batchSamples and maxIdleBytes.
const (
	BatchSamples = batchSamples
	MaxIdleBytes = maxIdleBytes
)
