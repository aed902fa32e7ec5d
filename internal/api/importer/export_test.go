package importer

// These are batchSamples, heldBytes and maxIdleBytes.
const (
	BatchSamples = batchSamples
	HeldBytes    = heldBytes
	MaxIdleBytes = maxIdleBytes
)
