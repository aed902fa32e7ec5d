package access

// MaxEnded is maxEnded.
const MaxEnded = maxEnded

// MaxTokens is maxTokens.
const MaxTokens = maxTokens
