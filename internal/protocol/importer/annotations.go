package importer

import (
	"context"

	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/protocol/annotations"
)

// remarks is the batch of annotations.
type remarks struct {
	drafts []annotations.Draft
	bytes  int // of their lines
	// checks are those of the batch, and parsed is what its selectors take. They need turns.
	checks *annotations.Checks
	parsed limits.Claim
	turn   func(context.Context) (give func(), err error)
}

// remark adds the annotation of the line to the batch, unless it cannot be stored. An import only adds.
func (im *importing) remark() error {
	l, r := &im.line, &im.remarks
	if im.h.opts.Annotations == nil {
		l.unfit("this server takes no annotations")
		im.malformed()
		return nil
	}
	if r.checks == nil {
		r.checks = annotations.NewChecks(r.turn)
	}
	why, err := r.checks.Check(limits.WithClaim(im.ctx, &r.parsed), &l.draft.Annotation)
	switch {
	case err != nil:
		return err
	case why != "":
		l.unfit(why)
		im.malformed()
		return nil
	}
	l.draft.Moved = false
	r.drafts = append(r.drafts, l.draft)
	if r.bytes += len(l.Text); len(r.drafts) < batchRemarks && r.bytes < batchDecoded {
		return nil
	}
	return im.flush()
}

// flushRemarks makes the annotations durable.
func (im *importing) flushRemarks() error {
	r := &im.remarks
	if len(r.drafts) > 0 {
		if err := im.h.opts.Annotations.Put(im.ctx, r.drafts); err != nil {
			return err
		}
		im.reply.Annotations += int64(len(r.drafts))
		r.drafts, r.bytes = nil, 0
	}
	r.parsed.Release()
	r.checks = nil // a body may go on for hours
	return nil
}
