package annotations_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/protocol/annotations"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/wire"
)

// ali is the door of a server where everybody is Ali.
type ali struct{}

func (ali) Identify(*http.Request) (access.Grant, error) {
	return access.Grant{Name: "user ali", Roles: access.Read | access.Write}, nil
}

type server struct {
	*api.Server
	clk   *clock.Simulated
	store annotations.Store
}

func serve(t *testing.T, set ...func(*api.Options)) *server {
	clk := clock.NewSimulated(apitest.Now)
	return serveFrom(t, apitest.Store(clk), clk, set...)
}

func serveFrom(tb testing.TB, store annotations.Store, clk *clock.Simulated, set ...func(*api.Options)) *server {
	s := &server{clk: clk, store: store}
	s.Server = apitest.Server(tb, func(o *api.Options) {
		o.Clock, o.Appender, o.BackFiller, o.Door = clk, apitest.AcceptAll{}, apitest.AcceptAll{}, ali{}
		o.Annotations = annotations.New(store, clk, 48*time.Hour)
		for _, f := range set {
			f(o)
		}
	})
	return s
}

func (s *server) put(t *testing.T, body string) (int, wire.PutAnnotations) {
	t.Helper()
	return s.post(t, wire.AnnotationsPath, body)
}

func (s *server) post(t *testing.T, path, body string) (int, wire.PutAnnotations) {
	t.Helper()
	w := apitest.Send(t, s, path, strings.NewReader(body), "Content-Type", "application/json")
	var reply wire.PutAnnotations
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &reply), "%s", w.Body)
	require.NotNil(t, reply.Accepted)
	require.NotNil(t, reply.Rejected)
	return w.Code, reply
}

func (s *server) find(t *testing.T, params ...string) wire.Annotations {
	t.Helper()
	code, body := s.get(t, http.MethodGet, params...)
	require.Equal(t, 200, code, body)
	var found wire.Annotations
	require.NoError(t, json.Unmarshal([]byte(body), &found), body)
	return found
}

func (s *server) get(t *testing.T, method string, params ...string) (int, string) {
	t.Helper()
	form := url.Values{}
	for i := 0; i < len(params); i += 2 {
		form.Add(params[i], params[i+1])
	}
	w := apitest.Get(t, s, method, wire.AnnotationsPath+"?"+form.Encode())
	return w.Code, w.Body.String()
}

func texts(found wire.Annotations) []string {
	all := []string{}
	for _, a := range found.Annotations {
		all = append(all, a.Text)
	}
	return all
}

// TestAnnotations: one is made, found, replaced, moved and deleted.
func TestAnnotations(t *testing.T) {
	s := serve(t)
	nowMs := apitest.Now.UnixMilli()

	code, reply := s.put(t, `{"text":"Release <b>1.4</b> & \"more\"","tags":["team=web","release","release"],"selector":"cpu{source=\"web-1\"}"}`)
	require.Equal(t, 200, code, reply)
	require.Len(t, reply.Accepted, 1)
	id := reply.Accepted[0].ID
	require.Len(t, id, 16)
	require.Equal(t, []wire.Annotation{{
		ID: id, Start: nowMs, End: nowMs, Text: `Release <b>1.4</b> & "more"`, Tags: []string{"release", "team=web"},
		Selector: `cpu{source="web-1"}`, Author: "user ali", Updated: nowMs,
	}}, s.find(t).Annotations)

	// A span with an id of the client's own; twice is once.
	for range 2 {
		code, reply = s.put(t, `[{"id":"m-1","start":"-3h","end":"-1h","text":"Maintenance"},{"id":"m-2","start":1763715600,"text":"seconds"},{"id":"m-3","start":1763715600001,"text":"ms","author":"nobody","updated":1}]`)
		require.Equal(t, 200, code, reply)
		require.Len(t, reply.Accepted, 3)
	}
	found := s.find(t)
	require.Equal(t, []string{"Maintenance", "seconds", "ms", `Release <b>1.4</b> & "more"`}, texts(found))
	require.Equal(t, nowMs-3*3600_000, found.Annotations[0].Start)
	require.Equal(t, nowMs-3600_000, found.Annotations[0].End)
	require.Equal(t, "user ali", found.Annotations[2].Author, "nobody writes in another's name")

	// By time: a span is found from within it.
	require.Equal(t, []string{"Maintenance"}, texts(s.find(t, "start", "-150m", "end", "-149m")))
	// By tags, all of them, and by a part of the text in any case.
	require.Len(t, s.find(t, "tag", "release", "tag", "team=web").Annotations, 1)
	require.Empty(t, s.find(t, "tag", "release", "tag", "team=db").Annotations)
	require.Equal(t, []string{"Maintenance"}, texts(s.find(t, "text", "TENAN")))

	// It is replaced, and moved.
	code, reply = s.put(t, `{"id":"m-1","start":"-2h","text":"Maintenance, moved","moved_from":"-3h"}`)
	require.Equal(t, 200, code, reply)
	require.Equal(t, []string{"Maintenance, moved"}, texts(s.find(t, "text", "maintenance")))

	// It is deleted; who is wrong about it learns that.
	at := fmt.Sprint(nowMs - 2*3600_000)
	code, body := s.get(t, http.MethodDelete, "id", "m-1", "start", at)
	require.Equal(t, 200, code, body)
	code, body = s.get(t, http.MethodDelete, "id", "m-1", "start", at)
	require.Equal(t, 404, code)
	require.Contains(t, body, `there is no annotation \"m-1\" that starts at 2025-11-21T10:00:00Z`)
	require.Empty(t, s.find(t, "text", "maintenance").Annotations)
}

