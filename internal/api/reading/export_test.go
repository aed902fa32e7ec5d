package reading

import "net/http"

// Query answers with lines, in a turn of queries.
func (t Turns) Query(answer func(writeLine func(string) error) error) http.Handler {
	return t.query(func(out *lines, _ *http.Request) error {
		return answer(func(line string) error {
			out.RawStr(line)
			return out.end()
		})
	})
}
