package webconfig

// MostWaiting is waitingPasswords.
const MostWaiting = waitingPasswords

// HoldTurn has all passwords wait until release is called. waiting returns how many do.
func (c *Config) HoldTurn() (waiting func() int, release func()) {
	c.cache.turn.Lock()
	return func() int { return len(c.cache.waiting) }, c.cache.turn.Unlock
}
