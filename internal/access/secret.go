package access

import (
	"bytes"
	"crypto/subtle"
	"errors"
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

// Check returns why clients of an address cannot be let in: other machines reach it, and there is no file, or it cannot be found.
func (s Secret) Check(address string) error {
	switch {
	case s.File != "":
		_, err := os.Stat(s.File)
		return err
	case !Loopback(address):
		return errors.New("other machines reach this address: name a file that holds the token which they must send, or listen on 127.0.0.1")
	}
	return nil
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
