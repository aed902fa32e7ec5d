package access

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/documents/shelf"
	"github.com/quern/quern/internal/storage"
)

const (
	// sessionLasts is how long a login lasts, whatever is done with it.
	sessionLasts = 12 * time.Hour
	// clockError is how far the clocks of processes may differ.
	clockError = 10 * time.Minute
	// maxEnded bounds the sessions that are remembered as ended: more than one user or token may begin while one lasts.
	// Beyond it all sessions end.
	maxEnded = 10_000
	// maxCookieBytes bounds a cookie.
	maxCookieBytes = 1 << 10
)

// sessionKey names the one document of all sessions: the key that signs them, and those that have ended.
var sessionKey = storage.DocumentKey{Kind: "session", ID: "state"}

// session is what a cookie says. It has no roles: what began it, a user or a token, is looked up each time. So a
// session ends with the token, or the password, that began it.
type session struct {
	ID     string `json:"id"`
	User   string `json:"user,omitempty"`
	Mark   string `json:"mark,omitempty"` // of the user's password
	Token  string `json:"token,omitempty"`
	EndsMs int64  `json:"ends_ms"`
}

// state is the content of the document, as JSON.
type state struct {
	Key []byte `json:"key"`
	// Revoked has the sessions that were ended, until they would have ended anyway.
	Revoked map[string]int64 `json:"revoked"`
}

// Sessions are the logins of pages.
//
//  1. A session's id is new and random with each login. No id that a client sends is taken.
//  2. A session that was ended is not accepted again: at once by this process, by others within RefreshEvery. While the
//     store cannot be written, others go on to accept it; each Refresh tries to write again.
type Sessions struct {
	shelf *shelf.Shelf
	clk   clock.Clock

	mu      sync.Mutex
	loaded  bool
	version int64 // 0 if there is no document
	now     state
	owed    map[string]int64 // as state.Revoked: the sessions of which the store does not know yet that they were ended
}

// NewSessions returns the sessions in docs.
func NewSessions(docs Documents, clk clock.Clock) *Sessions {
	return &Sessions{shelf: shelf.New(shelf.Options{Documents: docs, Clock: clk, Kind: sessionKey.Kind}), clk: clk, owed: make(map[string]int64)}
}

// Refresh learns what other processes have done, and writes what the store does not know yet. After an error, what was
// known still holds.
func (s *Sessions) Refresh(ctx context.Context) error {
	if _, err := s.read(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	s.loaded = true
	owed := len(s.owed) > 0
	s.mu.Unlock()
	if owed {
		return s.settle(ctx)
	}
	return nil
}

// read reads the document, and returns its version, 0 if nobody has logged in yet. The state that it leaves is not changed
// any more.
func (s *Sessions) read(ctx context.Context) (int64, error) {
	doc, err := s.shelf.Newest(ctx, sessionKey.ID)
	if err != nil {
		return 0, err
	}
	var next state
	if json.Unmarshal(doc.Body, &next) != nil || len(next.Key) != sha256.Size {
		next = state{} // deleted or damaged: all sessions have ended, and the next login makes another key
	}
	s.keep(doc.Version, next)
	return doc.Version, nil
}

// change changes the state in the store. do is called with mu held. A change that protects is written on a full disk, too.
func (s *Sessions) change(ctx context.Context, protects bool, do func(state) state) error {
	for {
		version, err := s.read(ctx)
		if err != nil {
			return err
		}
		s.mu.Lock()
		next := do(s.now)
		s.mu.Unlock()
		text, err := json.Marshal(next)
		if err != nil {
			return err
		}
		err = s.shelf.Documents.PutDocument(ctx, storage.Document{
			DocumentHead: storage.DocumentHead{DocumentKey: sessionKey, Version: version + 1, UpdatedMs: clock.NowMs(s.clk)}, Body: text,
			Protects: protects,
		}, 1)
		switch {
		case errors.Is(err, storage.ErrConflict) && ctx.Err() == nil:
			continue // another process was faster
		case err != nil:
			return err
		}
		s.keep(version+1, next)
		return nil
	}
}

// keep remembers a version of the state, unless a later one is known.
func (s *Sessions) keep(version int64, next state) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if version > s.version {
		s.version, s.now = version, next
	}
}

