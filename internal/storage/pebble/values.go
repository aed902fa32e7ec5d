package pebble

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Every value except a chunk starts with its version; docs/format/pebble.md has the bytes.
const (
	rollupVersion   = 1
	markVersion     = 1
	documentVersion = 1
	itemVersion     = 1
	schemaVersion   = 4
)

var errValue = errors.New("value is too short or too long")

func appendRollup(b []byte, r *metric.RollupRow) []byte {
	return blocks.AppendRollup(append(b, rollupVersion), r)
}

// parseRollup decodes what appendRollup wrote of a row of this time. The sketch aliases b.
func parseRollup(b []byte, timeMs int64) (metric.Rollup, error) {
	if err := checkVersion(b, rollupVersion, 1); err != nil {
		return metric.Rollup{}, fmt.Errorf("roll-up: %w", err)
	}
	r, err := blocks.ParseRollup(b[1:], timeMs)
	if err != nil {
		return metric.Rollup{}, fmt.Errorf("roll-up: %w: %w", storage.ErrCorrupt, err)
	}
	return r, nil
}

// appendMark appends the part of a mark that is not in its key: version, kind, due time, chunks,
// attempt, last error, and the schedules, if the mark names any.
func appendMark(b []byte, m *storage.Mark) []byte {
	b = append(b, markVersion, byte(m.Kind))
	b = binary.BigEndian.AppendUint64(b, uint64(m.DueMs))
	b = binary.AppendUvarint(b, uint64(m.Chunks))
	b = binary.AppendUvarint(b, uint64(m.Attempt))
	b = binary.AppendUvarint(b, uint64(len(m.LastError)))
	b = append(b, m.LastError...)
	if len(m.Schedules) == 0 {
		return b
	}
	return blocks.AppendIDs(b, m.Schedules)
}

// parseMark decodes what appendMark wrote into m. The caller has set m's key.
func parseMark(b []byte, m *storage.Mark) error {
	if err := checkVersion(b, markVersion, 10); err != nil {
		return fmt.Errorf("mark: %w", err)
	}
	m.Kind = storage.MarkKind(b[1])
	m.DueMs = int64(binary.BigEndian.Uint64(b[2:]))
	r := varints{rest: b[10:]}
	m.Chunks = int(r.uint())
	m.Attempt = int(r.uint())
	m.LastError = string(r.take(r.uint()))
	if r.bad || m.Kind > storage.MarkTakeBack {
		return fmt.Errorf("mark: %w: %w", storage.ErrCorrupt, errValue)
	}
	if len(r.rest) == 0 {
		return nil
	}
	var err error
	if m.Schedules, err = blocks.DecodeIDs(r.rest); err != nil {
		return fmt.Errorf("mark: %w", err)
	}
	return nil
}

func checkVersion(b []byte, version byte, minBytes int) error {
	if len(b) < minBytes {
		return fmt.Errorf("%w: %w", storage.ErrCorrupt, errValue)
	}
	if b[0] != version {
		return fmt.Errorf("%w: value has version %d, this program knows %d", storage.ErrCorrupt, b[0], version)
	}
	return nil
}

// varints decodes a sequence of varints. After the first incomplete one, bad is set and all further
// values are 0.
type varints struct {
	rest []byte
	bad  bool
}

func (r *varints) uint() uint64 {
	x, n := binary.Uvarint(r.rest)
	if r.bad || n <= 0 {
		r.bad = true
		return 0
	}
	r.rest = r.rest[n:]
	return x
}

func (r *varints) take(n uint64) []byte {
	if r.bad || n > uint64(len(r.rest)) {
		r.bad = true
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

// settingsValue is how settings are stored. As what only operators read, that is JSON, which any tool can show.
type settingsValue struct {
	Schema          int            `json:"schema"`
	Version         string         `json:"version,omitempty"` // of the program that last opened the store
	Ladder          string         `json:"ladder"`
	GroupSize       int            `json:"group_size"`
	IndexPartitions int            `json:"index_partitions"`
	Epochs          blocks.Epochs  `json:"epochs"`
	Policy          storage.Policy `json:"policy"`
}

func encodeSettings(s *storage.Settings, version string) ([]byte, error) {
	return json.Marshal(settingsValue{
		Schema: schemaVersion, Version: version, Ladder: s.Ladder.String(), GroupSize: s.GroupSize, IndexPartitions: s.IndexPartitions,
		Epochs: s.Epochs, Policy: s.Policy,
	})
}

// decodeSettings also returns the version of the program that last opened the store.
func decodeSettings(b []byte) (s storage.Settings, version string, err error) {
	v, err := decodeJSON[settingsValue]("settings", b)
	if err != nil {
		return s, "", err
	}
	if v.Schema != schemaVersion {
		return s, "", fmt.Errorf("%w: the store has schema version %d, this program knows %d: serve it with Quern %s, "+
			"or copy its data to a new store (docs/backup.md, moving data)", storage.ErrSettings, v.Schema, schemaVersion, cmp.Or(v.Version, "of an unknown version"))
	}
	s = storage.Settings{GroupSize: v.GroupSize, IndexPartitions: v.IndexPartitions, Epochs: v.Epochs, Policy: v.Policy}
	if s.Ladder, err = metric.ParseLadder(v.Ladder); err != nil {
		return s, "", fmt.Errorf("%w: recorded settings: %w", storage.ErrCorrupt, err)
	}
	if err := validateSettings(&s); err != nil {
		return s, "", fmt.Errorf("%w: recorded %w", storage.ErrCorrupt, err)
	}
	return s, v.Version, nil
}

func decodeJSON[T any](what string, b []byte) (T, error) {
	var v T
	if err := json.Unmarshal(b, &v); err != nil {
		return v, fmt.Errorf("%w: %s: %w", storage.ErrCorrupt, what, err)
	}
	return v, nil
}
