package blocks

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestValidBlockSize(t *testing.T) {
	for n, valid := range map[int]bool{-1: false, 0: false, 1: true, 128: true, maxBlockSize: true, maxBlockSize + 1: false} {
		assert.Equal(t, valid, ValidBlockSize(n) == nil, "%d", n)
	}
}

func TestEpochs(t *testing.T) {
	e, err := Epochs(nil).Add(Epoch{FromMs: 0, BlockSize: 128})
	require.NoError(t, err)
	e2, err := e.Add(Epoch{FromMs: 1000, BlockSize: 256})
	require.NoError(t, err)
	require.Len(t, e, 1, "Add changed the epochs it was called on")

	for startMs, size := range map[int64]int{-5: 128, 0: 128, 999: 128, 1000: 256, 5000: 256} {
		assert.Equal(t, size, e2.SizeAt(startMs), "at %d", startMs)
	}
	assert.Equal(t, Range{256, 384}, e2.BlockAt(300, 999))
	assert.Equal(t, Range{256, 512}, e2.BlockAt(300, 1000))

	_, err = e2.Add(Epoch{FromMs: 1000, BlockSize: 512})
	require.ErrorIs(t, err, ErrEpochTooSoon)
	_, err = e2.Add(Epoch{FromMs: 2000, BlockSize: 0})
	require.Error(t, err)
}

// If Add shared an array between two results, the second would overwrite the first.
func TestEpochsAddDoesNotShare(t *testing.T) {
	base := make(Epochs, 1, 8)
	base[0] = Epoch{BlockSize: 128}
	a, err := base.Add(Epoch{FromMs: 1, BlockSize: 1})
	require.NoError(t, err)
	_, err = base.Add(Epoch{FromMs: 2, BlockSize: 2})
	require.NoError(t, err)
	assert.Equal(t, Epoch{FromMs: 1, BlockSize: 1}, a[1])
}