// begin returns the cookie of a new session.
func (s *Sessions) begin(ctx context.Context, with session) (text string, ends time.Time, err error) {
	if len(s.key()) == 0 {
		err := s.change(ctx, false, func(now state) state {
			if len(now.Key) > 0 {
				return now
			}
			key := make([]byte, sha256.Size)
			_, _ = rand.Read(key) // never fails
			return state{Key: key}
		})
		if err != nil {
			return "", ends, err
		}
	}
	ends = s.clk.Now().Add(sessionLasts).UTC()
	with.ID, with.EndsMs = rand.Text(), ends.UnixMilli()
	body, err := json.Marshal(with)
	if err != nil {
		return "", ends, err
	}
	text = base64.RawURLEncoding.EncodeToString(body) + "." + base64.RawURLEncoding.EncodeToString(sign(s.key(), body))
	if len(text) > maxCookieBytes {
		return "", ends, invalid("the user's name is too long for a login")
	}
	return text, ends, nil
}

func (s *Sessions) key() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now.Key
}

func sign(key, body []byte) []byte {
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write(body)
	return mac.Sum(nil)
}

var (
	errNoSession = unauthorized("the login has ended: log in again")
	errNotLoaded = &Refusal{Code: http.StatusServiceUnavailable, Message: "logins cannot be looked up now: the store does not answer", After: 5 * time.Second}
)

// check returns the session that a cookie is, or a *Refusal.
func (s *Sessions) check(cookie string) (session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.loaded {
		return session{}, errNotLoaded
	}
	first, second, _ := strings.Cut(cookie, ".")
	body, err := base64.RawURLEncoding.DecodeString(first)
	mac, err2 := base64.RawURLEncoding.DecodeString(second)
	var sent session
	switch {
	case len(cookie) > maxCookieBytes, err != nil, err2 != nil, len(s.now.Key) == 0, !hmac.Equal(mac, sign(s.now.Key, body)), json.Unmarshal(body, &sent) != nil:
		return session{}, errNoSession
	case s.owed[sent.ID] != 0, s.now.Revoked[sent.ID] != 0, clock.NowMs(s.clk) >= sent.EndsMs:
		return session{}, errNoSession
	}
	return sent, nil
}

// end ends a session. After an error this process refuses it, and Refresh tries again to tell others.
func (s *Sessions) end(ctx context.Context, ended session) error {
	s.mu.Lock()
	s.owed[ended.ID] = ended.EndsMs
	s.mu.Unlock()
	if err := s.settle(ctx); err != nil {
		return fmt.Errorf("this browser and this process have ended the login, but the store cannot be told: other processes, and this one "+
			"after a restart, accept a copy of its cookie until that succeeds; it is tried again every %s while this process runs; "+
			"see that the store can be written, or change the password or revoke the token that began the login: %w", RefreshEvery, err)
	}
	return nil
}

// settle stores that the sessions have ended which this process has ended.
func (s *Sessions) settle(ctx context.Context) error {
	var stored map[string]int64
	err := s.change(ctx, true, func(now state) state {
		next := state{Key: now.Key, Revoked: maps.Clone(now.Revoked)}
		if next.Revoked == nil {
			next.Revoked = make(map[string]int64)
		}
		stored = maps.Clone(s.owed)
		maps.Copy(next.Revoked, stored)
		past := clock.NowMs(s.clk) - clockError.Milliseconds()
		maps.DeleteFunc(next.Revoked, func(_ string, endsMs int64) bool { return endsMs < past })
		if len(next.Revoked) > maxEnded {
			return state{} // the next login makes another key, with which no earlier session is valid
		}
		return next
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.owed, func(id string, _ int64) bool { return stored[id] != 0 })
	return nil
}

// cookieName returns the name of the cookie. Over TLS browsers take it only from this host, and send it only there.
func cookieName(r *http.Request) string {
	if r.TLS != nil {
		return "__Host-quern"
	}
	return "quern"
}

func cookie(r *http.Request, value string, ends time.Time) *http.Cookie {
	return &http.Cookie{
		Name: cookieName(r), Value: value, Path: "/", Expires: ends,
		HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode,
	}
}

// ownPage returns whether a browser says that a page of this server itself sends the request.
func ownPage(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" {
		return site == "same-origin"
	}
	origin, err := url.Parse(r.Header.Get("Origin"))
	return err == nil && origin.Host != "" && origin.Host == r.Host
}
