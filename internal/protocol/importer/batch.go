package importer

import (
	"errors"
	"fmt"
	"strings"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/protocol/jsonscan"
	"github.com/quern/quern/internal/protocol/push"
	"github.com/quern/quern/internal/wire"
)

// samples adds the samples of the line to the batch. It flushes the batch whenever it is large enough.
func (im *importing) samples() error {
	l := &im.line
	values := line{Scanner: jsonscan.Scanner{Text: l.Text, Pos: l.valuesAt + 1}}
	times := line{Scanner: jsonscan.Scanner{Text: l.Text, Pos: l.timesAt + 1}}
	for i := range l.n {
		full := im.batch.Len() == batchSamples || i == 0 && im.batch.Allowance.Used() > batchDecoded
		if full {
			if err := im.flush(); err != nil {
				return err
			}
		}
		if full || i == 0 {
			im.series()
		}
		_, _ = values.Element(i == 0)
		v, _ := values.value()
		_, _ = times.Element(i == 0)
		ms, _ := times.timeMs()
		im.batch.Add(ms, v)
		im.lines = append(im.lines, im.number)
	}
	return nil
}

// series begins the series of the line in the batch, with copies of its strings: the batch outlives the line.
func (im *importing) series() {
	owned := func(s string) string { return im.batch.Copy([]byte(s)) }
	im.labels = im.labels[:0]
	for _, lb := range im.line.labels {
		im.labels = im.batch.Label(im.labels, owned(lb.Name), owned(lb.Value))
	}
	im.batch.Series(owned(im.line.name), im.labels)
}

// flush makes the batches durable.
func (im *importing) flush() error {
	if im.batch.Len() > 0 {
		result, err := im.backFill()
		if err != nil {
			return err
		}
		im.h.Rejects(wire.ImportPath, im.batch.Rejected())
		result = im.batch.Result(result)
		im.reply.Accepted += int64(result.Accepted)
		for _, rej := range result.Rejected {
			im.reject(im.lines[rej.Index], rej)
		}
		im.batch.Reset()
		im.lines = im.lines[:0]
	}
	if err := im.flushRemarks(); err != nil {
		return err
	}
	im.reply.Lines = im.whole
	return nil
}

// backFill appends the batch. After part of a body has been accepted, it waits while the server is
// busy. The sender can wait, and otherwise would have to find out where to resume.
func (im *importing) backFill() (ingest.Result, error) {
	reports := im.batch.Reports()
	if len(reports) == 0 {
		return ingest.Result{}, nil
	}
	for try := 0; ; try++ {
		result, err := im.h.opts.To.BackFill(im.ctx, reports)
		if !errors.Is(err, ingest.ErrBusy) || im.reply.Accepted == 0 || try == busyTries {
			return result, err
		}
		if err := im.h.opts.Clock.Sleep(im.ctx, busyWait); err != nil {
			return result, err
		}
	}
}

// reject records a rejected sample.
func (im *importing) reject(line int, rej ingest.Rejection) {
	im.reply.RejectedTotal++
	all := &im.reply.Rejected
	// The rejections of a line are adjacent.
	for i := len(*all) - 1; i >= 0 && (*all)[i].Line == line; i-- {
		if r := &(*all)[i]; r.Reason == string(rej.Reason) {
			r.Samples++
			return
		}
	}
	if len(*all) < im.h.Limits.Rejections {
		*all = append(*all, wire.RejectedOfLine{Line: line, Reason: string(rej.Reason), Message: rej.Message, Samples: 1})
	}
}

// malformed records that the line cannot be decoded. Later lines still can.
func (im *importing) malformed() {
	im.reply.MalformedTotal++
	if l := &im.line; !l.Quiet {
		im.reply.Malformed = append(im.reply.Malformed, wire.MalformedLine{Line: im.number, Message: fmt.Sprintf("at byte %d: %s", l.At, l.Fault)})
		l.Quiet = len(im.reply.Malformed) >= im.h.Limits.Rejections
	}
}

// distrust drops all malformed lines, and counts lines as processed only up to the first of them.
// It is called when the body is broken, since the damage may have caused the malformed lines.
func (im *importing) distrust() {
	if len(im.reply.Malformed) > 0 {
		im.reply.Lines = im.reply.Malformed[0].Line - 1
	}
	im.reply.Malformed, im.reply.MalformedTotal = nil, 0
}

// complaint returns the error message for a body that was read to its end, "" for success.
func (im *importing) complaint() string {
	r := &im.reply
	switch {
	case r.MalformedTotal > 1:
		return fmt.Sprintf("line %d: %s; %d lines are malformed, the others were accepted", r.Malformed[0].Line, r.Malformed[0].Message, r.MalformedTotal)
	case r.MalformedTotal == 1:
		return fmt.Sprintf("line %d: %s", r.Malformed[0].Line, r.Malformed[0].Message)
	case r.Accepted == 0 && r.RejectedTotal > 0:
		var reasons strings.Builder
		for _, rej := range r.Rejected[:min(len(r.Rejected), push.NamedRejections)] {
			fmt.Fprintf(&reasons, "; line %d: %s (%s)", rej.Line, rej.Message, rej.Reason)
		}
		return fmt.Sprintf("all %d samples were rejected%s", r.RejectedTotal, reasons.String())
	}
	return ""
}
