package blocks

import (
	"errors"
	"fmt"
	"slices"

	"github.com/quern/quern/internal/metric"
)

// maxBlockSize bounds the PBS, so that a chunk of one timestamp stays far below the limit of a
// Cassandra row.
const maxBlockSize = 4096

// ValidBlockSize returns why a block size cannot be used, nil if it can.
func ValidBlockSize(n int) error {
	if n < 1 || n > maxBlockSize {
		return fmt.Errorf("block size %d: must be between 1 and %d", n, maxBlockSize)
	}
	return nil
}

// Epoch says that from FromMs on, slices are cut into blocks of BlockSize.
type Epoch struct {
	FromMs    int64 `json:"from_ms"`
	BlockSize int   `json:"block_size"`
}

// Epochs is the history of the PBS, ordered by FromMs and never empty. The PBS of a slice, of
// whatever bucket, is the PBS in force at the slice's start. So all processes that have read the
// same epochs agree on the blocks of every slice.
type Epochs []Epoch

// ErrEpochTooSoon means that a change of the PBS would affect a slice that other processes may
// already be writing to.
var ErrEpochTooSoon = errors.New("a new block size must take effect at least one slice ahead")

// SizeAt returns the PBS of the slice that starts at startMs.
func (e Epochs) SizeAt(startMs int64) int {
	for i := len(e) - 1; i > 0; i-- {
		if e[i].FromMs <= startMs {
			return e[i].BlockSize
		}
	}
	return e[0].BlockSize
}

// BlockAt returns the block that contains id in the slice that starts at startMs.
func (e Epochs) BlockAt(id metric.ScheduleID, startMs int64) Range {
	return BlockAt(id, e.SizeAt(startMs))
}

// Add returns the epochs with n appended. n must begin after all others.
func (e Epochs) Add(n Epoch) (Epochs, error) {
	if err := ValidBlockSize(n.BlockSize); err != nil {
		return nil, err
	}
	if len(e) > 0 && n.FromMs <= e[len(e)-1].FromMs {
		return nil, ErrEpochTooSoon
	}
	return append(slices.Clone(e), n), nil
}
