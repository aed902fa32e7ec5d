package cassandra

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/schema"
)

const (
	cqlReadSetting = `SELECT value FROM settings WHERE name = ?`
	cqlAddSetting  = `INSERT INTO settings (name, value) VALUES (?, ?) IF NOT EXISTS`
	cqlSwapSetting = `UPDATE settings SET value = ? WHERE name = ? IF value = ?`

	// cqlServerSetting reads what cassandra.yaml sets.
	cqlServerSetting = `SELECT value FROM system_views.settings WHERE name = ?`
)

// The rows of the table settings.
const (
	settingVersion = "schema_version"
	settingStore   = "store"
	settingNextID  = "next_schedule_id"
	settingHome    = "home_data_center"
)

// record is the setting "store": what all processes of the store agree on. It is JSON, which any
// tool can show.
type record struct {
	Ladder          string           `json:"ladder"`
	GroupSize       int              `json:"group_size"`
	IndexPartitions int              `json:"index_partitions"`
	Epochs          blocks.Epochs    `json:"epochs"`
	Policies        storage.Policies `json:"policies,omitempty"` // none before a process has opened the store

	ladder metric.Ladder
	text   string // as stored
}

// readSetting returns the value of a setting, "" if there is none.
func readSetting(ctx context.Context, s session, name string) (string, error) {
	return textOf(ctx, s, name, stmt(cqlReadSetting, name))
}

func textOf(ctx context.Context, s session, name string, st statement) (string, error) {
	found, err := all[struct {
		Value string `db:"value"`
	}](ctx, s, st)
	if err != nil {
		return "", fmt.Errorf("read setting %s: %w", name, err)
	}
	if len(found) == 0 {
		return "", nil
	}
	return found[0].Value, nil
}

// swapSetting replaces the value old of a setting; "" stands for none. It says whether old was the
// value that was there.
func swapSetting(ctx context.Context, s session, name, old, value string) (bool, error) {
	ok, err := s.cas(ctx, swap(name, old, value))
	if err != nil {
		return false, fmt.Errorf("write setting %s: %w", name, err)
	}
	return ok, nil
}

func swap(name, old, value string) statement {
	if old == "" {
		return stmt(cqlAddSetting, name, value)
	}
	return stmt(cqlSwapSetting, value, name, old)
}

// readRecord returns the record as the last change has left it, even one with unknown outcome: that
// may be accepted, and not yet visible to other reads.
func readRecord(ctx context.Context, s session) (*record, error) {
	st := stmt(cqlReadSetting, settingStore)
	st.serial = true
	text, err := textOf(ctx, s, settingStore, st)
	if err != nil {
		return nil, err
	}
	return decodeRecord(text)
}

func decodeRecord(text string) (*record, error) {
	r := &record{text: text}
	err := json.Unmarshal([]byte(text), r)
	if err == nil {
		r.ladder, err = metric.ParseLadder(r.Ladder)
	}
	if err == nil && len(r.Epochs) == 0 {
		err = errors.New("it has no epochs")
	}
	var epochs blocks.Epochs
	for i := 0; err == nil && i < len(r.Epochs); i++ {
		epochs, err = epochs.Add(r.Epochs[i])
	}
	if err != nil {
		return nil, fmt.Errorf("%w: setting %s %q: %w", storage.ErrCorrupt, settingStore, text, err)
	}
	return r, nil
}

// write stores the record. It returns ErrConflict if another process has changed what was read.
func (r *record) write(ctx context.Context, s session) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	ok, err := swapSetting(ctx, s, settingStore, r.text, string(text))
	if err == nil && !ok {
		err = errChanged
	}
	return err
}

var errChanged = fmt.Errorf("another process has changed it: %w", storage.ErrConflict)

func (r *record) settings() storage.Settings {
	return storage.Settings{Ladder: r.ladder, GroupSize: r.GroupSize, IndexPartitions: r.IndexPartitions, Epochs: r.Epochs}
}

