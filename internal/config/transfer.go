package config

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/metric"
)

// Export holds the validated options of `quern export`.
type Export struct {
	Connection
	Match       []string
	Start, End  metric.Moment
	Part        time.Duration
	Annotations bool
	// Output is empty for standard output.
	Output    string
	Overwrite bool
}

// Import holds the validated options of `quern import`.
type Import struct {
	Connection
	Files  []string
	Rate   int
	GiveUp time.Duration
}

// ExportFlags and FromExport are of `quern export`.
var ExportFlags, FromExport = command(func(o *options, e *Export) {
	e.addRows(o)
	o.match(&e.Match)
	o.request().timeRange(&e.Start, &e.End, "-7d")
	o.transfer().boolean(&e.Annotations, "annotations", true, "export the annotations of the time range, too")
	o.transfer().required(&e.Output, "output", "-", "`FILE` to write, compressed if its name ends in .gz or .zst; - is standard output")
	o.transfer().span(&e.Part, "part", day, interval, "time range of one request; a stopped export loses at most one of them")
	o.transfer().boolean(&e.Overwrite, "overwrite", false, "start over, even if FILE exists")
	o.check(func(*cli.Context) error {
		if len(e.Match) == 0 {
			e.Match = []string{`{__name__!=""}`}
		}
		if e.Output == "-" {
			e.Output = ""
		}
		if e.Overwrite && e.Output == "" {
			return errors.New("--overwrite: needs --output FILE")
		}
		return nil
	})
})

// ImportFlags and FromImport are of `quern import`.
var ImportFlags, FromImport = command(func(o *options, i *Import) {
	i.addRows(o)
	number(o.transfer(), &i.Rate, "rate", 0, 0, 1<<40, "maximum number of samples sent per second; 0 is no limit")
	o.transfer().span(&i.GiveUp, "give-up", 10*time.Minute, notNegative, "maximum time to wait for a server that is busy or unavailable")
	o.check(func(c *cli.Context) error {
		i.Files = c.Args().Slice()
		for _, f := range i.Files {
			if f == "" || strings.HasPrefix(f, "-") && f != "-" {
				return fmt.Errorf("%q is not a file name: put flags before the files, and ./ before a file name that begins with -", f)
			}
		}
		switch {
		case len(i.Files) == 0:
			return errors.New("name the files to import, or - for standard input")
		case len(i.Files) > 1 && slices.Contains(i.Files, "-"):
			return errors.New("-: standard input cannot be combined with files")
		}
		return nil
	})
})

// Backups holds the options of the commands that need no server: `quern backup list`, `verify`, `restore` and `prune`.
type Backups struct {
	Place, To string
	// Backup is empty for the newest.
	Backup string
	Keep   int
}

// CreateBackup holds the options of `quern backup create`.
type CreateBackup struct {
	Connection
	Rate int
}

// CreateBackupFlags and FromCreateBackup are of `quern backup create`.
var CreateBackupFlags, FromCreateBackup = command(func(o *options, c *CreateBackup) {
	c.addRows(o)
	number(o.transfer(), &c.Rate, "rate", 100_000_000, 1, math.MaxInt, "maximum number of bytes that the server reads per second for the backup")
})

// These are of the other commands of `quern backup`.
var (
	ListBackupsFlags, FromListBackups   = command(func(o *options, b *Backups) { b.addRows(o) })
	VerifyBackupFlags, FromVerifyBackup = command(func(o *options, b *Backups) { b.addNamed(o) })

	RestoreBackupFlags, FromRestoreBackup = command(func(o *options, b *Backups) {
		b.addNamed(o)
		o.transfer().required(&b.To, "to", "", "`DIRECTORY` to make, for --data-dir")
	})
	PruneBackupsFlags, FromPruneBackups = command(func(o *options, b *Backups) {
		b.addRows(o)
		number(o.transfer(), &b.Keep, "keep", 0, 1, 1<<20, "number of backups to keep, the newest")
	})
)

// addNamed adds DEST and the name of a backup there.
func (b *Backups) addNamed(o *options) {
	b.addRows(o)
	o.transfer().text(&b.Backup, "backup", "", "`NAME` of the backup (default: the newest)")
}

// addRows adds DEST, which may stand before the flags.
func (b *Backups) addRows(o *options) {
	o.configFile()
	o.check(func(c *cli.Context) error {
		if b.Place = c.Args().First(); b.Place == "" || c.NArg()%2 == 0 {
			return errors.New("name one directory or s3://BUCKET/PREFIX with backups")
		}
		for rest := c.Args().Tail(); len(rest) > 0; rest = rest[2:] {
			if err := c.Set(strings.TrimLeft(rest[0], "-"), rest[1]); err != nil {
				return err
			}
		}
		return nil
	})
}
