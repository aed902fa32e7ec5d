package wire

// Cardinality is the reply of CardinalityPath: how many series have which labels. Each list has the largest numbers
// first, and is cut at the limit of the request.
type Cardinality struct {
	// Series, LabelNames and LabelPairs are the numbers of all series, names, and pairs of a name and a value.
	Series     int           `json:"series"`
	LabelNames int           `json:"label_names"`
	LabelPairs int           `json:"label_pairs"`
	Metrics    []NameSeries  `json:"metrics"`
	Labels     []LabelSeries `json:"labels"`
	Values     []ValueSeries `json:"values"`
	Sources    []NameSeries  `json:"sources"`
	// Days are absent unless requested, oldest first, the last one being today.
	Days []DaySeries `json:"days,omitempty"`
	// MetSince is the time from which DaySeries.Met counts.
	MetSince int64    `json:"met_since,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// NameSeries is a metric or a source, and the number of its series.
type NameSeries struct {
	Name   string `json:"name"`
	Series int    `json:"series"`
}

// LabelSeries is a label, the numbers of its values and of the series that have it, and an estimate of what it takes in
// memory.
type LabelSeries struct {
	Name   string `json:"name"`
	Values int    `json:"values"`
	Series int    `json:"series"`
	Bytes  int64  `json:"bytes"`
}

// ValueSeries is a value of a label, and the number of series that have it.
type ValueSeries struct {
	Label  string `json:"label"`
	Value  string `json:"value"`
	Series int    `json:"series"`
}

// DaySeries is about series on one UTC day, which begins at Start.
type DaySeries struct {
	Start int64 `json:"start"`
	// Last counts the series whose last sample is of this day. Unless the day is today, they have vanished after it.
	Last int `json:"last"`
	// Met counts the series that were registered on this day, as far as this process knows: since MetSince.
	Met int `json:"met"`
}

// Sources is the reply of SourcesPath.
type Sources struct {
	// Since is when this process began to count samples and bytes.
	Since int64 `json:"since"`
	// Total is the number of sources, of which Sources has those that the request asks for.
	Total   int      `json:"total"`
	Sources []Source `json:"sources"`
	// Metrics are those of the source that the request names, those with the most series first.
	Metrics []NameSeries `json:"metrics,omitempty"`
	// Forgotten is the number of sources whose counts were dropped, with the source, from memory.
	Forgotten int      `json:"forgotten,omitempty"`
	Warnings  []string `json:"warnings,omitempty"`
}

// Source is a source and what this process has taken of it.
type Source struct {
	Name string `json:"name"`
	// Derived says that the name is the value of a label that names the source, not of the label source.
	Derived bool `json:"derived"`
	// Series is the number of its series in the store.
	Series int `json:"series"`
	// Last is when the last samples were accepted, absent if this process has accepted none.
	Last    *int64 `json:"last,omitempty"`
	Samples int64  `json:"samples"`
	// Bytes are what was told of the samples: 16 for a time and a value, and the names and values of all labels.
	Bytes int64 `json:"bytes"`
}
