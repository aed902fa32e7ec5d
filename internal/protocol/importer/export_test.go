package importer

import "github.com/quern/quern/internal/protocol/push"

// LeastBytes is the memory of an uncompressed import without a long line.
var LeastBytes = memory(push.Identity)

// These are batchSamples, heldBytes and replyBytes.
const (
	BatchSamples = batchSamples
	HeldBytes    = heldBytes
	ReplyBytes   = replyBytes
)
