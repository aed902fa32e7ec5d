package blocks

import (
	"encoding/binary"
	"fmt"

	"github.com/quern/quern/internal/metric"
)

// AppendIDs appends a packed set of schedule ids to dst, as a mark for late data carries it. The
// ids MUST ascend and not be negative; the set may be empty. docs/format/chunk.md has the bytes.
func AppendIDs(dst []byte, ids []metric.ScheduleID) []byte {
	start := len(dst)
	dst = openChunk(dst)
	dst = binary.AppendUvarint(dst, uint64(len(ids)))
	var last metric.ScheduleID
	for _, id := range ids {
		dst = binary.AppendUvarint(dst, uint64(id-last))
		last = id
	}
	sealChunk(dst[start:], formatIDs)
	return dst
}

// DecodeIDs decodes the ids of AppendIDs, nil for an empty set. The error is ErrCorrupt.
func DecodeIDs(b []byte) ([]metric.ScheduleID, error) {
	body, count, err := unseal(b, formatIDs)
	if err != nil || count == 0 && len(body) == 0 {
		return nil, err
	}
	d := fields{b: body}
	ids := make([]metric.ScheduleID, count)
	var last metric.ScheduleID
	for i := range ids {
		ids[i] = last + metric.ScheduleID(d.uvarint())
		if d.bad || ids[i] < last || ids[i] == last && i > 0 {
			return nil, fmt.Errorf("%w at id %d", ErrCorrupt, i)
		}
		last = ids[i]
	}
	if len(d.b) != 0 {
		return nil, fmt.Errorf("%w: %d bytes after the last id", ErrCorrupt, len(d.b))
	}
	return ids, nil
}
