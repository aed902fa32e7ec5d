package adaptor

import (
	"bytes"
	"maps"

	"github.com/quern/quern/internal/agent/format"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

// Lines are the settings of an adaptor that reads lines.
type Lines struct {
	// Source is the name of what the lines are about. The default is the agent's.
	Source         string `yaml:"source"`
	format.Options `yaml:",inline"`

	parsed *format.Format
}

func (l *Lines) checkLines() (err error) {
	o := l.Options
	o.Labels = l.allLabels()
	l.parsed, err = format.New(o)
	return err
}

// allLabels returns the labels with the source.
func (l *Lines) allLabels() map[string]string {
	if l.Source == "" {
		return l.Labels
	}
	all := map[string]string{metric.SourceLabel: l.Source}
	maps.Copy(all, l.Labels)
	return all
}

// decode adds the samples of lines, which begin at an offset of a stream, to a batch. It tells the output of those that cannot be
// read. nowMs is the time of those that have none.
func (l *Lines) decode(out *Output, stream string, offset uint64, lines []byte, nowMs int64, b *ingest.Batch, args ...any) {
	bad := offset // that of the first line that cannot be read
	for line := range bytes.Lines(lines) {
		if b.Rejected() == 0 {
			bad = offset
		}
		l.parsed.Line(bytes.TrimSuffix(line, []byte("\n")), nowMs, b)
		offset += uint64(len(line))
	}
	l.parsed.Flush(b)
	out.rejected(stream, bad, b, args...)
}

// rejected tells of the lines of a batch that cannot be read. offset is that of the first.
func (o *Output) rejected(stream string, offset uint64, b *ingest.Batch, args ...any) {
	if n := b.Rejected(); n > 0 {
		args = append(args, "lines", n, "offset", offset, "err", b.Result(ingest.Result{}).Rejected[0].Message)
		o.Warn("some lines cannot be read", stream, args...)
	}
}
