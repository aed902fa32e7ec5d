package config

import (
	"errors"

	"github.com/urfave/cli/v2"
)

// ListDashboards holds the options of `quern dashboard list`.
type ListDashboards struct {
	Connection
	Deleted bool
}

// Dashboard holds the options of the commands about one dashboard.
type Dashboard struct {
	Connection
	ID string
	// Version is the one to get, 0 for the newest. Base is the one that was changed, -1 for the newest.
	Version, Base int
}

// DashboardFile holds the options of `quern dashboard put` and `quern dashboard convert`.
type DashboardFile struct {
	Connection
	File string // - is standard input
	// ID is empty to make one of the file's name.
	ID   string
	Base int
}

// NewestVersion stands for the newest version.
const NewestVersion = -1

func (o *options) dashboard() group { return o.group("Dashboard") }

func (o *options) base(to *int) {
	number(o.dashboard(), to, "base", NewestVersion, NewestVersion, 1<<40, "`VERSION` that was changed: the server refuses if there is a newer one; 0 is for a new dashboard (-1: replace the newest)")
}

// ListDashboardsFlags and FromListDashboards are of `quern dashboard list`.
var ListDashboardsFlags, FromListDashboards = command(func(o *options, l *ListDashboards) {
	l.addRows(o)
	o.dashboard().boolean(&l.Deleted, "deleted", false, "list deleted dashboards too")
})

// DashboardFlags and FromDashboard are of `quern dashboard versions`.
var DashboardFlags, FromDashboard = command(func(o *options, d *Dashboard) { d.which(o) })

// GetDashboardFlags and FromGetDashboard are of `quern dashboard get`.
var GetDashboardFlags, FromGetDashboard = command(func(o *options, d *Dashboard) {
	d.which(o)
	number(o.dashboard(), &d.Version, "at-version", 0, 0, 1<<40, "`VERSION` to get, of those that `quern dashboard versions` lists (0: the newest)")
})

// DeleteDashboardFlags and FromDeleteDashboard are of `quern dashboard delete`.
var DeleteDashboardFlags, FromDeleteDashboard = command(func(o *options, d *Dashboard) {
	d.which(o)
	o.base(&d.Base)
})

func (d *Dashboard) which(o *options) {
	d.addRows(o)
	o.argument(&d.ID, "name the dashboard by its id, as `quern dashboard list` shows it; flags come before it")
}

// PutDashboardFlags and FromPutDashboard are of `quern dashboard put`.
var PutDashboardFlags, FromPutDashboard = command(func(o *options, d *DashboardFile) {
	d.addRows(o)
	d.file(o)
	o.dashboard().text(&d.ID, "id", "", "`ID` of the dashboard: a-z, 0-9, _, . and - (default: made of the file's name)")
	o.base(&d.Base)
	o.check(func(*cli.Context) error {
		if d.ID == "" && d.File == "-" {
			return errors.New("--id: must be given for standard input")
		}
		return nil
	})
})

// FromConvertDashboard is of `quern dashboard convert`, which has no flags.
var _, FromConvertDashboard = command(func(o *options, d *DashboardFile) { d.file(o) })

func (d *DashboardFile) file(o *options) {
	o.argument(&d.File, "name one file with a dashboard, or - for standard input; flags come before it")
}
