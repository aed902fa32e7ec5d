package layers

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// mostRooms bounds the directories at the top of internal. Each is a noun of the domain, and holds what belongs to it: a
// new package goes into one of them.
const mostRooms = 26

// TestRooms: the directories at the top of internal are few, and no two of them need each other, not even by way of
// others.
func TestRooms(t *testing.T) {
	packages, err := readPackages(os.DirFS("../../.."))
	require.NoError(t, err)
	rooms := roomsOf(packages)
	require.Contains(t, rooms, "storage")
	require.LessOrEqual(t, len(rooms), mostRooms, "rooms at the top of internal: %v", slices.Sorted(maps.Keys(rooms)))
	require.Empty(t, circle(rooms))

	require.Equal(t, []string{"a", "b", "c"}, circle(map[string][]string{"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}))
	require.Empty(t, circle(map[string][]string{"a": {"b", "c"}, "b": {"c"}, "c": nil}))
}

// roomsOf returns which rooms each room imports. Kits for tests are no part of their room, since they import what uses it.
func roomsOf(packages map[string][]string) map[string][]string {
	rooms := make(map[string][]string)
	room := func(pkg string) (string, bool) {
		below, ok := strings.CutPrefix(pkg, "internal/")
		name, _, _ := strings.Cut(below, "/")
		return name, ok
	}
	for pkg, imports := range packages {
		name, ok := room(pkg)
		if !ok || matchesAny(forTests, pkg) {
			continue
		}
		rooms[name] = slices.Clip(rooms[name])
		for _, imp := range imports {
			within, ok := withinModule(imp)
			if other, inside := room(within); ok && inside && other != name && !slices.Contains(rooms[name], other) {
				rooms[name] = append(rooms[name], other)
			}
		}
	}
	return rooms
}

// circle returns the rooms that are left when those that import no other are taken away, again and again: circles, and
// what leads from one circle to another.
func circle(rooms map[string][]string) []string {
	left := maps.Clone(rooms)
	for {
		// A room that nobody imports, or that imports none, is on no circle.
		before := len(left)
		for name, imports := range left {
			needs := slices.ContainsFunc(imports, func(o string) bool { _, ok := left[o]; return ok })
			needed := slices.ContainsFunc(slices.Collect(maps.Values(left)), func(o []string) bool { return slices.Contains(o, name) })
			if !needs || !needed {
				delete(left, name)
			}
		}
		if len(left) == before {
			return slices.Sorted(maps.Keys(left))
		}
	}
}
