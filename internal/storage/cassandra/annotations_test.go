package cassandra

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/storage"
)

// manyLong is a session of a store with so many annotations longer than a year that nobody reads them all.
type manyLong struct {
	session
	endMs int64
	pages int // that were read of annotation_spans
}

var errAllRead = errors.New("all long annotations are read before the first is yielded")

func (m *manyLong) page(_ context.Context, st statement, _ int, from []byte, dest any) ([]byte, error) {
	row := annotationRow{ID: "a", EndMs: &m.endMs}
	switch {
	case st.cql == cqlReadAnnotation:
		row.StartMs = st.args[1].(int64)
		*dest.(*[]annotationRow) = []annotationRow{row}
	case st.cql == cqlReadSpans && st.args[0] == int(storage.SpanAny):
		n, _ := strconv.Atoi(string(from))
		if m.pages++; m.pages > 10 {
			return nil, errAllRead
		}
		for i := range spansAhead {
			row.StartMs = int64(n*spansAhead + i)
			*dest.(*[]annotationRow) = append(*dest.(*[]annotationRow), row)
		}
		return []byte(strconv.Itoa(n + 1)), nil
	}
	return nil, nil
}

// TestLongAnnotationsAreRead page by page, as the loop asks for them.
func TestLongAnnotationsAreRead(t *testing.T) {
	m := &manyLong{endMs: 400 * dayMs}
	s := &Store{session: m}
	n := int64(0)
	for a, err := range s.Annotations(t.Context(), m.endMs, m.endMs) {
		require.NoError(t, err)
		require.Equal(t, n, a.StartMs)
		if n++; n == 3*spansAhead {
			break
		}
	}
	require.EqualValues(t, 3*spansAhead, n)
	require.LessOrEqual(t, m.pages, 4)
}
