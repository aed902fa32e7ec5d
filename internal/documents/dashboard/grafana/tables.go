package grafana

import (
	"strings"

	"github.com/quern/quern/internal/documents/dashboard"
)

// kinds of panels of Grafana, and Quern's. The others have no counterpart.
var kinds = map[string]string{
	"timeseries": dashboard.TimeSeries, "graph": dashboard.TimeSeries, "stat": dashboard.Stat, "singlestat": dashboard.Stat, "bargauge": dashboard.Stat, "gauge": dashboard.Gauge,
	"heatmap": dashboard.Heatmap, "table": dashboard.Table, "table-old": dashboard.Table, "text": dashboard.Text,
}

// leftOut is what a panel may have that has no counterpart, by its path.
var leftOut = []struct{ path, note string }{
	{"transformations", "transformations are left out"},
	{"fieldConfig.overrides", "overrides for single series are left out"},
	{"fieldConfig.defaults.mappings", "value mappings are left out"},
	{"alert", "its alert is left out"},
	{"timeFrom", "its own time range is left out"},
	{"timeShift", "its own time range is left out"},
}

// levelOf returns the level that a colour of Grafana stands for.
func levelOf(colour string) (level string, known bool) {
	name := strings.ToLower(colour)
	for _, shade := range []string{"super-light-", "light-", "semi-dark-", "dark-"} {
		name = strings.TrimPrefix(name, shade)
	}
	switch name {
	case "green", "transparent", "text", "rgba(50, 172, 45, 0.97)", "#299c46", "#73bf69":
		return dashboard.OK, true
	case "yellow", "orange", "rgba(237, 129, 40, 0.89)", "#eab839", "#ff9830", "#fade2a":
		return dashboard.Warn, true
	case "red", "rgba(245, 54, 54, 0.9)", "#d44a3a", "#f2495c", "#c4162a":
		return dashboard.Bad, true
	}
	return dashboard.OK, false
}

// units of Grafana, and Quern's. Those that are equal are left out.
var units = map[string]string{
	"none": "", "short": "", "sishort": "", "locale": "", "string": "", "percentunit": "ratio", "percent": "percent",
	"bytes": "bytes", "decbytes": "bytes", "Bps": "bytes/s", "binBps": "bytes/s",
	"s": "seconds", "dtdurations": "seconds", "clocks": "seconds", "ms": "ms", "hertz": "hertz", "rothz": "hertz",
	"celsius": "celsius", "volt": "volts", "amp": "amperes", "joule": "joules", "watt": "watts", "lengthm": "meters", "massg": "grams",
	"bits": "bits", "decbits": "bits", "bps": "bits/s", "binbps": "bits/s", "m": "minutes", "h": "hours", "d": "days", "µs": "µs", "ns": "ns",
	"kbytes": "KiB", "mbytes": "MiB", "gbytes": "GiB", "deckbytes": "kB", "decmbytes": "MB", "decgbytes": "GB",
	"cps": "/s", "ops": "ops/s", "reqps": "requests/s", "rps": "reads/s", "wps": "writes/s", "iops": "io/s", "pps": "packets/s",
	"cpm": "/min", "opm": "ops/min", "reqpm": "requests/min", "rpm": "reads/min", "wpm": "writes/min",
	"farenheit": "°F", "fahrenheit": "°F", "kelvin": "K", "humidity": "%H", "dB": "dB", "degree": "°", "currencyUSD": "$", "currencyEUR": "€",
}