// TestMore: the last ones are found first, and what comes before them by asking again.
func TestMore(t *testing.T) {
	s := serve(t)
	var all []string
	for i := range 25 { // five at each time
		all = append(all, fmt.Sprintf(`{"id":"n-%02d","start":%d,"text":"n%02d"}`, i, apitest.Now.Unix()-100+int64(i/5), i))
	}
	code, _ := s.put(t, "["+strings.Join(all, ",")+"]")
	require.Equal(t, 200, code)
	var seen []string
	before := []string{}
	for pages := 0; ; pages++ {
		require.Less(t, pages, 10)
		found := s.find(t, append([]string{"limit", "7"}, before...)...)
		seen = append(texts(found), seen...)
		if !found.More {
			break
		}
		require.Len(t, found.Annotations, 7)
		before = []string{"before", found.Before}
	}
	require.Len(t, seen, 25)
	require.IsIncreasing(t, seen)
}

// TestMoreOfLongOnes: paging goes on among those that start before the range and reach into it.
func TestMoreOfLongOnes(t *testing.T) {
	s := serve(t)
	const day = 86400
	now := apitest.Now.Unix()
	var all, want []string
	for i := range 9 {
		text := fmt.Sprintf("n%d", i)
		all = append(all, fmt.Sprintf(`{"id":"n","start":%d,"end":%d,"text":%q}`, now-int64(9-i)*5*day, now, text))
		want = append(want, text)
	}
	code, _ := s.put(t, "["+strings.Join(all, ",")+"]")
	require.Equal(t, 200, code)
	start := []string{"limit", "2", "start", strconv.FormatInt(now-12*day, 10)}
	found := s.find(t, start...)
	seen := texts(found)
	for found.More {
		found = s.find(t, append(start, "before", found.Before)...)
		seen = append(texts(found), seen...)
		require.LessOrEqual(t, len(seen), len(all))
	}
	require.Equal(t, want, seen)
}

// TestMovesInOneRequest: the annotations of a request count one after the other.
func TestMovesInOneRequest(t *testing.T) {
	s := serve(t)
	at := func(n int64) int64 { return apitest.Now.Unix() - 100 + n }
	code, reply := s.put(t, fmt.Sprintf(`[
		{"id":"a","start":%d,"text":"moved","moved_from":%d}, {"id":"a","start":%d,"text":"new"},
		{"id":"b","start":%d,"text":"before"}, {"id":"b","start":%d,"text":"after","moved_from":%d}]`, at(2), at(1), at(1), at(3), at(4), at(3)))
	require.Equal(t, 200, code)
	require.Len(t, reply.Accepted, 4)
	require.Equal(t, []string{"new", "moved", "after"}, texts(s.find(t)))
}

