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
	// Match are selectors of the series that it is bound to, none for all.
	Match []string `json:"match,omitempty"`
	// The limits are 0 for none.
	MaxSeries           int `json:"max_series,omitempty"`
	MaxSamplesPerSecond int `json:"max_samples_per_second,omitempty"`
	MaxQueries          int `json:"max_queries,omitempty"`
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
