package influx

// These classes say what ends a name or a tag's value. A character that ends it, other than a line
// end, can be escaped within it. Before any other character, a backslash is literal.
const (
	measurementEnd uint8 = 1 << iota // ends a measurement
	keyEnd                           // ends a tag's name or value, or a field's name
)

// classes maps each byte to what it ends. It includes the backslash everywhere, so that token stops
// at it.
var classes = func() (t [256]uint8) {
	for _, c := range []byte(", \n\r\\") {
		t[c] = measurementEnd | keyEnd
	}
	t['='] = keyEnd
	return t
}()

// token reads from i to the terminating byte, which is at next.
func (d *Decoder) token(i int, end uint8) (text string, next int) {
	s := d.s
	for next = i; next < len(s); next++ {
		if c := s[next]; classes[c]&end != 0 {
			if c == '\\' {
				return d.escaped(i, next, end)
			}
			break
		}
	}
	return s[i:next], next
}

// escaped continues token at the first backslash, which is at next.
func (d *Decoder) escaped(i, next int, end uint8) (string, int) {
	s, plain, begin := d.s, true, i
	d.scratch = d.scratch[:0]
	for ; next < len(s); next++ {
		c := s[next]
		if classes[c]&end == 0 {
			continue
		}
		if c != '\\' {
			break
		}
		if next+1 < len(s) && escapable(s[next+1], end) {
			d.scratch = append(d.scratch, s[i:next]...)
			next++
			i, plain = next, false
		}
	}
	if plain {
		return s[begin:next], next
	}
	d.scratch = append(d.scratch, s[i:next]...)
	return d.b.Copy(d.scratch), next
}

func escapable(c, end uint8) bool {
	return classes[c]&end != 0 && c != '\\' && c != '\n' && c != '\r'
}
