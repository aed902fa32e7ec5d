package push

import (
	"bytes"
	"io"
	"testing"

	"github.com/klauspost/compress/snappy"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/protocol/respond"
)

// TestBuffersAreCharged: a body is charged for the whole buffer that it is read into, before the buffer
// is there.
func TestBuffersAreCharged(t *testing.T) {
	bounds := Limits{}
	bounds.EnsureDefaults()
	s := bodies{limits: &bounds}
	var b body
	for name, size := range map[string]int{"small": 100, "of a buffer": MinBufferBytes, "large": 3 << 20} {
		plain := bytes.Repeat([]byte("x"), size)
		for enc, wire := range map[Encoding][]byte{Identity: plain, Snappy: snappy.Encode(nil, plain)} {
			for range 2 { // the second has the buffers of the first
				budget := limits.NewBudget(1<<30, 0)
				b.claim = budget.Claim(limits.Client{})
				read := 0
				require.NoError(t, s.decode(readerFunc(func(p []byte) (int, error) {
					require.GreaterOrEqual(t, b.claim.Held(), int64(read+len(p)), "%s, %s", name, enc)
					n := copy(p, wire[read:])
					if read += n; n == 0 {
						return 0, io.EOF
					}
					return n, nil
				}), enc, &b))
				require.Equal(t, plain, b.Data)
				require.EqualValues(t, cap(b.wire)+cap(b.Data), b.claim.Held(), "%s, %s", name, enc)
				b.release()
				require.LessOrEqual(t, cap(b.wire)+cap(b.Data), 2*maxPooledBody)
			}
		}
	}

	// A buffer for which there is no room is given up, and a smaller one will do.
	b.Data = make([]byte, maxPooledBody)
	room := limits.NewBudget(MinBufferBytes, 0)
	b.claim = room.Claim(limits.Client{})
	require.NoError(t, s.decode(bytes.NewReader([]byte("x")), Identity, &b))
	require.Equal(t, MinBufferBytes, cap(b.Data))
	b.release()
	other := room.Claim(limits.Client{})
	require.True(t, other.Grow(1))
	b.Data, b.claim = nil, room.Claim(limits.Client{})
	require.ErrorIs(t, s.decode(bytes.NewReader([]byte("x")), Identity, &b), respond.ErrNoRoom)
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