// withPolicy returns the record, with the policy of this process if nobody has recorded one.
func (r *record) withPolicy(ctx context.Context, s session, opts *Options) (*record, error) {
	for len(r.Policies) == 0 && opts.Policy != nil {
		first, err := opts.Policy(r.ladder)
		if err != nil {
			return nil, err
		}
		r.Policies = r.Policies.Set(first, 0)
		if err := r.write(ctx, s); err == nil || !errors.Is(err, storage.ErrConflict) {
			return r, err
		}
		if r, err = readRecord(ctx, s); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// SetPolicy implements storage.Store. Rows keep the TTL that they were written with, so earlier
// policies stay recorded.
func (s *Store) SetPolicy(ctx context.Context, p storage.Policy) error {
	const op = "set policy"
	if err := checkRetention(ctx, s.session, p.Retention, s.clk.Now()); err != nil {
		return named(op, err)
	}
	r, err := readRecord(ctx, s.session)
	if err != nil {
		return named(op, err)
	}
	known, none := s.policy(), storage.Policy{}
	switch {
	case len(r.Policies) == 0 && known.Equal(none):
		r.Policies = r.Policies.Set(p, 0)
	case len(r.Policies) > 0 && r.Policies.Now().Equal(known):
		r.Policies = r.Policies.Set(p, s.clk.Now().UnixMilli())
	default:
		return named(op, errChanged)
	}
	if err := r.write(ctx, s.session); err != nil {
		return named(op, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.policies = r.Policies
	return nil
}

// checkPolicy returns an error if the store's policy is no longer the one that this process uses.
// Processes with different policies would acknowledge data into slices that others have completed.
func (s *Store) checkPolicy(ctx context.Context) error {
	text, err := readSetting(ctx, s.session, settingStore)
	if err != nil {
		return err
	}
	r, err := decodeRecord(text)
	if err != nil || len(r.Policies) == 0 { // nobody has recorded one, and this process does not
		return err
	}
	var changed []string
	for _, d := range s.policy().Differences(r.Policies.Now(), s.ladder) {
		changed = append(changed, fmt.Sprintf("--%s from %s to %s", d[0].Flag, d[0].Text, d[1].Text))
	}
	if len(changed) == 0 {
		return nil
	}
	return refuse("the settings of the store were changed while this process ran, %s: restart the process", strings.Join(changed, ", "))
}

func (s *Store) history() storage.Policies {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.policies
}

func (s *Store) policy() storage.Policy { return s.history().Now() }

// WholeFrom implements storage.Store.
func (s *Store) WholeFrom(b metric.Bucket, nowMs int64) int64 { return s.history().WholeFrom(b, nowMs) }

// recordSettings records the settings of a new store. Settings that are recorded already must be
// the same.
func recordSettings(ctx context.Context, s session, opts *Options, localDC string) (storage.Settings, error) {
	if _, err := swapSetting(ctx, s, settingHome, "", localDC); err != nil {
		return storage.Settings{}, err
	}
	if err := checkHome(ctx, s, opts.Keyspace, localDC); err != nil {
		return storage.Settings{}, err
	}
	first := opts.Settings.OrNew()
	made := &record{Ladder: first.Ladder.String(), GroupSize: first.GroupSize, IndexPartitions: first.IndexPartitions, Epochs: first.Epochs}
	if err := made.write(ctx, s); err != nil && !errors.Is(err, storage.ErrConflict) {
		return storage.Settings{}, err
	}
	r, err := readRecord(ctx, s)
	if err != nil {
		return storage.Settings{}, err
	}
	recorded := r.settings()
	return recorded, checkSettings(&recorded, &opts.Settings, opts.Keyspace)
}

// checkHome refuses a process in another data centre than the one where the schema was first
// applied. Conditional writes are decided within one data centre (LOCAL_SERIAL). Two would hand out
// the same ids and leases twice.
func checkHome(ctx context.Context, s session, keyspace, localDC string) error {
	home, err := readSetting(ctx, s, settingHome)
	if err != nil || home == localDC {
		return err
	}
	return refuse("ids and leases of keyspace %q are assigned in data centre %s, but this process is in %s: "+
		"give --local-dc %s, or name another --keyspace", keyspace, home, localDC, home)
}

// warnOfOneCopy warns if each row has a single copy in the local data centre, which may lose what it
// has acknowledged.
func warnOfOneCopy(ctx context.Context, s session, opts *Options, localDC string) error {
	byDC, err := keyspaceCopies(ctx, s, opts.Keyspace)
	if err != nil {
		return err
	}
	if cmp.Or(byDC[localDC], byDC["replication_factor"]) != "1" {
		return nil
	}
	synced, err := textOf(ctx, s, "commitlog_sync", stmt(cqlServerSetting, "commitlog_sync"))
	if err == nil && synced == "periodic" {
		opts.Logger.Warn("there is only one copy of each row, and the servers acknowledge it before it is on disk: a server that is killed or loses power "+
			"loses the last seconds of acknowledged writes; set commitlog_sync: batch or group in cassandra.yaml, or use three copies",
			"keyspace", opts.Keyspace)
	}
	return err
}

// lastExpiry is the latest expiry time on servers that keep to the formats of Cassandra 4.
var lastExpiry = time.Unix(math.MaxInt32-1, 0)

// checkRetention refuses a retention that would have rows expire later than the servers can store:
// each write of such a row would fail.
func checkRetention(ctx context.Context, s session, retention storage.Retention, now time.Time) error {
	longest := slices.Max(append(storage.Retention{0}, retention...))
	if !now.Add(longest).After(lastExpiry) {
		return nil
	}
	mode, err := textOf(ctx, s, "storage_compatibility_mode", stmt(cqlServerSetting, "storage_compatibility_mode"))
	if err != nil || !strings.HasPrefix(mode, "CASSANDRA_") {
		return err
	}
	return refuse("with storage_compatibility_mode %s in cassandra.yaml, the servers support no time after %s, but --retention reaches %d days ahead: "+
		"shorten it, or keep data for ever with 0, or set the mode to NONE on every server",
		mode, lastExpiry.UTC().Format(time.DateOnly), longest/day)
}

// checkSettings compares the fields of want that are not zero with what is recorded. Another block
// size is no difference: an epoch changes it.
func checkSettings(recorded, want *storage.Settings, keyspace string) error {
	differs := func(what string, recorded, want any) error {
		return refuse("keyspace %q was created with %s %v, not the requested %v: leave the option out, or name another --keyspace",
			keyspace, what, recorded, want)
	}
	switch {
	case want.Ladder.Top() > 0 && !want.Ladder.Equal(recorded.Ladder):
		return differs("--rollups", recorded.Ladder, want.Ladder)
	case want.GroupSize > 0 && want.GroupSize != recorded.GroupSize:
		return differs("--group-size", recorded.GroupSize, want.GroupSize)
	case want.IndexPartitions > 0 && want.IndexPartitions != recorded.IndexPartitions:
		return differs("--index-partitions", recorded.IndexPartitions, want.IndexPartitions)
	}
	return nil
}

// schemaVersion returns the last migration that is complete, 0 for none.
func schemaVersion(ctx context.Context, s session) (int, error) {
	text, err := readSetting(ctx, s, settingVersion)
	if err != nil || text == "" {
		return 0, err
	}
	version, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("%w: setting %s %q", storage.ErrCorrupt, settingVersion, text)
	}
	return version, nil
}

func checkVersion(ctx context.Context, s session, opts *Options) error {
	migrations, err := schema.Migrations()
	if err != nil {
		return err
	}
	version, err := schemaVersion(ctx, s)
	switch known := len(migrations); {
	case isMissingTable(err), err == nil && version == 0:
		return noSchema(opts)
	case err != nil:
		return err
	case version < known:
		return refuse("the schema in keyspace %q has version %d, this program needs %d: run `quern schema apply --keyspace %s`",
			opts.Keyspace, version, known, opts.Keyspace)
	case version > known:
		return refuse("the schema in keyspace %q has version %d, this program knows %d: use a newer program",
			opts.Keyspace, version, known)
	}
	return nil
}

// Settings implements storage.Store.
func (s *Store) Settings() storage.Settings {
	s.mu.Lock()
	defer s.mu.Unlock()
	return storage.Settings{
		Ladder: s.ladder, GroupSize: s.groupSize, IndexPartitions: s.shards,
		Epochs: slices.Clone(s.epochs), Policy: s.policies.Now(),
	}
}

// AddEpoch implements storage.Store. Adding the last epoch once more changes nothing.
func (s *Store) AddEpoch(ctx context.Context, e blocks.Epoch) error {
	const op = "add epoch"
	known := s.Settings().Epochs
	r, err := readRecord(ctx, s.session)
	if err != nil {
		return named(op, err)
	}
	s.setEpochs(r.Epochs)
	if r.Epochs[len(r.Epochs)-1] == e {
		return nil
	}
	if !slices.Equal(known, r.Epochs) {
		return named(op, errChanged)
	}
	r.Epochs, err = r.Epochs.Add(e)
	if errors.Is(err, blocks.ErrEpochTooSoon) {
		return fmt.Errorf("%s: %w: %w", op, storage.ErrConflict, err)
	}
	if err == nil {
		err = storage.CheckUnused(ctx, s, s.ladder, e)
	}
	if err == nil {
		err = r.write(ctx, s.session)
	}
	if err != nil {
		return named(op, err)
	}
	s.setEpochs(r.Epochs)
	return nil
}

func (s *Store) setEpochs(e blocks.Epochs) {
	now := clock.Read(s.clk)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epochs, s.epochsRead = e, now
}

// refreshEpochs reads the epochs again if the last read was half a slice ago or more, and says
// whether they have changed. A new epoch takes effect a slice or more after it was added, so a
// process that reads twice per slice knows of it in time.
func (s *Store) refreshEpochs(ctx context.Context) (changed bool, err error) {
	s.mu.Lock()
	age := s.epochsRead.Since(s.clk).Milliseconds()
	known := s.epochs
	s.mu.Unlock()
	if age < s.ladder.WidthMs(metric.Raw+1)/2 {
		return false, nil
	}
	r, err := readRecord(ctx, s.session)
	if err != nil {
		return false, err
	}
	s.setEpochs(r.Epochs)
	return !slices.Equal(known, r.Epochs), nil
}