// TestBad: what is bad is refused with a reason, and what is good beside it is kept.
func TestBad(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		code int
		says string
		kept int
	}{
		"nothing":                    {"", 400, "the body is empty", 0},
		"no JSON":                    {"<script>", 400, "at byte 0: unexpected '<', want an annotation", 0},
		"no text, no tag":            {"{}", 400, "neither a text nor a tag", 0},
		"NaN":                        {`{"text":"x","start":NaN}`, 400, "JSON has no NaN", 0},
		"a time that is no time":     {`{"text":"x","start":"NaN"}`, 400, `the time \"NaN\" must be a time such as`, 0},
		"a time far away":            {`{"text":"x","start":9999999999999999}`, 400, "too far from 1970", 0},
		"a long number":              {`{"text":"x","start":1` + strings.Repeat("0", 100_000) + `}`, 400, "must be a time such as", 0},
		"the end before the start":   {`{"text":"x","start":"-1h","end":"-2h"}`, 400, "the end is before the start", 0},
		"a huge text":                {`{"text":"` + strings.Repeat("x", 1<<20) + `"}`, 400, "the text has 1048576 bytes, at most 16384 are allowed", 0},
		"a million tags":             {`{"text":"x","tags":["a"` + strings.Repeat(`,"a"`, 999_999) + `]}`, 400, "it has 1000000 tags, at most 64", 0},
		"a long tag":                 {`{"text":"x","tags":["` + strings.Repeat("t", 300) + `"]}`, 400, "the tag has 300 bytes, at most 256", 0},
		"an empty tag":               {`{"text":"x","tags":[""]}`, 400, "a tag is empty", 0},
		"a tag that is no text":      {`{"text":"x","tags":["a",1]}`, 400, "tag 1 must be a string", 0},
		"tags that are no list":      {`{"text":"x","tags":"a"}`, 400, "tags must be an array of strings", 0},
		"a long id":                  {`{"text":"x","id":"` + strings.Repeat("i", 65) + `"}`, 400, "the id has 65 bytes", 0},
		"no selector":                {`{"text":"x","selector":"cpu{"}`, 400, "the selector: ", 0},
		"a selector that computes":   {`{"text":"x","selector":"sum(cpu)"}`, 400, "the selector: ", 0},
		"a member that is not there": {`{"text":"x","tag":"a"}`, 400, `there is no member \"tag\": an annotation has id, start`, 0},
		"no UTF-8":                   {"{\"text\":\"\xff\"}", 400, "the text is not valid UTF-8", 0},
		"moved from nowhere":         {`{"text":"x","moved_from":"-1h"}`, 400, "moved_from needs the id", 0},
		"something behind it":        {`{"text":"x"} {`, 400, "want the end of the body", 1},
		"it breaks off":              {`[{"text":"x"},{"text":`, 400, "at byte 22: the body ends in the middle", 1},
		"one of three":               {`[{"text":"x"},{"text":7},{"text":"y"}]`, 200, "text must be a string, not a number", 2},
		"too many": {
			`[{"text":"x"}` + strings.Repeat(`,{"text":"x"}`, 10_000) + `]`, 400,
			"a request may send 10000 annotations: send this one and those behind it in another request", 10_000,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t)
			w := apitest.Send(t, s, wire.AnnotationsPath, strings.NewReader(c.body))
			require.Equal(t, c.code, w.Code, "%s", w.Body)
			require.Contains(t, w.Body.String(), c.says)
			require.Less(t, w.Body.Len(), 1<<20)
			require.Len(t, s.find(t, "limit", "10000").Annotations, c.kept)
		})
	}
}

// TestBadParameters: a search that means something else than it says is refused.
func TestBadParameters(t *testing.T) {
	s := serve(t)
	for _, c := range [][]string{
		{"GET", "start", "yesterday", "must be a time such as"},
		{"GET", "start", "NaN", "must be a time such as"},
		{"GET", "start", "-1h", "end", "-2h", "must not be after the end"},
		{"GET", "limit", "0", "from 1 to 10000"},
		{"GET", "limit", "1e9", "from 1 to 10000"},
		{"GET", "tags", "a", "unknown parameter tags"},
		{"GET", "before", "x", "must be the member before"},
		{"DELETE", "id", "x", "give the id and the start"},
		{"DELETE", "start", "-1h", "give the id and the start"},
	} {
		code, body := s.get(t, c[0], c[1:len(c)-1]...)
		assert.Equal(t, 400, code, c)
		assert.Contains(t, body, c[len(c)-1], c)
	}
}

type admin struct{}

func (admin) Identify(*http.Request) (access.Grant, error) {
	return access.Grant{Name: "user eve", Roles: access.Read | access.Write | access.Admin}, nil
}

// TestMemory: what a search returns is bounded in bytes and charged; a request that finds no room is told to try again.
func TestMemory(t *testing.T) {
	s := serve(t)
	text := strings.Repeat("long ", 3000)
	for i := range 8 {
		var all []string
		for j := range 100 {
			all = append(all, fmt.Sprintf(`{"id":"n-%d","start":%d,"text":%q}`, i*100+j, apitest.Now.Unix()-1000+int64(i*100+j), text))
		}
		code, _ := s.put(t, "["+strings.Join(all, ",")+"]")
		require.Equal(t, 200, code)
	}
	found := s.find(t, "limit", "10000")
	require.True(t, found.More)
	require.Equal(t, "n-799", found.Annotations[len(found.Annotations)-1].ID)
	n := len(found.Annotations)
	require.InDelta(t, 8<<20/len(text), n, 30)
	require.Len(t, s.find(t, "limit", "10000", "before", found.Before).Annotations, 800-n)

	full := serveFrom(t, s.store, s.clk, func(o *api.Options) { o.Forms, o.Bodies = apitest.Share(1<<20), apitest.Share(1<<20) })
	code, body := full.get(t, http.MethodGet, "limit", "10000")
	require.Equal(t, 429, code, body)
	require.Len(t, full.find(t, "limit", "10").Annotations, 10)
	code, reply := full.put(t, `{"text":"x"}`)
	require.Equal(t, 429, code, reply)
}

