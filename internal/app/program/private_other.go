//go:build !unix

package program

// keepPrivate does nothing: files get the rights of their directory.
func keepPrivate() {}
