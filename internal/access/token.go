package access

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/time/rate"

	"github.com/quern/quern/internal/access/bound"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/documents/shelf"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/storage"
)

const (
	// tokenKind is the kind of the documents that hold tokens.
	tokenKind = "token"
	// tokenPrefix begins each token, so that people and programs recognise one.
	tokenPrefix = "quern_"
	idBytes     = 10
	secretBytes = 20 // 160 bits
	// maxTokens bounds the tokens in a store. A revoked one counts until another needs the room.
	maxTokens = 10_000
	// maxNameBytes bounds the name of a token.
	maxNameBytes = 64

	// DefaultLasts is how long a token is valid unless its maker says otherwise.
	DefaultLasts = 90 * 24 * time.Hour

	// maxTokenBytes bounds the document of a token.
	maxTokenBytes = 8 << 10

	// RefreshEvery is the time after which a process learns what others have done to tokens and logins, and the longest
	// time that this may take.
	RefreshEvery = 3 * time.Second
	// clockError is how far the clocks of processes may differ.
	clockError = 10 * time.Minute
	// lookUps is how many unknown tokens are looked up in the store at once, and one more each lookUpEvery.
	lookUps     = 10
	lookUpEvery = 200 * time.Millisecond
	lookUpTime  = 5 * time.Second
)

// Documents are what tokens are kept in, those of logins too.
type Documents = shelf.Documents

// Token is what is known of a token. The secret is known only to who holds it.
type Token struct {
	ID, Name  string
	Roles     Role
	Author    string
	CreatedMs int64
	// ExpiresMs is when the token ends, 0 for never.
	ExpiresMs int64
	// Match are selectors of the series that the token is bound to, none for all series; see bound.Bound.
	Match  []string
	Limits TokenLimits

	login *login            // nil unless a login made it
	sum   [sha256.Size]byte // of the secret
	bound *bound.Bound
	rate  *limits.Rate
}

// TokenLimits are the limits of a token. 0 is no limit of its own.
type TokenLimits struct {
	// Series is how many series there may be that match the token's selectors, whoever made them, before the token
	// makes one more.
	Series int `json:"max_series,omitempty"`
	// SamplesPerSecond is how many samples the token sends to one process, over time.
	SamplesPerSecond int `json:"max_samples_per_second,omitempty"`
	// Queries is how many queries, exports and so on, of each kind, run at a time in one process.
	Queries int `json:"max_queries,omitempty"`
}

// body is the form in which a token is stored, as JSON. A field that is not known here may restrict the token, so
// that such a token is refused.
type body struct {
	Name      string   `json:"name"`
	Roles     []string `json:"roles"`
	SHA256    string   `json:"sha256"`
	Author    string   `json:"author"`
	CreatedMs int64    `json:"created_ms"`
	ExpiresMs int64    `json:"expires_ms,omitempty"`
	Match     []string `json:"match,omitempty"`
	TokenLimits
	Login *login `json:"login,omitempty"`
}

// NewToken says what a token is made with.
type NewToken struct {
	Name   string
	Roles  Role
	Author string
	// Lasts is how long the token is valid, 0 for ever.
	Lasts time.Duration
	// Match and Limits are as those of a Token. An administrator can have neither.
	Match  []string
	Limits TokenLimits
}

// InvalidError says why a token cannot be made as it was asked for, or which token there is none of.
type InvalidError = shelf.InvalidError

func invalid(format string, args ...any) error {
	return &InvalidError{Message: fmt.Sprintf(format, args...)}
}

func (n *NewToken) validate() error {
	switch {
	case n.Name == "" || len(n.Name) > maxNameBytes || !utf8.ValidString(n.Name) || strings.ContainsFunc(n.Name, func(c rune) bool { return !unicode.IsPrint(c) }):
		return invalid("a token needs a name of 1 to %d bytes of printable text, such as that of the agent that uses it", maxNameBytes)
	case n.Roles == 0:
		return invalid("a token needs a role: read, write or admin")
	case n.Lasts < 0:
		return invalid("a token cannot have expired before it is made")
	}
	return n.enforceable()
}

