package ingest

import (
	"context"
	"time"

	"github.com/quern/quern/internal/limits"
)

// outliveTime is how long work for a client goes on after it has disconnected.
const outliveTime = 10 * time.Second

// Outlive returns a context for work that must not stop half way when the client disconnects. It
// ends some seconds after ctx, which may be done already. The caller must call the function when
// the work is done.
func Outlive(ctx context.Context) (context.Context, context.CancelFunc) {
	lasting, end := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		late, cancel := context.WithTimeout(lasting, outliveTime)
		defer cancel()
		<-late.Done()
		end(context.Cause(ctx))
	})
	return lasting, func() {
		stop()
		end(context.Canceled)
	}
}

// hold is what an Append holds from when it registers its first series: a context that outlives the
// caller, and room in the queue. Series that are registered then get their samples, although the
// caller leaves or the queue fills up meanwhile.
type hold struct {
	in     *Ingest
	ctx    context.Context // the caller's own until begin
	client limits.Client
	// most is how many samples there may be.
	most int
	// room is how many samples the queue has room for, 0 once they are queued.
	room int
	end  context.CancelFunc // nil until begin
}

// begin must be called before series are registered, of which and of others there may be n samples. It returns an error
// if the caller has left, or if there is no room.
func (h *hold) begin(n int) error {
	if h.end != nil {
		return nil
	}
	if h.ctx.Err() != nil {
		return context.Cause(h.ctx)
	}
	h.in.mu.Lock()
	defer h.in.mu.Unlock()
	if err := h.in.admit(h.client, n); err != nil {
		return err
	}
	h.room = n
	h.ctx, h.end = Outlive(h.ctx)
	return nil
}

// release gives back what is still held.
func (h *hold) release() {
	if h.end == nil {
		return
	}
	h.end()
	h.in.mu.Lock()
	defer h.in.mu.Unlock()
	h.in.leave(h.client, h.room)
	h.room = 0
}
