package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSplit(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{"", nil},
		{" ; ;\n", nil},
		{"SELECT 1", []string{"SELECT 1"}},
		{"a;b; c ;", []string{"a", "b", "c"}},
		{"a 'x;''y;'; b \";\"", []string{"a 'x;''y;'", "b \";\""}},
		{"a -- x;\nb; c/* ; */d;// ;", []string{"a  \nb", "c d"}},
		{"f AS $$ return 1; $$; b - 1 / 2", []string{"f AS $$ return 1; $$", "b - 1 / 2"}},
	} {
		require.Equal(t, c.want, split(c.text), "%q", c.text)
	}
}