// enforceable returns an error if a token would promise what nothing enforces.
func (n *NewToken) enforceable() error {
	l := n.Limits
	switch {
	case l.Series < 0 || l.SamplesPerSecond < 0 || l.Queries < 0:
		return invalid("a limit of a token must be positive, or be left out for none")
	case n.Roles.Has(Admin) && (len(n.Match) > 0 || l != TokenLimits{}):
		return invalid("a token with the role admin can make any other token, so nothing would bind or limit it: give it the roles read or write")
	case l.Series > 0 && len(n.Match) == 0:
		return invalid("a maximum of series counts those that a token is bound to: give it match[] (--match) as well")
	case !n.Roles.Has(Write) && (l.Series > 0 || l.SamplesPerSecond > 0):
		return invalid("a limit of series or samples is for tokens with the role write")
	case !n.Roles.Has(Read) && l.Queries > 0:
		return invalid("a limit of queries is for tokens with the role read")
	case len(n.Match) > 0:
		if _, err := bound.Parse(n.Match, l.Series); err != nil {
			return &InvalidError{Message: err.Error()}
		}
	}
	return nil
}

// Tokens are the tokens of a store, as this process knows them. It holds:
//
//  1. The store and the memory have a hash of each secret. The secret has 160 random bits, so that a fast hash is
//     enough. Hashes are compared in constant time.
//  2. A version of a token that was seen is never replaced by an earlier one. So what this process has revoked stays
//     revoked. A token that the store has forgotten is unknown, also to a process that has missed that it was revoked.
//  3. While the store does not answer, known tokens go on. Unknown ones are neither accepted nor called wrong.
//  4. A token that a login made is of use as the cookie of a page only, and is forgotten when it has ended.
//  5. A token that is to be revoked is refused at once, also while the store cannot be written. Each Refresh tries to
//     write again what it owes the store.
type Tokens struct {
	shelf   *shelf.Shelf
	clk     clock.Clock
	log     *slog.Logger
	lookUps *rate.Limiter

	mu   sync.Mutex
	byID map[string]*stored
	owed map[string]string // who revokes the tokens of which the store does not know yet that they are
}

// stored is the newest version seen of a token.
type stored struct {
	version int64
	// token is nil if it is revoked, or cannot be used as refused says.
	token   *Token
	refused string
}

// NewTokens returns the tokens in docs. None is known before Refresh.
func NewTokens(docs Documents, clk clock.Clock, log *slog.Logger) *Tokens {
	return &Tokens{
		shelf: shelf.New(shelf.Options{
			Documents: docs, Clock: clk, Kind: tokenKind, MaxBytes: maxTokenBytes, Kept: 1, Most: maxTokens,
		}),
		clk: clk, log: log, lookUps: rate.NewLimiter(rate.Every(lookUpEvery), lookUps),
		byID: make(map[string]*stored), owed: make(map[string]string),
	}
}

// Refresh learns what has changed in the store, and writes what it owes the store, the end of logins too. After an error,
// what was known still holds.
func (t *Tokens) Refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, RefreshEvery)
	defer cancel()
	if err := t.learn(ctx); err != nil {
		return err
	}
	past := clock.NowMs(t.clk) - clockError.Milliseconds()
	t.mu.Lock()
	owed := maps.Clone(t.owed)
	for id, s := range t.byID {
		if s.token != nil && s.token.login != nil && s.token.ExpiresMs < past {
			owed[id] = ""
		}
	}
	t.mu.Unlock()
	for id, by := range owed {
		// Another process may have been faster.
		if err := t.settle(ctx, id, by); err != nil && !errors.As(err, new(*InvalidError)) {
			return err
		}
	}
	return nil
}