// heavy returns a selector that takes most of what the selectors of one request may take. name makes it another one.
func heavy(name string) string {
	return fmt.Sprintf(`{"text":"x","selector":"{a=~\"%s\",b=\"%s\"}"}`, strings.Repeat("(?:ab?){900}", 6), name)
}

// TestSelectorsOfARequest: the selectors of all annotations that a request sends are weighed together.
func TestSelectorsOfARequest(t *testing.T) {
	s := serve(t)
	light := `{"text":"x","selector":"cpu{source=~\"web-.*\"}"}`
	code, reply := s.put(t, "["+strings.Join([]string{heavy("1"), heavy("1"), heavy("2"), light, heavy("3")}, ",")+"]")
	require.Equal(t, 200, code, reply)
	var accepted, rejected []int
	for _, a := range reply.Accepted {
		accepted = append(accepted, a.Index)
	}
	for _, r := range reply.Rejected {
		rejected = append(rejected, r.Index)
		require.Contains(t, r.Message, "more than 64 MB to compile")
	}
	require.Equal(t, []int{0, 1, 3}, accepted, "the same again takes nothing")
	require.Equal(t, []int{2, 4}, rejected)
	code, reply = s.put(t, heavy("2"))
	require.Equal(t, 200, code, "in another request: %v", reply)
}

// TestSelectorsAreAdmitted: what selectors take is charged, regular expressions wait for a turn, and nothing is parsed for
// a client that has left.
func TestSelectorsAreAdmitted(t *testing.T) {
	plain, pattern := `{"text":"x","selector":"cpu{source=\"web-1\"}"}`, `{"text":"x","selector":"cpu{source=~\"web-.*\"}"}`
	s := serve(t, func(o *api.Options) { o.Bodies = apitest.Share(16 << 20) })
	code, reply := s.put(t, pattern)
	require.Equal(t, 200, code, reply)
	code, reply = s.put(t, "["+plain+","+heavy("1")+"]")
	require.Equal(t, 429, code, reply)
	require.Empty(t, reply.Accepted)

	turns := limits.NewTurns(limits.TurnOptions{N: 1, Name: "queries", Wait: time.Millisecond, Clients: limits.NewClients(nil)})
	s = serve(t, func(o *api.Options) { o.Turns.Queries, o.Door = turns, admin{} })
	give, err := turns.Take(t.Context(), "")
	require.NoError(t, err)
	code, reply = s.put(t, plain)
	require.Equal(t, 200, code, reply)
	code, reply = s.put(t, pattern)
	require.Equal(t, 503, code, reply)
	line := `{"annotation":{"id":"n","start":1,"end":1,"text":"x","selector":"cpu{source=~\"web-.*\"}"}}`
	imported := apitest.Send(t, s, wire.ImportPath, strings.NewReader(line))
	require.Equal(t, 503, imported.Code, imported.Body)
	give()
	imported = apitest.Send(t, s, wire.ImportPath, strings.NewReader(line))
	require.Equal(t, 200, imported.Code, imported.Body)
	for range 2 { // it gives its turn back
		code, reply = s.put(t, pattern)
		require.Equal(t, 200, code, reply)
	}

	left, leave := context.WithCancel(t.Context())
	leave()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequestWithContext(left, http.MethodPost, wire.AnnotationsPath, strings.NewReader(plain)))
	require.Equal(t, 499, w.Code, w.Body)
}

// refusing is a store that is away.
type refusing struct{ annotations.Store }

func (refusing) PutItems(context.Context, []storage.Item) error {
	return storage.ErrUnavailable
}

// TestStoreAway: an annotation that is not durable is not acknowledged.
func TestStoreAway(t *testing.T) {
	clk := clock.NewSimulated(apitest.Now)
	s := serveFrom(t, refusing{apitest.Store(clk)}, clk)
	w := apitest.Send(t, s, wire.AnnotationsPath, strings.NewReader(`{"text":"x"}`))
	require.Equal(t, 503, w.Code)
	require.NotEmpty(t, w.Header().Get("Retry-After"))
	require.Contains(t, w.Body.String(), `"accepted":[]`)
}

// TestBrokenBody: of a body whose client goes, what has arrived is kept.
func TestBrokenBody(t *testing.T) {
	s := serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, wire.AnnotationsPath, apitest.CutOff([]byte(`[{"text":"first"},{"te`)))
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	require.Equal(t, 400, w.Code)
	require.Equal(t, []string{"first"}, texts(s.find(t)))
}
