package pebble

import (
	"context"
	"errors"

	lsm "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/uuid"
)

// checkpointName is the directory, within the store's own, that holds a checkpoint while it is copied.
const checkpointName = "checkpoint.tmp"

// Checkpoint makes a directory with all that was acknowledged before, in files that do not change. store identifies the
// store and those restored from its backups, schema is the version of what is stored. Tables are hard links, so the store
// frees no space until RemoveCheckpoint.
//
// All that counts is in tables: they are flushed first, and the copies of the logs are emptied. Pebble copies a log while
// it is written, and its file may have been another log before. So the copy may have old bytes between new ones, which a
// start takes for damage.
func (s *Store) Checkpoint(ctx context.Context) (dir, store string, schema int, err error) {
	dir = s.disk.base.PathJoin(s.dir, checkpointName)
	var id string
	// Once it is flushed, nothing is waited for that may take long.
	err = s.do(context.WithoutCancel(ctx), "checkpoint", func() (err error) {
		if err := errors.Join(s.disk.admit(0), s.RemoveCheckpoint()); err != nil {
			return err
		}
		if id, err = s.identity(); err != nil {
			return err
		}
		flushed, err := s.db.AsyncFlush()
		if err != nil {
			return err
		}
		select {
		case <-flushed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.disk.closing: // a full disk keeps a flush waiting
			return errClosed
		}
		if err := s.db.Checkpoint(dir); err != nil {
			return err
		}
		return s.emptyLogs(dir)
	})
	if err != nil {
		return "", "", 0, err
	}
	return dir, id, schemaVersion, nil
}

// RemoveCheckpoint removes the checkpoint, if there is one.
func (s *Store) RemoveCheckpoint() error {
	return s.disk.base.RemoveAll(s.disk.base.PathJoin(s.dir, checkpointName))
}

// emptyLogs empties the logs in dir. They stay, since a store without any log is refused.
func (s *Store) emptyLogs(dir string) error {
	names, err := s.disk.base.List(dir)
	for _, name := range names {
		if err == nil && isLog(name) {
			var f vfs.File
			if f, err = s.disk.base.Create(s.disk.base.PathJoin(dir, name), vfs.WriteCategoryUnspecified); err == nil {
				err = f.Close()
			}
		}
	}
	return err
}

// identity returns what identifies the store. The first checkpoint chooses it.
func (s *Store) identity() (string, error) {
	id, err := s.get(metaKey(metaIdentity))
	if err == nil && id == nil {
		id = []byte(uuid.NewString())
		err = s.db.Set(metaKey(metaIdentity), id, lsm.Sync)
	}
	return string(id), err
}
