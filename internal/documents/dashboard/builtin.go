package dashboard

import (
	"embed"
	"fmt"
	"path"
	"strings"
)

//go:embed builtin/*.json
var builtFiles embed.FS

// demoID is the id of the dashboard for the demo's data.
const demoID = "demo"

// builtIn returns the dashboards that are a part of the program, by id.
func builtIn(demo bool) (map[string]Stored, error) {
	entries, err := builtFiles.ReadDir("builtin")
	if err != nil {
		return nil, err
	}
	out := make(map[string]Stored)
	for _, e := range entries {
		id := strings.TrimSuffix(e.Name(), ".json")
		if id == demoID && !demo {
			continue
		}
		text, err := builtFiles.ReadFile(path.Join("builtin", e.Name()))
		if err != nil {
			return nil, err
		}
		d, err := Decode(text)
		if err != nil {
			return nil, fmt.Errorf("built-in dashboard %s: %w", id, err)
		}
		body, err := d.Encode()
		if err != nil {
			return nil, err
		}
		out[id] = Stored{Head{ID: id, Title: d.Title, Origin: BuiltIn, Bytes: len(body)}, body}
	}
	return out, nil
}
