package query

// SeriesBytes is what a series takes beside its labels.
const SeriesBytes = seriesBytes
