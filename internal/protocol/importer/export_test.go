package importer

import "github.com/quern/quern/internal/protocol/push"

// LeastBytes is the memory of an uncompressed import without its lines.
var LeastBytes = memory(push.Identity)

// These are batchSamples, heldBytes and maxIdleBytes.
const (
	BatchSamples = batchSamples
	HeldBytes    = heldBytes
	MaxIdleBytes = maxIdleBytes
)
