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
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
)

const (
	// sessionLasts is how long a login lasts, whatever is done with it.
	sessionLasts = 12 * time.Hour
	// clockError is how far the clocks of processes may differ.
	clockError = 10 * time.Minute
	// longest bounds a session from its begin to its end, which begin moves behind an end by another clock: by a
	// millisecond each time that all sessions of a holder are ended.
	longest = sessionLasts + clockError + time.Second
	// maxRevoked bounds what is remembered as ended. Beyond it all sessions end of the holder who has ended the most.
	maxRevoked = 1000
	// holderBytes is the length of a holder within the id of a session.
	holderBytes = 11
	// maxCookieBytes bounds a cookie.
	maxCookieBytes = 1 << 10
)

// sessionKey names the one document of all sessions: the key that signs them, and those that have ended.
var sessionKey = storage.DocumentKey{Kind: "session", ID: "state"}

// session is what a cookie says. It has no roles: what began it, a user or a token, is looked up each time. So a
// session ends with the token, or the password, that began it.
type session struct {
	ID       string `json:"id"` // begins with the holder
	User     string `json:"user,omitempty"`
	Mark     string `json:"mark,omitempty"` // of the user's password
	Token    string `json:"token,omitempty"`
	BeginsMs int64  `json:"begins_ms"`
	EndsMs   int64  `json:"ends_ms"`
}

// state is the content of the document, as JSON.
type state struct {
	Key []byte `json:"key"`
	// Revoked has the sessions that were ended, until they would have ended anyway.
	Revoked map[string]int64 `json:"revoked"`
	// Ended has, for each holder all of whose sessions were ended, when the last of these would have ended anyway.
	Ended map[string]int64 `json:"ended,omitempty"`
}

// has returns whether a session was ended.
func (s *state) has(is *session) bool {
	return s.Revoked[is.ID] != 0 || is.EndsMs <= s.Ended[holderOf(is.ID)]
}

// holder returns who has begun a session, in a form of holderBytes.
func (is *session) holder() string {
	sum := sha256.Sum256([]byte(is.User + "\n" + is.Token)) // the id of a token has no line break
	return base64.RawURLEncoding.EncodeToString(sum[:8])
}

// holderOf returns the holder in the id of a session.
func holderOf(id string) string { return id[:min(len(id), holderBytes)] }

// Sessions are the logins of pages.
//
//  1. A session's id is new and random with each login. No id that a client sends is taken.
//  2. A session that was ended is not accepted again: at once by this process, by others within RefreshEvery. While the
//     store cannot be written, others go on to accept it; each Refresh tries to write again.
//  3. Whoever ends many sessions ends no session of others: not by filling the list of those that have ended, either.
type Sessions struct {
	docs Documents
	clk  clock.Clock

	mu      sync.Mutex
	loaded  bool
	version int64 // 0 if there is no document
	now     state
	ended   map[string]int64 // as state.Revoked: the sessions of which the store does not know yet that they were ended
	owed    bool             // the store is to learn of them without another logout
}

// NewSessions returns the sessions in docs.
func NewSessions(docs Documents, clk clock.Clock) *Sessions {
	return &Sessions{docs: docs, clk: clk, ended: make(map[string]int64)}
}

// Refresh learns what other processes have done, and writes what the store does not know yet. After an error, what was
// known still holds.
func (s *Sessions) Refresh(ctx context.Context) error {
	_, err := s.read(ctx)
	if err != nil && !errors.Is(err, storage.ErrNoDocument) { // without a document nobody has logged in yet
		return err
	}
	s.mu.Lock()
	s.loaded = true
	owed := s.owed
	s.mu.Unlock()
	if owed {
		return s.settle(ctx)
	}
	return nil
}

// read reads the document, and returns its version. The state that it leaves is not changed any more.
func (s *Sessions) read(ctx context.Context) (int64, error) {
	doc, err := s.docs.Document(ctx, sessionKey, 0)
	if errors.Is(err, storage.ErrCorrupt) {
		// All sessions have ended, and the next login replaces the document.
		doc.DocumentHead, err = headOf(ctx, s.docs, sessionKey)
	}
	if err != nil {
		return 0, err
	}
	var next state
	if doc.Deleted || json.Unmarshal(doc.Body, &next) != nil || len(next.Key) != sha256.Size {
		next = state{} // all sessions have ended; the next login makes another key
	}
	s.keep(doc.Version, next)
	return doc.Version, nil
}

