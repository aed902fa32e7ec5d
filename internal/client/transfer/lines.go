package transfer

import (
	"bufio"
	"errors"
	"io"
)

// maxLine is the maximum length of a line, in bytes, that servers accept.
const maxLine = 32 << 20

// lines reads lines.
type lines struct{ *bufio.Reader }

// next appends the next line to buf, with its newline; the last line may have none. It skips a line
// longer than maxLine. size is the length of the line in both cases. After an error it appends
// nothing.
func (l *lines) next(buf []byte) (_ []byte, size int64, err error) {
	begin := len(buf)
	for {
		piece, err := l.ReadSlice('\n')
		if size += int64(len(piece)); size <= maxLine {
			buf = append(buf, piece...)
		} else {
			buf = buf[:begin]
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && size > 0:
			return buf, size, nil
		case err != nil:
			return buf[:begin], size, err
		default:
			return buf, size, nil
		}
	}
}

// counter counts the bytes written to it.
type counter struct{ n *int64 }

func (c *counter) Write(p []byte) (int, error) {
	*c.n += int64(len(p))
	return len(p), nil
}
