package cassandra

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// counter is a session on a keyspace with a next id, and series with ids.
type counter struct {
	session

	next   int64
	series []int64
	// onSeries is called once, when series are read.
	onSeries func()
	// away is the first id of a group that is out of reach.
	away int64

	mu sync.Mutex // of page, which the pages of several partitions call at a time
}

func (c *counter) page(_ context.Context, st statement, _ int, _ []byte, dest any) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if st.cql == cqlReadSetting {
		return nil, json.Unmarshal(fmt.Appendf(nil, `[{"Value": "%d"}]`, c.next), dest)
	}
	if c.onSeries != nil {
		c.onSeries()
		c.onSeries = nil
	}
	start, from, to := st.args[0].(int64), st.args[1].(int64), st.args[2].(int64)
	if c.away == start {
		return nil, storage.ErrUnavailable
	}
	for _, id := range c.series {
		if id >= max(start, from) && id < min(start+128, to) {
			*dest.(*[]listedRow) = append(*dest.(*[]listedRow), listedRow{id, map[string]string{metric.NameLabel: "m"}})
		}
	}
	return nil, nil
}

func (c *counter) cas(_ context.Context, stmts ...statement) (bool, error) {
	old, value := stmts[0].args[2].(string), stmts[0].args[0].(string)
	if old != fmt.Sprint(c.next) {
		return false, nil
	}
	_, err := fmt.Sscan(value, &c.next)
	return err == nil, err
}

// No ids are leased while a series has one of the next ids, as where the next id was put back. It is
// raised by hand. Ids that another process leases, and uses, meanwhile are no sign of that.
func TestLeaseOfIDsInUse(t *testing.T) {
	c := &counter{away: -1, next: 100, series: []int64{0, 99, 700}}
	s := &Store{session: c, groupSize: 128}
	lease := func() (blocks.Range, error) { return s.LeaseIDs(t.Context(), 400) }
	r, err := lease()
	require.NoError(t, err)
	require.Equal(t, blocks.Range{Start: 100, End: 500}, r)
	for range 2 {
		_, err = lease()
		require.ErrorIs(t, err, storage.ErrSettings)
		require.ErrorContains(t, err, "setting next_schedule_id says that no id from 500 on is in use, but a series has id 700")
	}
	c.next = 701
	c.onSeries = func() { c.next, c.series = 1000, append(slices.Clone(c.series), 701) }
	r, err = lease()
	require.NoError(t, err)
	require.Equal(t, blocks.Range{Start: 1000, End: 1400}, r)

	// A group that is out of reach keeps nobody from the ids of others.
	c.away = 1408
	r, err = lease()
	require.NoError(t, err)
	require.Equal(t, blocks.Range{Start: 1400, End: 1800}, r)
}
