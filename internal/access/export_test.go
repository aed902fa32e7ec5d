package access

// MostRemembered is mostRemembered.
const MostRemembered = mostRemembered

// Remembered returns the number of addresses, of names, and of both that go together, that the door remembers.
func (d *Door) Remembered() (addresses, names, welcome int) {
	a := d.attempts
	return len(a.addresses.until), len(a.names.until), a.welcome.order.Len()
}
