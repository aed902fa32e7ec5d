package commands

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/quern/quern/internal/app/terminal"
	"github.com/quern/quern/internal/client"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/documents/dashboard"
	"github.com/quern/quern/internal/documents/dashboard/grafana"
	"github.com/quern/quern/internal/wire"
)

// fetch reads the data of an answer.
func fetch[T any](ctx context.Context, server *client.Client, path string, query url.Values) (T, error) {
	resp, err := server.Do(ctx, http.MethodGet, path, query)
	if err != nil {
		return *new(T), err
	}
	defer resp.Body.Close()
	return dataOf[T](resp.Body)
}

// change sends a change of a dashboard.
func change(ctx context.Context, server *client.Client, method, path string, base url.Values, text []byte) (wire.DocumentVersion, error) {
	resp, err := server.Send(ctx, method, path, base, text)
	if err != nil {
		if conflict := (*client.ConflictError)(nil); errors.As(err, &conflict) {
			err = fmt.Errorf("%w; get it, and make your change again", err)
		}
		return wire.DocumentVersion{}, err
	}
	defer resp.Body.Close()
	return dataOf[wire.DocumentVersion](resp.Body)
}

func dataOf[T any](body io.Reader) (T, error) {
	var out wire.Data[T]
	if _, err := decode(body, &out); err != nil || out.Status != wire.Success {
		return out.Data, errors.Join(errors.New("the answer is not a Quern response"), err)
	}
	return out.Data, nil
}

// serverOf returns the server that has a dashboard, and the dashboard's path there.
func serverOf(cfg config.Dashboard, stderr io.Writer) (server client.Client, path string, err error) {
	if path, err = pathOf(cfg.ID); err != nil {
		return server, "", err
	}
	server, err = cfg.Client(stderr)
	return server, path, err
}

// pathOf returns the path of a dashboard.
func pathOf(id string) (string, error) {
	if !dashboard.ValidID(id) {
		return "", &client.RefusedError{Message: fmt.Sprintf("%.200q is no id of a dashboard: ids have 1 to 128 of the characters a-z, 0-9, _, . and -", id)}
	}
	return wire.DashboardsPath + "/" + id, nil
}

// ListDashboards prints the dashboards of a server.
func ListDashboards(ctx context.Context, cfg config.ListDashboards, stdout, stderr io.Writer) error {
	server, err := cfg.Client(stderr)
	if err != nil {
		return err
	}
	query := url.Values{}
	if cfg.Deleted {
		query.Set("deleted", "true")
	}
	all, err := fetch[[]wire.DashboardHead](ctx, &server, wire.DashboardsPath, query)
	if err != nil {
		return stopped(ctx, err, "stopped")
	}
	w := table(stdout, "ID\tTITLE\tVERSION\tUPDATED\tBY\tFROM")
	for _, d := range all {
		from := d.Origin
		switch {
		case d.Deleted:
			from = "deleted"
		case from == "":
			from = "stored"
		}
		if d.Problem != "" {
			from += ": " + d.Problem
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", d.ID, d.Title, versionOf(d.Version), momentOr(d.Updated, "-"), orNothing(d.Author), from)
	}
	return w.Flush()
}

func versionOf(n int64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}

// GetDashboard prints a dashboard.
func GetDashboard(ctx context.Context, cfg config.Dashboard, stdout, stderr io.Writer) error {
	server, path, err := serverOf(cfg, stderr)
	if err != nil {
		return err
	}
	query := url.Values{}
	if cfg.Version > 0 {
		query.Set("version", strconv.Itoa(cfg.Version))
	}
	d, err := fetch[wire.Dashboard](ctx, &server, path, query)
	if err != nil {
		return stopped(ctx, err, "stopped")
	}
	if d.Problem != "" {
		fmt.Fprintf(terminal.Plain(stderr), "warning: %s: %s; this is the last good one\n", d.Origin, d.Problem)
	}
	return printDashboard(stdout, d.Dashboard)
}

func printDashboard(stdout io.Writer, text []byte) error {
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, text, "", "  "); err != nil {
		return fmt.Errorf("the answer is not a Quern response: %w", err)
	}
	pretty.WriteByte('\n')
	_, err := pretty.WriteTo(stdout)
	return err
}

