//go:build !unix

package app

// checkPrivate accepts any directory: here modes do not say who may enter it.
func checkPrivate(string, int) error { return nil }
