// Package reports serves POST /api/v1/reports, the measurement reports that are Quern's own format.
package reports

import (
	"net/http"
	"sync"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/protocol/push"
)

// New makes the handler.
func New(in *push.Intake) http.Handler {
	var decoders sync.Pool // *decoder
	return push.NewJSON(in, func(_ *http.Request, body []byte, b *ingest.Batch) error {
		d, ok := decoders.Get().(*decoder)
		if !ok {
			d = new(decoder)
		}
		defer decoders.Put(d)
		defer d.release()
		return d.decode(body, in.Limits.Depth, b)
	})
}

// release drops references to the body. The batch may refer to the arena, so that is given up.
func (d *decoder) release() {
	d.Text, d.Arena, d.batch = nil, nil, nil
	clear(d.labels)
}
