package transfer

import (
	"bufio"
	"errors"
	"io"
)

// maxLine is what servers take of a line.
const maxLine = 32 << 20

// lines reads lines.
type lines struct{ *bufio.Reader }

// next appends the next line to buf, with the newline that it ends with; the last line of all may have none. One above maxLine is not
// appended, but read over. size is what it has. After an error nothing is appended.
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
