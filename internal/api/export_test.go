package api

// ProgressBytes is progressBytes.
const ProgressBytes = progressBytes

// Opts returns the server's options, with their defaults.
func (s *Server) Opts() *Options { return &s.opts }

// FormBytes is formBytes.
func (o *Options) FormBytes() int64 { return o.formBytes() }
