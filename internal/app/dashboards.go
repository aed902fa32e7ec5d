package app

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/quern/quern/internal/api/dashboards"
	"github.com/quern/quern/internal/documents/dashboard"
)

// openDashboards reads the directory of dashboards, if there is one.
func (s *server) openDashboards() (err error) {
	if s.cfg.Dashboards == "" {
		return nil
	}
	s.dashboards, err = dashboard.OpenFiles(s.cfg.Dashboards, dashboard.FilesOptions{
		Clock: s.clk, Logger: component(s.log, "dashboards"), Metrics: s.metrics,
	})
	return err
}

// watchDashboards keeps the dashboards as their files are until ctx is done. SIGHUP has them read at once.
func (s *server) watchDashboards(ctx context.Context) {
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGHUP)
	defer signal.Stop(again)
	s.dashboards.Watch(ctx, again)
}

// dashboardsAPI returns the endpoints for dashboards.
func (s *server) dashboardsAPI(p *process) (*dashboards.Handler, error) {
	library, err := dashboard.NewLibrary(dashboard.Options{Documents: p.Store, Clock: s.clk, Files: s.dashboards, Demo: s.cfg.Demo})
	if err != nil {
		return nil, err
	}
	return dashboards.New(library), nil
}
