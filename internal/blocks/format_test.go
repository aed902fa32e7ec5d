package blocks

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
)

// reader is a second, slow implementation of docs/format/chunk.md, written from the page and not
// from the codecs. It explains each byte for the golden files, and the fuzz tests compare the
// codecs with it.
type reader struct {
	b    []byte
	at   int
	text strings.Builder
}

type readerError string

// read runs f and returns false for a damaged field.
func (r *reader) read(f func()) (ok bool) {
	defer func() {
		if p := recover(); p != nil {
			if _, damaged := p.(readerError); !damaged {
				panic(p)
			}
			ok = false
		}
	}()
	f()
	return true
}

func (r *reader) need(ok bool, what string) {
	if !ok {
		panic(readerError(what))
	}
}

// field takes the next n bytes and writes them to the text, followed by the result of say.
func (r *reader) field(n int, say func(b []byte) string) {
	r.need(n >= 0 && n <= len(r.b)-r.at, "short")
	b := r.b[r.at : r.at+n]
	r.at += n
	if meaning := say(b); meaning != "" {
		fmt.Fprintf(&r.text, "%-24s %s\n", hex.EncodeToString(b), meaning)
	}
}

func (r *reader) uvarint(say string) uint64 {
	v, w := binary.Uvarint(r.b[r.at:])
	r.need(w > 0, "varint")
	r.field(w, func([]byte) string { return fmt.Sprintf("%s %d", say, v) })
	return v
}

func (r *reader) varint(say string) int64 {
	v, w := binary.Varint(r.b[r.at:])
	r.need(w > 0, "varint")
	r.field(w, func([]byte) string { return fmt.Sprintf("%s %d", say, v) })
	return v
}

func (r *reader) header(format byte) (count uint64) {
	r.field(1, func(b []byte) string {
		r.need(b[0] == format, "format")
		return fmt.Sprintf("format %d", format)
	})
	r.field(4, func(b []byte) string {
		sum := crc32.Checksum(r.b[5:], crc32.MakeTable(crc32.Castagnoli))
		r.need(binary.LittleEndian.Uint32(b) == sum, "checksum")
		return fmt.Sprintf("CRC-32C of what follows, %08x", sum)
	})
	count = r.uvarint("count")
	r.need(count <= uint64(len(r.b)-r.at), "count")
	return count
}

// value reads a value of the given kind. was is the value before it. mantissa is the previous
// mantissa, from which a decimal stores the difference.
func (r *reader) value(kind int, was float64, mantissa int64) (v float64, _ int64) {
	if kind <= 8 {
		r.field(kind, func(b []byte) string {
			var word uint64
			for i, c := range b {
				word |= uint64(c) << (8 * i)
			}
			v = math.Float64frombits(math.Float64bits(was) ^ word)
			if kind == 0 {
				return ""
			}
			return "value " + floatText(v) + ", by XOR"
		})
		return v, mantissa
	}
	d, w := binary.Varint(r.b[r.at:])
	r.need(w > 0 && w <= 8, "varint")
	mantissa += d
	v = float64(mantissa) / []float64{1, 10, 100, 1000, 10000, 100000, 1000000}[kind-9]
	r.field(w, func([]byte) string {
		return fmt.Sprintf("value %s, mantissa by %+d to %d", floatText(v), d, mantissa)
	})
	return v, mantissa
}

func (r *reader) samples() (out []metric.Sample) {
	count := r.header(1)
	r.need(count > 0, "empty")
	base := r.uvarint("base schedule")
	r.need(base <= math.MaxInt64, "schedule")
	baseMs := r.varint("base time")

	schedule, firstMs, timeMs, stepMs := int64(base)-1, baseMs, baseMs, int64(0)
	was, mantissa, places := 0.0, int64(0), 0
	for range count {
		var control int
		r.field(1, func(b []byte) string {
			control = int(b[0])
			return fmt.Sprintf("control: schedule %d, time %d, value %d", control>>6, control>>4&3, control&15)
		})
		same := control>>6 == 0
		before, beforeMs := schedule, timeMs
		switch control >> 6 {
		case 0:
		case 1:
			schedule++
		case 2:
			schedule += int64(r.uvarint("schedule by"))
		default:
			r.need(false, "schedule bits")
		}
		timeMs = firstMs
		if same {
			timeMs = beforeMs + stepMs
		}
		switch control >> 4 & 3 {
		case 0:
		case 1:
			timeMs += r.varint("time off the prediction by")
		default:
			r.need(false, "time bits")
		}
		if same {
			r.need(timeMs > beforeMs, "order")
			stepMs = timeMs - beforeMs
		} else {
			r.need(schedule > before, "order")
			firstMs, mantissa = timeMs, 0
		}
		kind := control & 15
		if kind > 8 && places != kind-9 {
			mantissa, places = 0, kind-9
		}
		was, mantissa = r.value(kind, was, mantissa)
		fmt.Fprintf(&r.text, "%24s = %s\n", "", sampleText(metric.Sample{Schedule: metric.ScheduleID(schedule), TimeMs: timeMs, Value: was}))
		out = append(out, metric.Sample{Schedule: metric.ScheduleID(schedule), TimeMs: timeMs, Value: was})
	}
	r.need(r.at == len(r.b), "rest")
	return out
}

