package bound_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/access/bound"
	"github.com/quern/quern/internal/metric"
)

func TestHas(t *testing.T) {
	for _, c := range []struct {
		selectors []string
		has       bool
		lacks     string
	}{
		{[]string{`{team="web"}`}, true, ""},
		{[]string{`{team="we"}`}, false, "team"},
		{[]string{`{team=~"we"}`}, false, "team"}, // patterns match whole values
		{[]string{`{team=~"we."}`}, true, ""},
		{[]string{`{team=~"WEB"}`}, false, "team"},
		{[]string{`{team="web",env="prod"}`}, false, "env"},
		{[]string{`{team="web",env!="prod"}`}, true, ""}, // a label that is absent is empty
		{[]string{`{team="web",env=~"prod|"}`}, true, ""},
		{[]string{`cpu{team="web"}`}, true, ""},
		{[]string{`mem{team="web"}`}, false, "__name__"},
		{[]string{`{team="db"}`, `cpu`}, true, ""},
		{[]string{`{team="db"}`, `mem`}, false, "team"},
	} {
		b, err := bound.Parse(c.selectors, 0)
		require.NoError(t, err)
		ls := metric.Labels{{Name: "__name__", Value: "cpu"}, {Name: "team", Value: "web"}}
		require.Equal(t, c.has, b.Has(ls.Get), c.selectors)
		if !c.has {
			require.Equal(t, c.lacks, b.Lacks(ls.Get), c.selectors)
		}
	}
	for want, selectors := range map[string][]string{
		"needs a selector":     nil,
		"must require a value": {`{team=~".*"}`},
		"parse error":          {`team=web`},
		"1024 bytes":           {`{team="` + strings.Repeat("a", 1020) + `"}`},
	} {
		_, err := bound.Parse(selectors, 0)
		require.ErrorContains(t, err, want)
	}
}

// TestRoom: places are given as long as there are some, whatever became of them since they were counted.
func TestRoom(t *testing.T) {
	b, err := bound.Parse([]string{`{team="web"}`}, 10)
	require.NoError(t, err)
	present, counts := 4, 0
	count := func() (int, error) {
		counts++
		return present, nil
	}
	room := func(n int, now time.Duration) int {
		got, err := b.Room(n, now, count)
		require.NoError(t, err)
		return got
	}
	require.Equal(t, 3, room(3, 0))
	require.Equal(t, 3, room(5, 0))
	require.Equal(t, 0, room(1, 0))
	b.Unused(2)
	require.Equal(t, 2, room(3, time.Minute-1))
	require.Equal(t, 1, counts)
	present = 9 // one that was to be made has not come about
	require.Equal(t, 1, room(3, time.Minute))
	require.Equal(t, 2, counts)
	present = 12 // others have made some
	require.Equal(t, 0, room(1, 2*time.Minute))

	failed := errors.New("away")
	_, err = b.Room(1, 3*time.Minute, func() (int, error) { return 0, failed })
	require.ErrorIs(t, err, failed)
	require.Equal(t, 0, room(1, 3*time.Minute)) // it is counted again

	free, err := bound.Parse([]string{`{team="web"}`}, 0)
	require.NoError(t, err)
	n, err := free.Room(1000, 0, nil)
	require.NoError(t, err)
	require.Equal(t, 1000, n)
}