// PutDashboard stores a dashboard of a file.
func PutDashboard(ctx context.Context, cfg config.DashboardFile, stdout, stderr io.Writer) error {
	id := cfg.ID
	if id == "" {
		id = dashboard.ID(strings.TrimSuffix(filepath.Base(cfg.File), ".json"))
	}
	path, err := pathOf(id)
	if err != nil {
		return err
	}
	text, err := readDashboard(cfg.File, stderr)
	if err != nil {
		return err
	}
	server, err := cfg.Client(stderr)
	if err != nil {
		return err
	}
	base, err := baseOf(ctx, &server, path, cfg.Base)
	if err != nil {
		return stopped(ctx, err, "stopped; nothing was stored")
	}
	made, err := change(ctx, &server, http.MethodPut, path, base, text)
	if err != nil {
		return stopped(ctx, err, "stopped; `quern dashboard versions "+id+"` says whether it was stored")
	}
	fmt.Fprintf(stdout, "Dashboard %s is stored as version %d: %s\n", id, made.Version, server.Name()+"/dashboards/"+id)
	return nil
}

// baseOf returns the version that a change replaces, as parameters.
func baseOf(ctx context.Context, server *client.Client, path string, base int) (url.Values, error) {
	newest := int64(base)
	if base == config.NewestVersion {
		// In the list of all, since those without a version are no error there.
		all, err := fetch[[]wire.DashboardHead](ctx, server, wire.DashboardsPath, url.Values{"deleted": {"true"}})
		if err != nil {
			return nil, err
		}
		newest = 0
		for _, d := range all {
			if wire.DashboardsPath+"/"+d.ID == path {
				newest = d.Version
			}
		}
	}
	return url.Values{"base": {strconv.FormatInt(newest, 10)}}, nil
}

// readDashboard reads a file, and converts it to Quern's form if it is of Grafana.
func readDashboard(file string, stderr io.Writer) ([]byte, error) {
	in := os.Stdin
	if file != "-" {
		var err error
		if in, err = os.Open(file); err != nil {
			return nil, err
		}
		defer in.Close() //nolint:errcheck // only read
	}
	text, err := io.ReadAll(io.LimitReader(in, grafana.MaxBytes+1))
	if err != nil {
		return nil, err
	}
	d, notes, err := grafana.Convert(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for _, note := range notes {
		fmt.Fprintln(terminal.Plain(stderr), "note: "+note)
	}
	return d.Encode()
}

// ConvertDashboard prints a dashboard in Quern's form.
func ConvertDashboard(_ context.Context, cfg config.DashboardFile, stdout, stderr io.Writer) error {
	text, err := readDashboard(cfg.File, stderr)
	if err != nil {
		return err
	}
	return printDashboard(stdout, text)
}

// DeleteDashboard deletes a dashboard.
func DeleteDashboard(ctx context.Context, cfg config.Dashboard, stdout, stderr io.Writer) error {
	server, path, err := serverOf(cfg, stderr)
	if err != nil {
		return err
	}
	base, err := baseOf(ctx, &server, path, cfg.Base)
	if err != nil {
		return stopped(ctx, err, "stopped; nothing was deleted")
	}
	gone, err := change(ctx, &server, http.MethodDelete, path, base, nil)
	if err != nil {
		return stopped(ctx, err, "stopped; `quern dashboard versions "+cfg.ID+"` says whether it was deleted")
	}
	fmt.Fprintf(stdout, "Dashboard %s is deleted, by version %d. Earlier versions are kept: quern dashboard versions %s\n", cfg.ID, gone.Version, cfg.ID)
	return nil
}

// DashboardVersions prints the versions of a dashboard.
func DashboardVersions(ctx context.Context, cfg config.Dashboard, stdout, stderr io.Writer) error {
	server, path, err := serverOf(cfg, stderr)
	if err != nil {
		return err
	}
	all, err := fetch[[]wire.DashboardHead](ctx, &server, path+"/versions", nil)
	if err != nil {
		return stopped(ctx, err, "stopped")
	}
	w := table(stdout, "VERSION\tUPDATED\tBY\tBYTES\tTITLE")
	for _, v := range all {
		title := v.Title
		switch {
		case v.Deleted:
			title += " (deleted)"
		case v.Origin != "":
			title += " (not stored: " + v.Origin + ")"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", versionOf(v.Version), momentOr(v.Updated, "-"), orNothing(v.Author), v.Bytes, title)
	}
	return w.Flush()
}