func (r *reader) rollups() (out []metric.RollupRow) {
	count := r.header(2)
	r.need(count > 0, "empty")
	var schedule, timeMs int64
	for i := range count {
		before, beforeMs := schedule, timeMs
		schedule += int64(r.uvarint("schedule by"))
		timeMs += r.varint("time by")
		r.need(schedule > before || schedule == before && (i == 0 || timeMs > beforeMs), "order")
		row := metric.RollupRow{Schedule: metric.ScheduleID(schedule), TimeMs: timeMs}
		samples := r.uvarint("samples and flags")
		row.Partial, row.NonFinite = samples&1 != 0, samples&2 != 0
		if row.Count = samples >> 2; row.Count > 0 {
			row.FirstMs = timeMs + r.varint("first after")
			row.LastMs = row.FirstMs + r.varint("last after first")
		}
		var kinds []int
		r.field(3, func(b []byte) string {
			for _, c := range b {
				kinds = append(kinds, int(c&15), int(c>>4))
			}
			return fmt.Sprintf("value kinds %v", kinds)
		})
		was := 0.0
		for j, f := range []*float64{&row.Min, &row.Max, &row.First, &row.Last, &row.Sum, &row.Increase} {
			*f, _ = r.value(kinds[j], was, 0)
			was = *f
		}
		size := r.uvarint("bytes of sketch")
		r.need(size <= uint64(len(r.b)), "sketch")
		r.field(int(size), func(b []byte) string {
			if size == 0 {
				return ""
			}
			row.Sketch = b
			return "sketch"
		})
		fmt.Fprintf(&r.text, "%24s = %s\n", "", rollupText(row))
		out = append(out, row)
	}
	r.need(r.at == len(r.b), "rest")
	return out
}

func (r *reader) ids() (out []metric.ScheduleID) {
	count := r.header(3)
	var id int64
	for i := range count {
		before := id
		id += int64(r.uvarint("id by"))
		r.need(id > before || i == 0 && id == 0, "order")
		out = append(out, metric.ScheduleID(id))
	}
	r.need(r.at == len(r.b), "rest")
	return out
}

func floatText(v float64) string {
	if math.IsNaN(v) {
		return fmt.Sprintf("%#x", math.Float64bits(v))
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

func parseFloat(t *testing.T, s string) float64 {
	if strings.HasPrefix(s, "0x") {
		u, err := strconv.ParseUint(s[2:], 16, 64)
		require.NoError(t, err)
		return math.Float64frombits(u)
	}
	v, err := strconv.ParseFloat(s, 64)
	require.NoError(t, err)
	return v
}

func parseInt(t *testing.T, s string) int64 {
	v, err := strconv.ParseInt(s, 10, 64)
	require.NoError(t, err)
	return v
}

func sampleText(s metric.Sample) string {
	return fmt.Sprintf("%d %d %s", s.Schedule, s.TimeMs, floatText(s.Value))
}

func rollupText(r metric.RollupRow) string {
	out := fmt.Sprintf("%d %d %d", r.Schedule, r.TimeMs, r.Count)
	for _, v := range []float64{r.Sum, r.Min, r.Max, r.First, r.Last, r.Increase} {
		out += " " + floatText(v)
	}
	out += fmt.Sprintf(" %d %d %x", r.FirstMs, r.LastMs, r.Sketch)
	if r.Partial {
		out += " partial"
	}
	if r.NonFinite {
		out += " nonfinite"
	}
	return out
}

func parseSamples(t *testing.T, text string) (out []metric.Sample) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		require.Len(t, f, 3)
		out = append(out, metric.Sample{
			Schedule: metric.ScheduleID(parseInt(t, f[0])), TimeMs: parseInt(t, f[1]), Value: parseFloat(t, f[2]),
		})
	}
	return out
}

