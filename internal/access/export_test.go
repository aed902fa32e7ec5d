package access

// MostRemembered is mostRemembered.
const MostRemembered = mostRemembered

// MaxEnded is maxEnded.
const MaxEnded = maxEnded

// Remembered returns the number of addresses that the door remembers.
func (d *Door) Remembered() int { return len(d.attempts.meters) }

// MaxTokens is maxTokens.
const MaxTokens = maxTokens
