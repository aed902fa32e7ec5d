// Package dashboard holds dashboards: their format (docs/dashboards.md), and the library of those that are stored,
// read from files, and built in.
//
//  1. What is stored, or read from a file, has passed Decode: it keeps all limits. Text in it is text; nothing here
//     gives it a meaning, and whoever shows it must not either.
//  2. Decoding costs time and memory in proportion to the text.
package dashboard

import (
	"bytes"
	"encoding/json"

	"github.com/quern/quern/internal/documents/shelf"
	"github.com/quern/quern/internal/storage"
)

// Format is the version of the format that this package reads and writes.
const Format = 1

// The limits of a dashboard. Lengths are in bytes.
const (
	// MaxBytes bounds the JSON of a dashboard, as it is sent and as it is stored.
	MaxBytes = storage.MaxDocumentBody

	MaxPanels     = 200
	MaxQueries    = 20 // of a panel
	MaxThresholds = 20 // of a panel
	MaxVariables  = 50
	MaxValues     = 500 // of a variable: to choose from, and chosen
	MaxTags       = 50

	MaxTitle = storage.MaxDocumentTitle // also of labels, legends and values
	MaxExpr  = 16 << 10
	MaxText  = 64 << 10 // also of descriptions
	MaxUnit  = 32
	MaxName  = 64 // of a tag and of a variable

	// Columns is the width of the grid, MaxHeight the most rows that a panel may have, and MaxRow the last row in which
	// one may begin.
	Columns     = 24
	MaxHeight   = 60
	MaxRow      = 100_000
	MaxDecimals = 10
	// MaxPanelID bounds the ids of panels, so that each reader of JSON can represent them.
	MaxPanelID = 1 << 31
)

// The kinds of panels.
const (
	TimeSeries = "timeseries"
	Stat       = "stat"
	Gauge      = "gauge"
	Heatmap    = "heatmap"
	Table      = "table"
	Text       = "text"
)

// The kinds of variables.
const (
	ByLabel  = "label"
	ByList   = "list"
	FreeText = "text"
)

// The levels of thresholds.
const (
	OK   = "ok"
	Warn = "warn"
	Bad  = "bad"
)

// Dashboard is a page of panels.
type Dashboard struct {
	Format      int      `json:"format"`
	Title       string   `json:"title"`
	Description string   `json:"description"`
	Tags        []string `json:"tags"`
	// Range is the time shown, up to now, and Refresh the time between two readings. Both are spans such as 6h; empty
	// means the page's default, and no refresh.
	Range     string     `json:"range"`
	Refresh   string     `json:"refresh"`
	Variables []Variable `json:"variables"`
	Panels    []Panel    `json:"panels"`
}

// Variable is what people choose above the panels. In expressions $name or ${name} stands for the value.
type Variable struct {
	Name  string `json:"name"`
	Label string `json:"label"`
	Kind  string `json:"kind"`
	// Of is the label whose values are offered, and Selector the series that they are taken from, empty for all. They
	// are for the kind label.
	Of       string `json:"of"`
	Selector string `json:"selector"`
	// Values are offered by the kind list.
	Values []string `json:"values"`
	// Multi allows several values; none of them then means all.
	Multi bool `json:"multi"`
	// Value is what is chosen at first.
	Value []string `json:"value"`
}

// Panel is a rectangle that shows queries, or a text.
type Panel struct {
	// ID is unique in the dashboard.
	ID          int         `json:"id"`
	Title       string      `json:"title"`
	Description string      `json:"description"`
	Kind        string      `json:"kind"`
	At          Rectangle   `json:"at"`
	Queries     []Query     `json:"queries"`
	Unit        string      `json:"unit"`
	Decimals    *int        `json:"decimals,omitempty"`
	Min         *float64    `json:"min,omitempty"`
	Max         *float64    `json:"max,omitempty"`
	Stack       bool        `json:"stack"`
	Thresholds  []Threshold `json:"thresholds"`
	Text        string      `json:"text"`
}

// Rectangle is a place in the grid, in columns and rows.
type Rectangle struct {
	X int `json:"x"`
	Y int `json:"y"`
	W int `json:"w"`
	H int `json:"h"`
}

// Query is a PromQL expression, with the name of its curves: {{label}} in it stands for the value of a label.
type Query struct {
	Expr   string `json:"expr"`
	Legend string `json:"legend"`
}

// Threshold says that values from a number on, up to the next threshold, are at a level.
type Threshold struct {
	From  float64 `json:"from"`
	Level string  `json:"level"`
}

// InvalidError says what is wrong with a dashboard, and where.
type InvalidError = shelf.InvalidError

// fill replaces lists that are not there by empty ones, so that each field has one form.
func (d *Dashboard) fill() {
	d.Tags, d.Variables, d.Panels = orEmpty(d.Tags), orEmpty(d.Variables), orEmpty(d.Panels)
	for i := range d.Variables {
		v := &d.Variables[i]
		v.Values, v.Value = orEmpty(v.Values), orEmpty(v.Value)
	}
	for i := range d.Panels {
		p := &d.Panels[i]
		p.Queries, p.Thresholds = orEmpty(p.Queries), orEmpty(p.Thresholds)
	}
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// Encode returns the one form of d in JSON: equal dashboards have equal texts.
func (d *Dashboard) Encode() ([]byte, error) {
	d.fill()
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false) // text stays as it was written
	if err := enc.Encode(d); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}
