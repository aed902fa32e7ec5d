package cassandra

import (
	"context"
	"fmt"
	"time"

	"github.com/quern/quern/internal/storage"
)

const cqlNow = `SELECT toUnixTimestamp(now()) AS now FROM system.local`

// CheckFit implements storage.Store. It compares the clocks because TTLs run by the servers'
// clocks.
func (s *Store) CheckFit(ctx context.Context) error {
	if err := s.checkClock(ctx); err != nil {
		return named("check the clock", err)
	}
	return named("check the settings", s.checkPolicy(ctx))
}

// checkClock compares this process's clock with the clock of the server that answers.
func (s *Store) checkClock(ctx context.Context) error {
	most := s.policy().MaxClockSkew()
	if most == 0 {
		return ctx.Err()
	}
	asked := s.clk.Now()
	found, err := all[struct {
		NowMs int64 `db:"now"`
	}](ctx, s.session, stmt(cqlNow))
	if err != nil {
		return err
	}
	if len(found) != 1 {
		return fmt.Errorf("%w: a server does not say what time it is", storage.ErrUnavailable)
	}
	return checkClock(most, found[0].NowMs, asked, s.clk.Now())
}

// checkClock refuses clocks that differ by more than most; 0 turns the comparison off. The server
// read its clock at some moment between asked and answered, so the time between the two is
// tolerated.
func checkClock(most time.Duration, serverMs int64, asked, answered time.Time) error {
	if most == 0 {
		return nil
	}
	server := time.UnixMilli(serverMs)
	ahead, behind := asked.Sub(server)-time.Millisecond, server.Sub(answered)
	if ahead <= most && behind <= most {
		return nil
	}
	off, direction := ahead, "ahead of"
	if behind > ahead {
		off, direction = behind, "behind"
	}
	return refuse("this machine's clock is %s %s the servers', more than the %s that data may come late by: "+
		"set the clocks (NTP), or allow more by `quern settings set` with --late-grace and --aggregation-delay",
		off.Round(time.Second), direction, most)
}
