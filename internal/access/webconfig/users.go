package webconfig

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/crypto/bcrypt"
	"golang.org/x/sync/singleflight"
)

const (
	// knownPasswords bounds the passwords that are remembered as right.
	knownPasswords = 100
	// waitingPasswords is how many passwords may wait to be compared: each takes some 60 ms of a processor.
	waitingPasswords = 16
)

// ErrBusy means that too many passwords wait to be compared.
var ErrBusy = errors.New("too many logins at once, try again")

// hashOfNobody returns a hash that takes as long to compare as others of a cost, and that no known password has.
func hashOfNobody(cost int) string {
	return fmt.Sprintf("$2y$%02d$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi", cost)
}

// passwords compares passwords: one at a time, since that is slow on purpose, and not again for those that were
// right. It remembers no password, only a keyed hash.
type passwords struct {
	key     []byte
	turn    *sync.Mutex
	waiting chan struct{}
	flight  *singleflight.Group

	mu    *sync.Mutex
	right map[[sha256.Size]byte]bool
}

func newPasswords() passwords {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return passwords{
		key: key, turn: &sync.Mutex{}, waiting: make(chan struct{}, waitingPasswords),
		flight: &singleflight.Group{}, mu: &sync.Mutex{}, right: make(map[[sha256.Size]byte]bool),
	}
}

// id stands for a password of a user, with the hash that it was compared with.
func (p *passwords) id(user, hash, password string) (id [sha256.Size]byte) {
	mac := hmac.New(sha256.New, p.key)
	for _, part := range []string{user, hash, password} {
		_, _ = mac.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		_, _ = io.WriteString(mac, part)
	}
	mac.Sum(id[:0])
	return id
}

func (p *passwords) knows(id [sha256.Size]byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.right[id]
}

func (p *passwords) keep(id [sha256.Size]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for old := range p.right {
		if len(p.right) < knownPasswords {
			break
		}
		delete(p.right, old)
	}
	p.right[id] = true
}

// Knows returns whether the password of a user was found right before. That takes no time.
func (c *Config) Knows(user, password string) bool {
	hash, ok := c.now.Load().users[user]
	return ok && c.cache.knows(c.cache.id(user, hash, password))
}

// Check returns whether a user has a password. It takes as long for a user who does not exist. It returns ErrBusy
// if too many passwords wait.
func (c *Config) Check(user, password string) (bool, error) {
	now := c.now.Load()
	hash, exists := now.users[user]
	if !exists {
		hash = now.nobody
	}
	id := c.cache.id(user, hash, password)
	if c.cache.knows(id) {
		return exists, nil
	}
	same, err, _ := c.cache.flight.Do(hex.EncodeToString(id[:]), func() (any, error) {
		select {
		case c.cache.waiting <- struct{}{}:
			defer func() { <-c.cache.waiting }()
		default:
			return false, ErrBusy
		}
		c.cache.turn.Lock()
		defer c.cache.turn.Unlock()
		return bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) == nil, nil
	})
	if err != nil {
		return false, err
	}
	if ok := same.(bool) && exists; !ok {
		return false, nil
	}
	c.cache.keep(id)
	return true, nil
}

// Fingerprint changes with the password of a user. ok is false if there is no such user.
func (c *Config) Fingerprint(user string) (mark string, ok bool) {
	hash, ok := c.now.Load().users[user]
	sum := sha256.Sum256([]byte(hash))
	return hex.EncodeToString(sum[:8]), ok
}
