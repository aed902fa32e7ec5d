package cache_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// TestWork: what several marks of a block ask for together, in any order.
func TestWork(t *testing.T) {
	ids := func(ids ...metric.ScheduleID) []metric.ScheduleID { return ids }
	for _, c := range []struct {
		name         string
		marks        []storage.Mark
		fresh, whole bool
		schedules    []metric.ScheduleID
		dueMs        int64
		attempt      int
	}{
		{
			name:  "fresh, marked twice",
			marks: []storage.Mark{{Kind: storage.MarkFresh, DueMs: 5}, {Kind: storage.MarkFresh, DueMs: 5}},
			fresh: true, whole: true, dueMs: 5,
		},
		{
			name:      "late schedules join",
			marks:     []storage.Mark{{Kind: storage.MarkLate, Schedules: ids(4, 9), DueMs: 7}, {Kind: storage.MarkLate, Schedules: ids(1, 4), DueMs: 7}},
			schedules: ids(1, 4, 9), dueMs: 7,
		},
		{
			name:  "a put off block takes the late schedules with it",
			marks: []storage.Mark{{Kind: storage.MarkLate, Schedules: ids(4), DueMs: 9}, {Kind: storage.MarkRetry, DueMs: 3, Attempt: 2}},
			whole: true, dueMs: 9, attempt: 2,
		},
		{
			name:  "the other way round",
			marks: []storage.Mark{{Kind: storage.MarkRetry, DueMs: 3, Attempt: 2}, {Kind: storage.MarkLate, Schedules: ids(4), DueMs: 9}},
			whole: true, dueMs: 9, attempt: 2,
		},
		{
			name:  "one mark that is not fresh is enough",
			marks: []storage.Mark{{DueMs: 5}, {Kind: storage.MarkRetry, DueMs: 5}},
			whole: true, dueMs: 5,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &cache.Work{Marks: c.marks}
			require.Equal(t, c.fresh, w.Fresh())
			require.Equal(t, c.whole, w.Whole())
			require.Equal(t, c.schedules, w.Schedules())
			require.Equal(t, c.dueMs, w.DueMs())
			require.Equal(t, c.attempt, w.Attempt())
		})
	}
}
