package adaptor

import (
	"encoding/binary"
	"syscall"

	"golang.org/x/sys/unix"
)

// receiveBytes is how much the system shall hold of packets that were not received yet. A small packet takes about 800 bytes.
const receiveBytes = 64 << 20

// overflowBytes is the size of the control message that says how many packets a socket has dropped.
var overflowBytes = unix.CmsgSpace(4)

// datagramOptions asks for a large buffer, and for control messages. A socket works without them, too.
func datagramOptions(_, _ string, conn syscall.RawConn) error {
	return conn.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBytes) != nil { // it needs a privilege
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBytes)
		}
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1)
	})
}

// overflow returns how many packets a socket has dropped. Control messages come once there are some.
func overflow(control []byte) uint32 {
	if len(control) < overflowBytes {
		return 0
	}
	return binary.NativeEndian.Uint32(control[unix.CmsgLen(0):])
}
