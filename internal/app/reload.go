package app

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/protocol/respond"
	"github.com/quern/quern/internal/wire"
)

// reloads looks at the web config file and the dashboards every few seconds until ctx is done, and reloads when something is
// received from again.
func (s *server) reloads(ctx context.Context, again <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-again:
			_, _ = s.reload() // it logs the error
		case <-s.clk.After(5 * time.Second):
			s.reloading.Lock()
			_ = s.look() // it logs the error
			s.reloading.Unlock()
		}
	}
}

// look reads the web config file and the dashboards.
func (s *server) look() (err error) {
	if s.web != nil {
		err = s.web.Reload()
	}
	if s.dashboards != nil {
		err = errors.Join(err, s.dashboards.Reload())
	}
	return err
}

// reload reads all files again. Each that can be used as it is now is used, and the options of --config that can change while
// the process runs do so. The error is about the other files: what they said earlier stays.
func (s *server) reload() (wire.Reload, error) {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	err := s.look()
	done := wire.Reload{Status: wire.Success, Changed: []string{}, NeedsRestart: []string{}}
	if s.cfg.Texts["config"] != "" {
		next, broken := s.cfg.Again() // without Texts if it is broken
		err = errors.Join(err, broken)
		for _, name := range slices.Sorted(maps.Keys(next.Texts)) {
			if next.Texts[name] == s.cfg.Texts[name] {
				continue
			}
			series := s.registry.Load() // nil before the store is open: then the next reload changes its limits
			switch {
			case name == "log-level":
				s.cfg.LogLevel.(*slog.LevelVar).Set(next.LogLevel.Level())
			case series != nil && (name == "max-series" || name == "max-series-per-source"):
				series.SetLimits(next.MaxSeries, next.MaxSeriesPerSource)
			default:
				done.NeedsRestart = append(done.NeedsRestart, name)
				continue
			}
			s.cfg.Texts[name] = next.Texts[name]
			done.Changed = append(done.Changed, name)
		}
	}
	s.log.Info("reloaded", "changed", done.Changed, "needs_restart", done.NeedsRestart)
	if err != nil {
		s.log.Error("reload: what cannot be used as it is now stays as it was", "err", err)
	}
	return done, err
}

// Register implements api.Registrar: it adds the endpoint that reloads, as in Prometheus.
func (s *server) Register(to *route.Table) {
	to.HandleFunc(access.Admin, route.Refused, "POST /-/reload", func(w http.ResponseWriter, _ *http.Request) {
		done, err := s.reload()
		if err != nil {
			respond.Error(w, http.StatusInternalServerError, err.Error())
			return
		}
		respond.JSON(w, http.StatusOK, done)
	})
}
