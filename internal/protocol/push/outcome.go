package push

import (
	"fmt"
	"mime"
	"net/http"
	"strings"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/protocol/respond"
	"github.com/quern/quern/internal/wire"
	"github.com/quern/quern/internal/wire/excerpt"
)

// WriteReply replies to a request whose body was decoded, up to the error broken, if any.
func WriteReply(w http.ResponseWriter, limits *Limits, result ingest.Result, broken error) {
	reply := wire.Report{Accepted: result.Accepted, Rejected: []wire.Rejection{}}
	for _, rej := range result.Rejected[:min(len(result.Rejected), limits.Rejections)] {
		reply.Rejected = append(reply.Rejected, wire.Rejection{Index: rej.Index, Reason: string(rej.Reason), Message: rej.Message})
	}
	if n := len(result.Rejected); n > len(reply.Rejected) {
		reply.RejectedTotal = n
	}
	code := http.StatusOK
	switch {
	case broken != nil:
		code, reply.Error = http.StatusBadRequest, broken.Error()
	case result.Accepted == 0 && len(result.Rejected) > 0:
		first := result.Rejected[0]
		code = http.StatusBadRequest
		reply.Error = fmt.Sprintf("every measurement was rejected, measurement %d because: %s (%s)", first.Index, first.Message, first.Reason)
	}
	if reply.Error != "" {
		reply.Status = wire.Failure
	}
	respond.JSON(w, code, reply)
}

// CheckJSON checks whether a Content-Type header is allowed for a body of JSON. The decoder
// detects the form from the body itself, so JSON and NDJSON are treated alike.
func CheckJSON(h http.Header) error {
	v := h.Get("Content-Type")
	if v == "" {
		return nil
	}
	const want = "use application/json or application/x-ndjson"
	media, params, err := mime.ParseMediaType(v)
	// Also accept what curl -d sends with any body: whoever tries the endpoint by hand means JSON.
	if err != nil || (media != "application/json" && media != "application/x-ndjson" && media != "application/x-www-form-urlencoded") {
		return fmt.Errorf("the Content-Type %s is not supported: %s", excerpt.Quoted(v), want)
	}
	if cs := params["charset"]; cs != "" && !strings.EqualFold(cs, "utf-8") {
		return fmt.Errorf("charset %s is not supported: JSON is UTF-8", excerpt.Quoted(cs))
	}
	return nil
}
