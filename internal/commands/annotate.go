package commands

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/quern/quern/internal/app/terminal"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/wire"
)

// Annotate has a server store an annotation.
func Annotate(ctx context.Context, cfg config.Annotate, stdout, stderr io.Writer) error {
	server, err := cfg.Client(stderr)
	if err != nil {
		return err
	}
	now := clock.NowMs(clock.System{})
	a := struct {
		ID       string   `json:"id,omitempty"`
		Start    int64    `json:"start"`
		End      int64    `json:"end"`
		Text     string   `json:"text"`
		Tags     []string `json:"tags"`
		Selector string   `json:"selector"`
	}{cfg.ID, cfg.Start.Ms(now), cfg.End.Ms(now), cfg.Text, cfg.Tags, cfg.Selector}
	body, err := json.Marshal(a)
	if err != nil {
		return err
	}
	var reply wire.PutAnnotations
	_, err = server.Post(ctx, wire.AnnotationsPath, http.Header{"Content-Type": {"application/json"}}, body, &reply)
	switch {
	case err != nil:
		if len(reply.Rejected) == 1 {
			err = errors.New(reply.Rejected[0].Message)
		}
		return stopped(ctx, err, "stopped; `quern annotate list` says whether the annotation was made")
	case len(reply.Accepted) != 1:
		return errors.New("the answer is not a Quern response")
	}
	made := reply.Accepted[0]
	fmt.Fprintf(terminal.Plain(stdout), "Annotation %s starts at %s.\n", made.ID, moment(made.Start))
	return nil
}

// ListAnnotations prints annotations of a server.
func ListAnnotations(ctx context.Context, cfg config.FindAnnotations, stdout, stderr io.Writer) error {
	form := url.Values{"start": {cfg.Start.String()}, "end": {cfg.End.String()}, "tag": cfg.Tags, "limit": {strconv.Itoa(cfg.Limit)}}
	if cfg.Text != "" {
		form.Set("text", cfg.Text)
	}
	found, _, err := answered[wire.Annotations](ctx, &cfg.Connection, stderr, http.MethodGet, wire.AnnotationsPath, form)
	if err != nil {
		return err
	}
	w := table(stdout, "START\tEND\tID\tBY\tTAGS\tTEXT")
	for _, a := range found.Annotations {
		end := "-"
		if a.End != a.Start {
			end = moment(a.End)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", moment(a.Start), end, a.ID, orNothing(a.Author), oneLine(strings.Join(a.Tags, ",")), oneLine(a.Text))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if found.More {
		fmt.Fprintf(stderr, "There are more: these are the last %d. --limit, --end, --tag and --text choose others.\n", len(found.Annotations))
	}
	return nil
}

// oneLine returns the beginning of a text, in one line.
func oneLine(text string) string {
	const most = 200
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most-1]) + "…"
	}
	return orNothing(text)
}

// DeleteAnnotation has a server delete an annotation.
func DeleteAnnotation(ctx context.Context, cfg config.DeleteAnnotation, stdout, stderr io.Writer) error {
	server, err := cfg.Client(stderr)
	if err != nil {
		return err
	}
	start := strconv.FormatInt(cfg.Start.Ms(clock.NowMs(clock.System{})), 10)
	resp, err := server.Do(ctx, http.MethodDelete, wire.AnnotationsPath, url.Values{"id": {cfg.ID}, "start": {start}})
	if err != nil {
		return stopped(ctx, err, "stopped")
	}
	defer resp.Body.Close()
	fmt.Fprintln(stdout, "The annotation is deleted.")
	return nil
}
