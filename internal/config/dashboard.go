package config

import (
	"errors"

	"github.com/urfave/cli/v2"
)

const catDashboard = "Dashboard"

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

func baseFlag() cli.Flag {
	return integer(catDashboard, "base", NewestVersion, "`VERSION` that was changed: the server refuses if there is a newer one; 0 is for a new dashboard (-1: replace the newest)")
}

// ListDashboardsFlags returns the flags of `quern dashboard list`.
func ListDashboardsFlags() []cli.Flag {
	return append(TokensFlags(), boolean(catDashboard, "deleted", false, "list deleted dashboards too"))
}

// GetDashboardFlags returns the flags of `quern dashboard get`.
func GetDashboardFlags() []cli.Flag {
	return append(TokensFlags(), integer(catDashboard, "at-version", 0, "`VERSION` to get, of those that `quern dashboard versions` lists (0: the newest)"))
}

// DeleteDashboardFlags returns the flags of `quern dashboard delete`.
func DeleteDashboardFlags() []cli.Flag { return append(TokensFlags(), baseFlag()) }

// PutDashboardFlags returns the flags of `quern dashboard put`.
func PutDashboardFlags() []cli.Flag {
	return append(TokensFlags(), str(catDashboard, "id", "", "`ID` of the dashboard: a-z, 0-9, _, . and - (default: made of the file's name)"), baseFlag())
}

// FromListDashboards reads the flags of `quern dashboard list`.
func FromListDashboards(c *cli.Context) (ListDashboards, error) {
	return read(c, func(p *parser, l *ListDashboards) {
		l.Connection, l.Deleted = p.connection(), p.c.Bool("deleted")
	})
}

// FromDashboard reads the flags and the argument of the commands about one dashboard.
func FromDashboard(c *cli.Context) (Dashboard, error) {
	return read(c, func(p *parser, d *Dashboard) {
		d.Connection = p.connection()
		if d.ID = c.Args().First(); c.NArg() != 1 || d.ID == "" {
			p.add(errors.New("name the dashboard by its id, as `quern dashboard list` shows it; flags come before it"))
		}
		if has(c, "at-version") {
			d.Version = p.within("at-version", 0, 1<<40)
		}
		if has(c, "base") {
			d.Base = p.within("base", NewestVersion, 1<<40)
		}
	})
}

// FromPutDashboard reads the flags and the argument of `quern dashboard put`.
func FromPutDashboard(c *cli.Context) (DashboardFile, error) {
	return read(c, func(p *parser, d *DashboardFile) {
		d.Connection, d.File = p.connection(), p.file()
		d.Base = p.within("base", NewestVersion, 1<<40)
		if d.ID = p.c.String("id"); d.ID == "" && d.File == "-" {
			p.add(errors.New("--id: must be given for standard input"))
		}
	})
}

// FromConvertDashboard reads the argument of `quern dashboard convert`.
func FromConvertDashboard(c *cli.Context) (DashboardFile, error) {
	return read(c, func(p *parser, d *DashboardFile) { d.File = p.file() })
}

// file reads the argument that is a file.
func (p *parser) file() string {
	name := p.c.Args().First()
	if p.c.NArg() != 1 || name == "" {
		p.add(errors.New("name one file with a dashboard, or - for standard input; flags come before it"))
	}
	return name
}

// has returns whether a command has a flag.
func has(c *cli.Context, name string) bool {
	for _, f := range c.Command.Flags {
		for _, n := range f.Names() {
			if n == name {
				return true
			}
		}
	}
	return false
}
