package limits

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// mostMeters bounds the keys that Meters remember.
const mostMeters = 4096

// Meters limit what each of many keys, such as clients, does over time. They remember a bounded number of keys: one more,
// and all are forgotten. The zero value is ready, and safe for concurrent use.
type Meters[K comparable] struct {
	mu    sync.Mutex
	byKey map[K]*rate.Limiter
}

// Get returns the limiter of a key: burst at once, and one more after each time of every.
func (m *Meters[K]) Get(key K, every time.Duration, burst int) *rate.Limiter {
	m.mu.Lock()
	defer m.mu.Unlock()
	meter := m.byKey[key]
	if meter == nil {
		if m.byKey == nil || len(m.byKey) >= mostMeters {
			m.byKey = make(map[K]*rate.Limiter)
		}
		meter = rate.NewLimiter(rate.Every(every), burst)
		m.byKey[key] = meter
	}
	return meter
}
