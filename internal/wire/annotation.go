package wire

// The paths of annotations.
const (
	AnnotationsPath = "/api/v1/annotations"
	// AlertsPath takes the notifications of Alertmanager.
	AlertsPath = "/api/v1/annotations/alertmanager"
)

// Annotation is a remark about a time, from Start to End, both included; a moment has one time.
type Annotation struct {
	ID       string   `json:"id"`
	Start    int64    `json:"start"`
	End      int64    `json:"end"`
	Text     string   `json:"text"`
	Tags     []string `json:"tags"`
	Selector string   `json:"selector"`
	Author   string   `json:"author"`
	Updated  int64    `json:"updated"`
}

// Annotations is the answer to a search, by start, then id.
type Annotations struct {
	Annotations []Annotation `json:"annotations"`
	// More means that there are others before these; Before is the parameter that asks for them.
	More   bool   `json:"more"`
	Before string `json:"before,omitempty"`
}

// PutAnnotations is the reply to annotations that were sent, or to alerts.
type PutAnnotations struct {
	// Status is "error" if Error is set.
	Status string `json:"status,omitempty"`
	Error  string `json:"error,omitempty"`
	// Accepted are durable.
	Accepted []AcceptedAnnotation `json:"accepted"`
	Rejected []Rejection          `json:"rejected"`
	// RejectedTotal is set if the list was truncated.
	RejectedTotal int `json:"rejected_total,omitempty"`
}

// AcceptedAnnotation names an annotation that is stored.
type AcceptedAnnotation struct {
	Index int    `json:"index"`
	ID    string `json:"id"`
	Start int64  `json:"start"`
}

// AnnotationLine is a line of an export that has an annotation.
type AnnotationLine struct {
	Annotation Annotation `json:"annotation"`
}
