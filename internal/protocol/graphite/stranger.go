package graphite

// maxMethod is more than the letters of any method of HTTP.
const maxMethod = 24

// stranger names the protocol that a connection beginning with b speaks, "" for Graphite's. known is false if that
// depends on what follows. A web page can have a browser open connections to any port, and chooses lines of what the
// browser sends there, as in a body. A line that begins as HTTP or TLS does is never a valid one.
func stranger(b []byte) (protocol string, known bool) {
	if len(b) == 0 {
		return "", false
	}
	if b[0] == 0x16 { // a record of TLS, with a handshake
		switch {
		case len(b) == 1:
			return "", false
		case b[1] == 3: // the version's first byte
			return "TLS", true
		}
		return "", true
	}
	letters := 0
	for letters < len(b) && 'A' <= b[letters] && b[letters] <= 'Z' {
		letters++
	}
	switch rest := b[letters:]; {
	case letters == 0 || letters > maxMethod:
		return "", true
	case len(rest) == 0:
		return "", false
	case rest[0] != ' ':
		return "", true
	case len(rest) == 1:
		return "", false
	case rest[1] == '/': // a path, where a line has a number
		return "HTTP", true
	}
	return "", true
}
