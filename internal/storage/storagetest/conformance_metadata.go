package storagetest

import (
	"fmt"
	"strconv"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
)

// metadataCases test storage.Metadata.
var metadataCases = []conformanceCase{
	{"Metadata", (*suite).metadata, nil},
}

func (s *suite) metadata() {
	check := func(want ...metric.Metadata) {
		s.Helper()
		got, err := gather(s.store.Metadata(s.ctx))
		require.NoError(s, err)
		equal(s, want, got)
	}
	check()
	require.NoError(s, s.store.PutMetadata(s.ctx, nil))
	check()
	full := metric.Metadata{Name: "http_seconds", Type: metric.TypeHistogram, Help: "Time to answer.\n\x00 Zeit für eine Antwort ⏱", Unit: "seconds"}
	bare := metric.Metadata{Name: "http.näme with space"}
	require.NoError(s, s.store.PutMetadata(s.ctx, []metric.Metadata{full, bare}))
	check(bare, full)
	s.reopen()
	check(bare, full)
	// The last write wins, also within a call, and a field that is left out is cleared.
	full.Type, full.Unit = metric.TypeStateset, ""
	require.NoError(s, s.store.PutMetadata(s.ctx, []metric.Metadata{{Name: full.Name, Help: "no longer"}, full}))
	for range 2 {
		check(bare, full)
		require.NoError(s, s.store.PutMetadata(s.ctx, []metric.Metadata{full}), "idempotent")
	}
	// A name that is a prefix of another, and more names than a page or a batch holds.
	var many []metric.Metadata
	for i := range 2500 {
		many = append(many, metric.Metadata{Name: fmt.Sprintf("http_seconds_%04d", i), Type: metric.Type(i % 8), Help: strconv.Itoa(i) + string(make([]byte, 900))})
	}
	require.NoError(s, s.store.PutMetadata(s.ctx, many))
	check(append([]metric.Metadata{bare, full}, many...)...)
	s.expireAt(at(1000 * 24))
	s.reopen()
	check(append([]metric.Metadata{bare, full}, many...)...)
	breakAtOnce(s.T, s.store.Metadata(s.ctx))
}