func parseRollups(t *testing.T, text string) (out []metric.RollupRow) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		require.GreaterOrEqual(t, len(f), 11)
		r := metric.RollupRow{Schedule: metric.ScheduleID(parseInt(t, f[0])), TimeMs: parseInt(t, f[1])}
		r.Count = uint64(parseInt(t, f[2]))
		for i, v := range []*float64{&r.Sum, &r.Min, &r.Max, &r.First, &r.Last, &r.Increase} {
			*v = parseFloat(t, f[3+i])
		}
		r.FirstMs, r.LastMs = parseInt(t, f[9]), parseInt(t, f[10])
		if r.NonFinite = f[len(f)-1] == "nonfinite"; r.NonFinite {
			f = f[:len(f)-1]
		}
		if r.Partial = f[len(f)-1] == "partial"; r.Partial {
			f = f[:len(f)-1]
		}
		if len(f) > 11 {
			var err error
			r.Sketch, err = hex.DecodeString(f[11])
			require.NoError(t, err)
		}
		out = append(out, r)
	}
	return out
}

// The golden files pin the bytes of each format: a change of the bytes breaks stored data. Their
// input is what was packed. Their output is the packed bytes, explained by the second
// implementation, and what it read back.
func TestGolden(t *testing.T) {
	for _, name := range []string{"samples", "rollups", "ids"} {
		datadriven.RunTest(t, "testdata/"+name+".golden", func(t *testing.T, d *datadriven.TestData) string {
			var r reader
			switch d.Cmd {
			case "samples":
				in := parseSamples(t, d.Input)
				r.b = AppendSamples(nil, in)
				requireSameSamples(t, in, r.samples())
				out, err := DecodeSamples(nil, r.b)
				require.NoError(t, err)
				requireSameSamples(t, in, out)
			case "rollups":
				in := parseRollups(t, d.Input)
				r.b = AppendRollups(nil, in)
				requireSameRollups(t, in, r.rollups())
				out, err := decodeRollups(nil, r.b)
				require.NoError(t, err)
				requireSameRollups(t, in, out)
			case "ids":
				var in []metric.ScheduleID
				for _, f := range strings.Fields(d.Input) {
					in = append(in, metric.ScheduleID(parseInt(t, f)))
				}
				r.b = AppendIDs(nil, in)
				require.Equal(t, in, r.ids())
				out, err := DecodeIDs(r.b)
				require.NoError(t, err)
				require.Equal(t, in, out)
			default:
				d.Fatalf(t, "no command %q", d.Cmd)
			}
			return fmt.Sprintf("%d bytes\n%s", len(r.b), r.text.String())
		})
	}
}

// The examples of the page come from the outputs of the golden files.
func TestFormatPageAgreesWithGolden(t *testing.T) {
	page, err := os.ReadFile("../../docs/format/chunk.md")
	require.NoError(t, err)
	var golden string
	for _, name := range []string{"samples", "rollups", "ids"} {
		b, err := os.ReadFile("testdata/" + name + ".golden")
		require.NoError(t, err)
		golden += string(b)
	}
	blocks := strings.Split(string(page), "```bytes\n")[1:]
	require.Len(t, blocks, 3)
	for _, block := range blocks {
		example, _, closed := strings.Cut(block, "```")
		require.True(t, closed)
		require.Contains(t, golden, example)
	}
}

func requireSameSamples(t *testing.T, want, got []metric.Sample) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		require.Equal(t, sampleText(want[i]), sampleText(got[i]), "sample %d", i)
		require.Equal(t, math.Float64bits(want[i].Value), math.Float64bits(got[i].Value), "sample %d", i)
	}
}

func requireSameRollups(t *testing.T, want, got []metric.RollupRow) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		// The text differs for any two different float64, NaN payloads and -0 included.
		require.Equal(t, rollupText(want[i]), rollupText(got[i]), "row %d", i)
	}
}
