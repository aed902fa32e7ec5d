package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTransfer(t *testing.T) {
	export := func(args ...string) (Export, error) { return parse(t, ExportFlags(), FromExport, args) }
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	e, err := export()
	require.NoError(t, err)
	assert.Equal(t, []string{`{__name__!=""}`}, e.Match)
	assert.Equal(t, now.Add(-7*day).UnixMilli(), e.Start.Ms(now.UnixMilli()))
	assert.Equal(t, now.UnixMilli(), e.End.Ms(now.UnixMilli()))
	assert.Equal(t, day, e.Part)
	assert.Empty(t, e.Output)

	e, err = export("--match", "cpu", "--match", "mem", "--start", "1795240800", "--end", "-1d", "--output", "x.gz", "--overwrite", "--part", "90m")
	require.NoError(t, err)
	assert.Equal(t, []string{"cpu", "mem"}, e.Match)
	assert.Equal(t, "1795240800", e.Start.String())
	assert.Equal(t, "-1d", e.End.String())
	assert.Equal(t, "x.gz", e.Output)
	assert.True(t, e.Overwrite)
	assert.Equal(t, 90*time.Minute, e.Part)

	i, err := parse(t, ImportFlags(), FromImport, []string{"--rate", "5", "--give-up", "0", "a", "b"})
	require.NoError(t, err)
	assert.Equal(t, Import{Connection: Connection{URL: "http://127.0.0.1:9095"}, Files: []string{"a", "b"}, Rate: 5}, i)
	i, err = parse(t, ImportFlags(), FromImport, []string{"-"})
	require.NoError(t, err)
	assert.Equal(t, []string{"-"}, i.Files)
	assert.Equal(t, 10*time.Minute, i.GiveUp)
}
