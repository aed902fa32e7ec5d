package wire

// Token is a token without its secret.
type Token struct {
	ID    string   `json:"id"`
	Name  string   `json:"name"`
	Roles []string `json:"roles"`
	// Author is who made it.
	Author  string `json:"author"`
	Created int64  `json:"created"`
	// Expires is 0 for never.
	Expires int64 `json:"expires"`
}

// NewToken is the reply to the creation of a token.
type NewToken struct {
	Status string `json:"status"`
	Token
	// Secret is the whole token, which nobody can ask for later.
	Secret string `json:"secret"`
}

// Tokens is the list of tokens that are not revoked.
type Tokens struct {
	Tokens []Token `json:"tokens"`
}

// Login is the reply to a login.
type Login struct {
	Status string   `json:"status"`
	Name   string   `json:"name"`
	Roles  []string `json:"roles"`
	// Expires is when the login ends.
	Expires int64 `json:"expires"`
}

// Who is what a client is known as.
type Who struct {
	Status string `json:"status"`
	// Name is empty for a client that has not shown who it is, or that need not.
	Name string `json:"name"`
	// Roles are what the client may do. The role admin includes the others.
	Roles []string `json:"roles"`
}