// learn learns what has changed in the store.
func (t *Tokens) learn(ctx context.Context) error {
	t.mu.Lock()
	gone := maps.Clone(t.byID)
	t.mu.Unlock()
	for head, err := range t.shelf.Documents.Documents(ctx, tokenKind) {
		if err != nil {
			return err
		}
		delete(gone, head.ID)
		t.mu.Lock()
		known := t.byID[head.ID]
		t.mu.Unlock()
		if known != nil && known.version >= head.Version {
			continue
		}
		if head.Deleted {
			t.keep(head.ID, t.parse(&storage.Document{DocumentHead: head}))
			continue
		}
		if _, err := t.read(ctx, head.ID); err != nil && !errors.Is(err, storage.ErrCorrupt) {
			return err
		}
	}
	for id := range gone {
		// A list leaves out what lies in a damaged block, too.
		if _, err := t.shelf.Documents.Document(ctx, tokenKey(id)); errors.Is(err, storage.ErrNoDocument) {
			t.mu.Lock()
			delete(t.byID, id)
			t.mu.Unlock()
		}
	}
	return nil
}

func tokenKey(id string) storage.DocumentKey { return storage.DocumentKey{Kind: tokenKind, ID: id} }

// read reads a token from the store.
func (t *Tokens) read(ctx context.Context, id string) (*stored, error) {
	doc, err := t.shelf.Documents.Document(ctx, tokenKey(id))
	if err != nil {
		return nil, err
	}
	return t.keep(id, t.parse(&doc)), nil
}

// keep remembers a version of a token, unless a later one is known. It returns the later one.
func (t *Tokens) keep(id string, s *stored) *stored {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known := t.byID[id]; known != nil && known.version >= s.version {
		return known
	}
	t.byID[id] = s
	if s.refused != "" && s.refused != revoked {
		t.log.Error("token cannot be used", "id", id, "reason", s.refused)
	}
	return s
}

const revoked = "the token is revoked"

// parse returns what a document says of a token.
func (t *Tokens) parse(d *storage.Document) *stored {
	s := &stored{version: d.Version}
	if d.Deleted {
		s.refused = revoked
		return s
	}
	var b body
	strict := json.NewDecoder(bytes.NewReader(d.Body))
	strict.DisallowUnknownFields()
	err := strict.Decode(&b)
	roles, err2 := ParseRoles(b.Roles)
	sum, err3 := hex.DecodeString(b.SHA256)
	if err := errors.Join(err, err2, err3); err != nil || len(sum) != sha256.Size {
		s.refused = "the token was made by a later version, or is damaged in the store"
		return s
	}
	s.token = &Token{
		ID: d.ID, Name: b.Name, Roles: roles, Author: b.Author, CreatedMs: b.CreatedMs, ExpiresMs: b.ExpiresMs,
		Match: b.Match, Limits: b.TokenLimits, login: b.Login, sum: [sha256.Size]byte(sum),
	}
	want := NewToken{Roles: roles, Match: b.Match, Limits: b.TokenLimits}
	if err := want.enforceable(); err != nil {
		s.refused = "the token is bound as this version does not enforce: " + err.Error()
		return s
	}
	if len(b.Match) > 0 {
		s.token.bound, _ = bound.Parse(b.Match, b.Series) // it has just been parsed
	}
	if n := b.SamplesPerSecond; n > 0 {
		s.token.rate = limits.NewRate(n, t.clk.Elapsed)
	}
	return s
}

// Verify returns the token that a text is, or a *Refusal.
func (t *Tokens) Verify(ctx context.Context, text string) (*Token, error) {
	token, err := t.verify(ctx, text)
	if err == nil && token.login != nil {
		return nil, errUnknown
	}
	return token, err
}

// verify is Verify for the tokens of logins too.
func (t *Tokens) verify(ctx context.Context, text string) (*Token, error) {
	id, secret, ok := split(text)
	if !ok {
		return nil, unauthorized("this is not a token: tokens begin with %s", tokenPrefix)
	}
	known, err := t.lookUp(ctx, id)
	if err != nil {
		return nil, err
	}
	var want [sha256.Size]byte
	if known.token != nil {
		want = known.token.sum
	}
	got := sha256.Sum256([]byte(secret))
	if subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
		return nil, errUnknown
	}
	return t.valid(known)
}

