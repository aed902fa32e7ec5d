package cassandra

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// settingLeases records which process holds which ids. A conditional update decides a lease once,
// unless the servers forget it. A node that holds the only copy, and acknowledges before its log is
// on disk, forgets its last seconds when it is killed, while the process that leased ids in these
// seconds goes on. So a lease names its holder, and a process whose lease was forgotten finds out
// whether another process got the same ids since (KeepIDs).
const settingLeases = "id_leases"

// mostLeases is how many leases are kept: only the last ones can have been forgotten.
const mostLeases = 256

// idLease is the stored form of a lease. Leases are stored oldest first.
type idLease struct {
	From   int64  `json:"from"`
	To     int64  `json:"to"`
	Holder string `json:"holder"`
}

// LeaseIDs implements storage.Registry. If it is in doubt whether a lease took effect, nobody gets
// the ids.
func (s *Store) LeaseIDs(ctx context.Context, n int) (blocks.Range, error) {
	const op = "lease ids"
	if n < 1 {
		return blocks.Range{}, fmt.Errorf("%s: %d: must be at least 1", op, n)
	}
	for {
		next, text, err := s.nextID(ctx)
		if err != nil {
			return blocks.Range{}, named(op, err)
		}
		r := blocks.Range{Start: next, End: next + metric.ScheduleID(n)}
		// If an attempt is refused because an earlier one took effect, nobody gets these ids.
		ok, err := s.session.cas(ctx, swap(settingNextID, text, strconv.FormatInt(int64(r.End), 10)).again())
		if err != nil {
			return blocks.Range{}, named(op, err)
		}
		if !ok {
			continue // another process leased some meanwhile
		}
		switch err := s.unused(ctx, r); {
		case errors.Is(err, storage.ErrConflict):
			continue // the next id was forgotten, or put back by hand
		case err != nil:
			return blocks.Range{}, named(op, err)
		}
		return r, nil
	}
}

// unused records ids as held by this process. ErrConflict if another process holds some, or a
// series has one.
func (s *Store) unused(ctx context.Context, r blocks.Range) error {
	if err := s.holdIDs(ctx, r); err != nil {
		return err
	}
	for sch, err := range s.Schedules(ctx, r) {
		if err == nil {
			err = fmt.Errorf("a series has id %d: %w", sch.ID, storage.ErrConflict)
		}
		return err
	}
	return nil
}

// KeepIDs implements storage.Registry.
func (s *Store) KeepIDs(ctx context.Context, r blocks.Range) error {
	op := fmt.Sprintf("keep ids %d to %d", r.Start, r.End-1)
	if err := s.holdIDs(ctx, r); err != nil {
		return named(op, err)
	}
	for {
		next, text, err := s.nextID(ctx)
		if err != nil || next >= r.End {
			return named(op, err)
		}
		if _, err := s.session.cas(ctx, swap(settingNextID, text, strconv.FormatInt(int64(r.End), 10)).again()); err != nil {
			return named(op, err)
		}
	}
}

// Doubts implements storage.Registry.
func (s *Store) Doubts() int64 {
	if s.nodes == nil || s.copies != 1 {
		return 0 // the other copies remember
	}
	return s.nodes.doubts.Load()
}

// holdIDs records that this process holds ids. ErrConflict if another process holds some of them.
func (s *Store) holdIDs(ctx context.Context, r blocks.Range) error {
	for {
		text, err := readSetting(ctx, s.session, settingLeases)
		if err != nil {
			return err
		}
		var leases []idLease
		if text != "" {
			if err := json.Unmarshal([]byte(text), &leases); err != nil {
				return fmt.Errorf("%w: setting %s %q", storage.ErrCorrupt, settingLeases, text)
			}
		}
		mine := idLease{int64(r.Start), int64(r.End), s.holder}
		for _, l := range leases {
			switch {
			case l.To <= mine.From || mine.To <= l.From:
			case l.Holder != s.holder:
				return fmt.Errorf("ids %d to %d: %w", l.From, l.To-1, storage.ErrConflict)
			case l.From <= mine.From && mine.To <= l.To:
				return nil
			}
		}
		if n := len(leases); n > 0 && leases[n-1].Holder == s.holder && leases[n-1].To == mine.From {
			leases[n-1].To = mine.To
		} else {
			leases = append(leases, mine)
		}
		leases = leases[max(0, len(leases)-mostLeases):]
		changed, err := json.Marshal(leases)
		if err != nil {
			return err
		}
		// If an attempt is refused because an earlier one took effect, the next round finds this
		// process's lease.
		if _, err := s.session.cas(ctx, swap(settingLeases, text, string(changed)).again()); err != nil {
			return err
		}
		// Read again: the setting has the lease of whoever was first.
	}
}
