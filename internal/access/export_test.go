package access

// MostRemembered is mostRemembered.
const MostRemembered = mostRemembered

// MaxRevoked is maxRevoked.
const MaxRevoked = maxRevoked

// Remembered returns the number of addresses that the door remembers.
func (d *Door) Remembered() int { return len(d.attempts.of) }

// MaxTokens is maxTokens.
const MaxTokens = maxTokens