// errUnknown does not say whether there is a token with that id.
var errUnknown = unauthorized("the token is not valid: it is unknown or revoked")

// valid returns a token that is known, unless it must not be used now.
func (t *Tokens) valid(known *stored) (*Token, error) {
	switch nowMs := clock.NowMs(t.clk); {
	case known.refused == revoked || known.token == nil:
		return nil, errUnknown
	case known.refused != "":
		return nil, unauthorized("%s", known.refused)
	case known.token.ExpiresMs != 0 && nowMs >= known.token.ExpiresMs:
		return nil, unauthorized("the token %q expired at %s; it is %s by the server's clock",
			known.token.Name, stamp(known.token.ExpiresMs), stamp(nowMs))
	}
	return known.token, nil
}

func stamp(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }

// lookUp returns what is known of an id, from the store if this process has not met it.
func (t *Tokens) lookUp(ctx context.Context, id string) (*stored, error) {
	t.mu.Lock()
	known := t.byID[id]
	if _, ended := t.owed[id]; ended {
		known = &stored{refused: revoked}
	}
	t.mu.Unlock()
	switch {
	case known != nil:
		return known, nil
	case !t.lookUps.AllowN(steady(t.clk), 1): // nobody may have made it
		return nil, &Refusal{Code: http.StatusTooManyRequests, Message: "too many unknown tokens, try again", After: time.Second}
	}
	ctx, cancel := context.WithTimeout(ctx, lookUpTime)
	defer cancel()
	known, err := t.read(ctx, id)
	switch {
	case errors.Is(err, storage.ErrNoDocument):
		return nil, errUnknown
	case err != nil:
		return nil, &Refusal{Code: http.StatusServiceUnavailable, Message: "this token or login cannot be looked up now: the store does not answer", After: 5 * time.Second}
	}
	return known, nil
}

// ByID returns a token that is known and valid, for a session that it began.
func (t *Tokens) ByID(ctx context.Context, id string) (*Token, error) {
	known, err := t.lookUp(ctx, id)
	if err != nil {
		return nil, err
	}
	return t.valid(known)
}

// Create makes a token. It returns the whole token, which nobody can learn later. It returns an *InvalidError if the
// token must not be made.
func (t *Tokens) Create(ctx context.Context, n NewToken) (*Token, string, error) {
	if err := n.validate(); err != nil {
		return nil, "", err
	}
	return t.create(ctx, body{
		Name: n.Name, Roles: n.Roles.Names(), Author: n.Author, Match: n.Match, TokenLimits: n.Limits,
	}, n.Lasts)
}

// create makes a token that lasts for a time, 0 for ever.
func (t *Tokens) create(ctx context.Context, b body, lasts time.Duration) (*Token, string, error) {
	id, secret := random(idBytes), random(secretBytes)
	sum := sha256.Sum256([]byte(secret))
	b.SHA256, b.CreatedMs = hex.EncodeToString(sum[:]), clock.NowMs(t.clk)
	if lasts > 0 {
		b.ExpiresMs = b.CreatedMs + lasts.Milliseconds()
	}
	text, err := json.Marshal(b)
	if err != nil {
		return nil, "", err
	}
	// Who has a full disk must be able to log in.
	if _, err := t.shelf.Put(ctx, shelf.Change{ID: id, Author: b.Author, Protects: b.Login != nil}, b.Name, text); err != nil {
		return nil, "", err
	}
	made := t.parse(&storage.Document{DocumentHead: storage.DocumentHead{DocumentKey: tokenKey(id), Version: 1}, Body: text})
	return t.keep(id, made).token, tokenPrefix + id + "_" + secret, nil
}

// Revoke ends a token, named by its id or as a whole: in this process at once, in others within RefreshEvery. To revoke it
// again changes nothing. It returns an *InvalidError if there is no such token. After another error this process refuses
// the token, and Refresh tries again to tell others.
func (t *Tokens) Revoke(ctx context.Context, id, by string) error {
	id = TokenID(id)
	if !tokenKey(id).Valid() {
		return errNoToken(id)
	}
	t.mu.Lock()
	t.owed[id] = by
	t.mu.Unlock()
	return t.settle(ctx, id, by)
}

