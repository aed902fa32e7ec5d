package access

// MaxTokens is maxTokens.
const MaxTokens = maxTokens
