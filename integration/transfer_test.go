package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/faults"
	"github.com/quern/quern/integration/process"
)

// TestTransfer moves a demo to another store. The export, the import and the importing server are
// killed at points that follow from the seed. The other store must have the same samples, each
// once.
func TestTransfer(t *testing.T) {
	t.Parallel()
	from := serve(t, t.TempDir(), "--demo")
	end := time.Now().UTC().Truncate(time.Minute)
	// The rest of the demo's day stays where it is.
	const hours = 8
	asked := []string{"--start", end.Add(-hours * time.Hour).Format(time.RFC3339), "--end", end.Format(time.RFC3339), "--part", "1h"}
	for i, c := range []struct {
		name  string
		match []string
	}{
		{"all.ndjson.zst", nil},
		{"some.ndjson.gz", []string{"--match", "cpu_usage_ratio", "--match", `{__name__!="",source=~".*1"}`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(*faults.Seed, uint64(i)))
			t.Logf("-faults.seed=%d", *faults.Seed)
			file := filepath.Join(t.TempDir(), c.name)
			asked := append(slices.Clone(asked), c.match...)

			source := newGate(t, from)
			export := func() *process.Process {
				return start(t, append([]string{"export", "--url", source.URL, "--output", file}, asked...)...)
			}
			point := end.Add(-time.Duration(1+rng.IntN(hours-1)) * time.Hour).UnixMilli()
			held := source.hold(rng.Int64N(256<<10), reached(t, file+".quern-export", "next_ms", point))
			x := export()
			held.await(t, x)
			x.Kill()
			x = export()
			require.Equal(t, 0, x.ExitCode(), x.Stderr.String())
			summary := regexp.MustCompile(`^(\d+) samples from \S+Z to \S+Z, \d+ bytes\n$`).FindStringSubmatch(x.Stdout.String())
			require.NotNil(t, summary, x.Stdout.String())
			require.NoFileExists(t, file+".quern-export")
			want := readExport(t, file)
			bytes := int64(0)
			for _, line := range want {
				bytes += int64(len(line)) + 1
			}

			dir := t.TempDir()
			to := serve(t, dir)
			target := newGate(t, to)
			// A request holds a second's samples: at this rate there are about ten requests.
			samples, err := strconv.Atoi(summary[1])
			require.NoError(t, err)
			state := file + ".quern-import"
			// begin returns when the import waits for a response, with at least the given share of
			// the file done, or a little more.
			begin := func(share float64) (*process.Process, *hold) {
				held := target.hold(0, reached(t, state, "bytes", int64((share+0.2*rng.Float64())*float64(bytes))))
				im := start(t, "import", "--url", target.URL, "--rate", strconv.Itoa(samples/10), file)
				held.await(t, im)
				return im, held
			}
			im, _ := begin(0.1)
			im.Kill()
			im, held = begin(0.35)
			im.Signal(syscall.SIGINT)
			held.goOn()
			require.Equal(t, 1, im.ExitCode())
			require.Regexp(t, `stopped after line \d+ of .*: run the same command to continue`, im.Stderr.String())
			im, held = begin(0.6)
			to.Kill()
			held.goOn()
			to = serve(t, dir)
			target.leadTo(t, to)
			require.Equal(t, 0, im.ExitCode(), im.Stderr.String())
			assert.Equal(t, fmt.Sprintf("%s samples accepted, 0 rejected; %d lines, 0 malformed\n", summary[1], len(want)), im.Stdout.String())
			assert.NoFileExists(t, state)

			back := start(t, append([]string{"export", "--url", to.URL}, asked...)...)
			require.Equal(t, 0, back.ExitCode(), back.Stderr.String())
			assert.Contains(t, back.Stderr.String(), summary[1]+" samples from ")
			got := strings.Split(strings.TrimSuffix(back.Stdout.String(), "\n"), "\n")
			slices.Sort(got)
			require.Len(t, got, len(want))
			for i := range want {
				require.Equal(t, want[i], got[i])
			}
			to.Stop()
		})
	}
}

// reached returns a function that reports whether a number in a state has reached a value.
func reached(t *testing.T, path, field string, least int64) func() bool {
	return func() bool {
		text, err := os.ReadFile(path)
		assert.NoError(t, err)
		var state map[string]any
		assert.NoError(t, json.Unmarshal(text, &state), "a state is always whole")
		n, ok := state[field].(float64)
		assert.True(t, ok, "%s", text)
		return int64(n) >= least
	}
}

// readExport returns the lines of a file, sorted.
func readExport(t *testing.T, path string) []string {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	var in io.Reader
	if strings.HasSuffix(path, ".gz") {
		in, err = gzip.NewReader(f)
		require.NoError(t, err)
	} else {
		z, err := zstd.NewReader(f)
		require.NoError(t, err)
		defer z.Close()
		in = z
	}
	text, err := io.ReadAll(in)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	slices.Sort(lines)
	return lines
}