func errNoToken(id string) error {
	return invalid("there is no token with the id %.40q", id)
}

// settle revokes a token in the store that is owed to it.
func (t *Tokens) settle(ctx context.Context, id, by string) error {
	err := t.revoke(ctx, id, by)
	if missing := (*InvalidError)(nil); err != nil && !errors.As(err, &missing) {
		return fmt.Errorf("this process refuses the token %s from now on, but it cannot be revoked in the store: other processes, "+
			"and this one after a restart, accept it until that succeeds; it is tried again every %s while this process runs; "+
			"see that the store can be written, then revoke the token once more to be sure: %w", id, RefreshEvery, err)
	}
	t.mu.Lock()
	delete(t.owed, id)
	t.mu.Unlock()
	return err
}

// revoke stores the deletion of a token.
func (t *Tokens) revoke(ctx context.Context, id, by string) error {
	for {
		now, err := t.shelf.Newest(ctx, id)
		switch {
		case err != nil:
			return err
		case now.Version == 0:
			return errNoToken(id)
		}
		version := now.Version
		if !now.Deleted {
			version, err = t.shelf.Delete(ctx, shelf.Change{ID: id, Base: now.Version, Author: by, Protects: true})
		}
		if was := t.parse(&now).token; err == nil && was != nil && was.login != nil {
			err = t.shelf.Documents.ForgetDocument(ctx, tokenKey(id), version)
		}
		switch {
		case errors.Is(err, storage.ErrConflict) && ctx.Err() == nil:
			continue // somebody else was faster
		case err != nil:
			return err
		}
		t.keep(id, &stored{version: version, refused: revoked})
		return nil
	}
}

// List returns the tokens that are not revoked, by name. Expired ones are among them, those of logins are not.
func (t *Tokens) List(ctx context.Context) ([]Token, error) {
	if err := t.learn(ctx); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	all := []Token{}
	for id, s := range t.byID {
		switch {
		case s.token != nil && s.token.login != nil:
		case s.token != nil:
			all = append(all, *s.token)
		case s.refused != revoked:
			all = append(all, Token{ID: id, Name: s.refused})
		}
	}
	slices.SortFunc(all, func(a, b Token) int { return strings.Compare(a.Name+"\x00"+a.ID, b.Name+"\x00"+b.ID) })
	return all, nil
}

// split returns the parts of a token.
func split(text string) (id, secret string, ok bool) {
	rest, ok := strings.CutPrefix(text, tokenPrefix)
	if !ok || len(text) > 100 {
		return "", "", false
	}
	id, secret, ok = strings.Cut(rest, "_")
	if !ok || len(id) != letters.EncodedLen(idBytes) || !tokenKey(id).Valid() {
		return "", "", false // not even as an id: it may be a part of a secret
	}
	return id, secret, true
}

// TokenID returns the id of a whole token. Any other text is taken as an id.
func TokenID(text string) string {
	if id, _, ok := split(text); ok {
		return id
	}
	return text
}

// wholeTokens matches each token in a text, with what shows its id as the first group. The secret may be cut off, and the
// text may be a form's.
var wholeTokens = regexp.MustCompile(fmt.Sprintf("(%[1]s[%[2]s]{%[3]d}%[4]s)[%[2]s]+",
	strings.ReplaceAll(tokenPrefix, "_", formUnderscore), alphabet, letters.EncodedLen(idBytes), formUnderscore))

// formUnderscore matches an underscore in a form.
const formUnderscore = "(?:_|%5[fF])"

// isToken returns whether a password is meant as a token.
func isToken(password string) bool { return strings.HasPrefix(password, tokenPrefix) }

const alphabet = "abcdefghijklmnopqrstuvwxyz234567"

var letters = base32.NewEncoding(alphabet).WithPadding(base32.NoPadding)

// random returns n random bytes as letters and digits.
func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return letters.EncodeToString(b)
}
