//go:build !linux

package adaptor

import "syscall"

// Other systems do not say how many packets a socket has dropped.
const overflowBytes = 0

func datagramOptions(string, string, syscall.RawConn) error { return nil }

func overflow([]byte) uint32 { return 0 }
