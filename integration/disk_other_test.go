//go:build !linux

package integration

import "testing"

// smallDisk returns nil: only Linux is supported.
func smallDisk(t *testing.T, _ int) *disk {
	t.Log("NOTE: THE FULL DISK IS NOT TESTED WITH A REAL ONE, which needs Linux.")
	return nil
}

func fill(*testing.T, string) {}
