package spool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	checkpointName = "checkpoint"
	nextSuffix     = ".next"
	// maxCheckpoint bounds the file, where it is written and where it is read.
	maxCheckpoint = 16 << 20
	// format is that of the spool and of what its chunks hold.
	format = 2
)

// checkpoint is what was acknowledged. Its file is a line of JSON and a line with the checksum of that.
type checkpoint struct {
	Format   int              `json:"format"`
	Position Position         `json:"position"` // of the first chunk that is not acknowledged
	Running  time.Duration    `json:"running"`  // ns
	Newest   uint64           `json:"newest"`   // generation
	Streams  map[string]Point `json:"streams"`
}

// loadCheckpoint reads the checkpoint of a spool, an empty one if it has none.
func loadCheckpoint(files vfs.FS, dir string) (c checkpoint, err error) {
	path := files.PathJoin(dir, checkpointName)
	f, err := files.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return checkpoint{Format: format, Streams: map[string]Point{}}, nil
	}
	if err != nil {
		return c, err
	}
	content, err := io.ReadAll(io.LimitReader(f, maxCheckpoint+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return c, err
	}
	line, sum, _ := bytes.Cut(content, []byte("\n"))
	if string(sum) != checksum(line) {
		err = errors.New("its checksum is wrong")
	} else if err = json.Unmarshal(line, &c); err == nil && c.Format != format {
		return c, fmt.Errorf("%s has format %d, and this version has format %d: let the version that wrote it send what is in the spool, "+
			"then remove the directory", path, c.Format, format)
	}
	if err != nil {
		return c, fmt.Errorf("%s is damaged: %w: remove it, and what is in the spool is sent again", path, err)
	}
	return c, nil
}

// save replaces the checkpoint of a spool. When it returns, the new one is on the disk.
func (c *checkpoint) save(files vfs.FS, dir string) error {
	line, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if len(line) > maxCheckpoint/2 {
		return fmt.Errorf("the checkpoint has %d bytes, more than %d: too many streams", len(line), maxCheckpoint/2)
	}
	next := files.PathJoin(dir, checkpointName+nextSuffix)
	f, err := files.Create(next, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(append(append(line, '\n'), checksum(line)...))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := files.Rename(next, files.PathJoin(dir, checkpointName)); err != nil {
		return err
	}
	return syncDir(files, dir)
}

func checksum(line []byte) string {
	return fmt.Sprintf("%08x\n", crc32.Checksum(line, castagnoli))
}

// syncDir puts the names in a directory on the disk.
func syncDir(files vfs.FS, dir string) error {
	d, err := files.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
