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

// RefuseJSON is the refusal of the protocols whose replies are a wire.Report.
func RefuseJSON(w http.ResponseWriter, _ *http.Request, code int, message string) {
	if code == http.StatusUnsupportedMediaType {
		w.Header().Set("Accept", "application/json, application/x-ndjson")
	}
	respond.JSON(w, code, wire.Report{Status: wire.Failure, Error: message, Rejected: []wire.Rejection{}})
}

// WriteReply replies to a request whose body was decoded. fault says what is wrong with the body, or why nothing was stored; code
// is then the status. "" is no fault. rejected counts all rejections; result must have at least those that a reply lists.
func WriteReply(w http.ResponseWriter, limits *Limits, result ingest.Result, rejected, code int, fault string) {
	reply := wire.Report{Accepted: result.Accepted, Rejected: []wire.Rejection{}, Error: fault}
	for _, rej := range result.Rejected[:min(len(result.Rejected), limits.Rejections)] {
		reply.Rejected = append(reply.Rejected, wire.Rejection{Index: rej.Index, Reason: string(rej.Reason), Message: rej.Message})
	}
	if rejected > len(reply.Rejected) {
		reply.RejectedTotal = rejected
	}
	if fault == "" && result.Accepted == 0 && rejected > 0 {
		first := reply.Rejected[0]
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