// change changes the state in the store. do is called with mu held.
func (s *Sessions) change(ctx context.Context, do func(state) state) error {
	for {
		version, err := s.read(ctx)
		if err != nil && !errors.Is(err, storage.ErrNoDocument) {
			return err
		}
		s.mu.Lock()
		next := do(s.now)
		s.mu.Unlock()
		text, err := json.Marshal(next)
		if err != nil {
			return err
		}
		err = s.docs.PutDocument(ctx, storage.Document{
			DocumentHead: storage.DocumentHead{DocumentKey: sessionKey, Version: version + 1, UpdatedMs: clock.NowMs(s.clk)}, Body: text,
			Protects: true,
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
	if len(s.state().Key) == 0 {
		err := s.change(ctx, func(now state) state {
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
	ends = s.clk.Now().Add(sessionLasts)
	by := with.holder()
	with.ID, with.BeginsMs = by+rand.Text(), clock.NowMs(s.clk)
	// It must end later than those that were ended with all others of the holder, whose end has another clock.
	with.EndsMs = max(ends.UnixMilli(), s.state().Ended[by]+1)
	ends = time.UnixMilli(with.EndsMs).UTC()
	body, err := json.Marshal(with)
	if err != nil {
		return "", ends, err
	}
	text = base64.RawURLEncoding.EncodeToString(body) + "." + base64.RawURLEncoding.EncodeToString(sign(s.state().Key, body))
	if len(text) > maxCookieBytes {
		return "", ends, &InvalidError{"the user's name is too long for a login"}
	}
	return text, ends, nil
}

func (s *Sessions) state() state {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
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
	now, loaded := s.now, s.loaded
	s.mu.Unlock()
	if !loaded {
		return session{}, errNotLoaded
	}
	first, second, _ := strings.Cut(cookie, ".")
	body, err := base64.RawURLEncoding.DecodeString(first)
	mac, err2 := base64.RawURLEncoding.DecodeString(second)
	var is session
	nowMs := clock.NowMs(s.clk)
	switch {
	case len(cookie) > maxCookieBytes, err != nil, err2 != nil, len(now.Key) == 0, !hmac.Equal(mac, sign(now.Key, body)), json.Unmarshal(body, &is) != nil:
		return session{}, errNoSession
	case is.EndsMs > is.BeginsMs+longest.Milliseconds(), is.User != "" && is.Mark == "": // no version makes such a session
		return session{}, errNoSession
	case s.over(&is), nowMs >= is.EndsMs, nowMs < is.BeginsMs-clockError.Milliseconds():
		return session{}, errNoSession
	}
	return is, nil
}

// over returns whether a session was ended, also if the store does not know of it yet.
func (s *Sessions) over(is *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended[is.ID] != 0 || s.now.has(is)
}

// end ends a session. After an error this process refuses it, and Refresh tries again to tell others.
func (s *Sessions) end(ctx context.Context, is session) error {
	s.remember(is)
	if err := s.settle(ctx); err != nil {
		s.mu.Lock()
		s.owed = true
		s.mu.Unlock()
		return fmt.Errorf("this browser and this process have ended the login, but the store cannot be told: other processes, and this one "+
			"after a restart, accept a copy of its cookie until that succeeds; it is tried again every %s while this process runs; "+
			"see that the store can be written, or change the password or revoke the token that began the login: %w", RefreshEvery, err)
	}
	return nil
}

// remember ends a session in this process. Others learn of it with the next one that is ended.
func (s *Sessions) remember(is session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.ended, s.past)
	s.ended[is.ID] = is.EndsMs
}

// past returns whether what ends at endsMs has ended by the clocks of all processes.
func (s *Sessions) past(_ string, endsMs int64) bool {
	return endsMs+clockError.Milliseconds() < clock.NowMs(s.clk)
}

// settle stores that the sessions have ended which this process has ended.
func (s *Sessions) settle(ctx context.Context) error {
	var told map[string]int64
	err := s.change(ctx, func(now state) state {
		next, nowMs := state{Key: now.Key, Revoked: maps.Clone(now.Revoked), Ended: maps.Clone(now.Ended)}, clock.NowMs(s.clk)
		if next.Revoked == nil {
			next.Revoked = make(map[string]int64)
		}
		maps.DeleteFunc(next.Revoked, s.past)
		maps.DeleteFunc(next.Ended, s.past)
		told = maps.Clone(s.ended)
		maps.Copy(next.Revoked, told)
		for len(next.Revoked)+len(next.Ended) > maxRevoked {
			next = next.shorten(nowMs + sessionLasts.Milliseconds())
		}
		return next
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.ended, func(id string, _ int64) bool { return told[id] != 0 })
	s.owed = s.owed && len(s.ended) > 0
	return nil
}

// shorten returns a state in which all sessions have ended of the holder with the most that have, up to one that would
// end at endsMs.
func (s state) shorten(endsMs int64) state {
	count, most := make(map[string]int), ""
	for _, id := range slices.Sorted(maps.Keys(s.Revoked)) {
		by := holderOf(id)
		if count[by]++; count[by] > count[most] {
			most = by
		}
	}
	if count[most] < 2 {
		return state{} // the next login makes another key, with which no earlier session is valid
	}
	for id, at := range s.Revoked {
		if holderOf(id) == most {
			endsMs = max(endsMs, at)
			delete(s.Revoked, id)
		}
	}
	if s.Ended == nil {
		s.Ended = make(map[string]int64)
	}
	s.Ended[most] = endsMs
	return s
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
