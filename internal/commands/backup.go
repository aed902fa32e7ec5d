package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"

	"github.com/quern/quern/internal/app/terminal"
	"github.com/quern/quern/internal/client"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/operate/backup"
	"github.com/quern/quern/internal/wire"
)

// CreateBackup has a server make a backup.
func CreateBackup(ctx context.Context, cfg config.CreateBackup, stdout, stderr io.Writer) error {
	body, err := ask(ctx, &cfg.Connection, stderr, wire.BackupPath, url.Values{"rate": {strconv.Itoa(cfg.Rate)}})
	if err != nil {
		return stopped(ctx, err, "stopped, and so is the backup")
	}
	defer body.Close()
	bar, last := bar{out: stderr}, wire.Backup{}
	err = client.Lines(body, func(l *wire.Backup) error {
		if last = *l; l.Status == wire.Failure {
			return errors.New(l.Error)
		}
		bar.at(int64(l.Done), int64(l.Total), "Backing up files")
		return nil
	})
	bar.end()
	if err == nil && last.Status != wire.Success {
		err = errors.New("the server's answer ended early, and the backup with it")
	}
	if err == nil {
		fmt.Fprintf(terminal.Plain(stdout), "%s: %s, %d sent\n", last.Name, count(last.Bytes, "byte", "bytes"), last.Sent)
	}
	return stopped(ctx, err, "stopped, and so is the backup")
}

// ListBackups prints the backups at a place.
func ListBackups(ctx context.Context, cfg config.Backups, stdout, _ io.Writer) error {
	place, err := backup.Open(cfg.Place)
	if err != nil {
		return err
	}
	names, err := place.Names(ctx)
	w := table(stdout, "BACKUP\tBYTES")
	for _, name := range names {
		m, rerr := place.Read(ctx, name)
		fmt.Fprintf(w, "%s\t%d\n", name, m.Bytes)
		err = errors.Join(err, rerr)
	}
	return errors.Join(err, w.Flush())
}

// ReadBackup checks a backup: the one that cfg names, or the newest. With a directory it restores it.
func ReadBackup(ctx context.Context, cfg config.Backups, stdout, stderr io.Writer) error {
	place, err := backup.Open(cfg.Place)
	if err != nil {
		return err
	}
	if cfg.Backup == "" {
		names, err := place.Names(ctx)
		if err != nil || len(names) == 0 {
			return cmp.Or(err, fmt.Errorf("there is no backup at %s", cfg.Place))
		}
		cfg.Backup = names[len(names)-1]
	}
	m, err := place.Read(ctx, cfg.Backup)
	if err != nil {
		return err
	}
	bar, done := bar{out: stderr}, "is whole"
	progress := func(done, total int) { bar.at(int64(done), int64(total), "Reading files") }
	if cfg.To == "" {
		err = place.Verify(ctx, m, progress)
	} else {
		done, err = "was restored to "+cfg.To, place.Restore(ctx, m, cfg.To, progress)
	}
	bar.end()
	if err == nil {
		fmt.Fprintln(stdout, cfg.Backup, done)
	}
	return stopped(ctx, err, "stopped before the end of the backup")
}

// PruneBackups removes old backups.
func PruneBackups(ctx context.Context, cfg config.Backups, stdout, _ io.Writer) error {
	place, err := backup.Open(cfg.Place)
	if err != nil {
		return err
	}
	removed, err := place.Prune(ctx, cfg.Keep)
	if err == nil {
		fmt.Fprintln(stdout, count(int64(len(removed)), "backup", "backups"), "removed")
	}
	return err
}
