package access

import (
	"bytes"
	"crypto/subtle"
	"fmt"
	"net/http"
	"os"
	"strings"
)

// Secret is a door that grants roles to whoever shows what a file holds: as a token, or as the password of any user.
type Secret struct {
	// File is read for each request.
	File  string
	Roles Role
}

// Identify implements the door of a server, as Door.Identify does.
func (s Secret) Identify(r *http.Request) (Grant, error) {
	header := r.Header.Get("Authorization")
	if header == "" {
		return Grant{}, nil
	}
	want, err := os.ReadFile(s.File)
	if err != nil {
		return Grant{}, fmt.Errorf("the token to compare with: %w", err)
	}
	_, shown, _ := strings.Cut(header, " ") // Bearer, or Token of InfluxDB's clients
	if _, password, ok := r.BasicAuth(); ok {
		shown = password
	}
	if want = bytes.TrimSpace(want); len(want) == 0 || subtle.ConstantTimeCompare(want, []byte(shown)) == 0 {
		return Grant{}, unauthorized("the token is wrong")
	}
	return Grant{Name: "the token", Roles: s.Roles}, nil
}
