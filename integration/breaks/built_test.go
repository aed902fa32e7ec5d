package breaks

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// envBreak is the variable that chooses a break in the programs that build builds: its index in
// list. Without it they are whole.
const envBreak = "QUERN_BREAK"

// build builds the tests of all packages of the list into a directory, each with all breaks in it.
// A build for each break would take ten times as long.
func build(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	args := []string{"test", "-c", "-vet=off", "-tags=invariants", "-ldflags=-w", "-o", dir + "/", "-overlay=" + overlay(t)}
	for _, b := range list {
		if pkg := "./" + b.pkg; !slices.Contains(args, pkg) {
			args = append(args, pkg)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return dir
}

// overlay writes copies of the broken files, and returns the name of the overlay file that makes the
// go command build the copies instead.
func overlay(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	replace := map[string]string{}
	write := func(file string, content []byte) {
		file, err := filepath.Abs(filepath.Join(root, file))
		require.NoError(t, err)
		name := filepath.Join(dir, url.PathEscape(file)) // no two have the same
		require.NoError(t, os.WriteFile(name, content, 0o600))
		replace[file] = name
	}
	for _, b := range list {
		file, err := filepath.Abs(filepath.Join(root, b.file))
		require.NoError(t, err)
		if replace[file] != "" {
			continue
		}
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		broken, name, err := breakable(b.file, string(source))
		require.NoError(t, err)
		write(b.file, []byte(broken))
		write(filepath.Join(filepath.Dir(b.file), "quern_break.go"),
			fmt.Appendf(nil, "package %s\n\nimport \"os\"\n\nvar quernBreak = os.Getenv(%q)\n", name, envBreak))
	}
	content, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	require.NoError(t, err)
	name := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(name, content, 0o600))
	return name
}

// breakable returns a source file in which quernBreak chooses between each function and its broken
// copies, and the name of its package.
func breakable(file, source string) (out, pkg string, err error) {
	f, err := parser.ParseFile(token.NewFileSet(), file, source, parser.SkipObjectResolution)
	if err != nil {
		return "", "", err
	}
	copies := map[*ast.FuncDecl][]functionCopy{}
	for i, b := range list {
		if b.file != file {
			continue
		}
		c, fn, err := b.broken(f, source)
		if err != nil {
			return "", "", fmt.Errorf("the break %q: %w", b.name, err)
		}
		c.id, c.suffix = strconv.Itoa(i), "broken"+strconv.Itoa(i)
		copies[fn] = append(copies[fn], c)
	}
	// A file has its functions in the order of their positions, counted from 1.
	var text strings.Builder
	at := 0
	for _, decl := range f.Decls {
		if fn, ok := decl.(*ast.FuncDecl); ok && copies[fn] != nil {
			text.WriteString(source[at : fn.Pos()-1])
			text.WriteString(chosen(fn, source, copies[fn]))
			at = int(fn.End() - 1)
		}
	}
	return text.String() + source[at:], f.Name.Name, nil
}

// functionCopy is a function with a break. Its name is that of the function with a suffix.
type functionCopy struct{ id, suffix, body string }

// broken returns the body with the break, and the function whose body it is.
func (b *brk) broken(f *ast.File, source string) (c functionCopy, fn *ast.FuncDecl, err error) {
	if n := strings.Count(source, b.old); n != 1 {
		return c, nil, fmt.Errorf("it is out of date: %s has this %d times:\n%s", b.file, n, b.old)
	}
	// What old and new share around the difference may reach into other functions.
	start := strings.Index(source, b.old)
	end, with := start+len(b.old), b.new
	for start < end && with != "" && source[start] == with[0] {
		start, with = start+1, with[1:]
	}
	for start < end && with != "" && source[end-1] == with[len(with)-1] {
		end, with = end-1, with[:len(with)-1]
	}
	for _, decl := range f.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		if begin, over := int(fn.Body.Pos()-1), int(fn.Body.End()-1); begin < start && end < over {
			return functionCopy{body: source[begin:start] + with + source[end:over]}, fn, nil
		}
	}
	return c, nil, fmt.Errorf("it is not within a function of %s", b.file)
}

// chosen returns a function that calls one of its copies, or itself as it was, and the text of all
// of these.
func chosen(fn *ast.FuncDecl, source string, copies []functionCopy) string {
	part := func(n ast.Node) string { return source[n.Pos()-1 : n.End()-1] }
	callee, receiver := fn.Name.Name, ""
	if fn.Recv != nil {
		receiver = part(fn.Recv) + " "
		callee = "quernReceiver." + callee
	}
	var params, args []string
	for _, field := range fn.Type.Params.List {
		for range max(1, len(field.Names)) {
			name := fmt.Sprintf("quernParam%d", len(args))
			params = append(params, name+" "+part(field.Type))
			if _, variadic := field.Type.(*ast.Ellipsis); variadic {
				name += "..."
			}
			args = append(args, name)
		}
	}
	results, call := "", "%s_%s(%s)\n\t\treturn"
	if fn.Type.Results != nil {
		results, call = part(fn.Type.Results), "return %s_%s(%s)"
	}
	calls := func(suffix string) string { return fmt.Sprintf(call, callee, suffix, strings.Join(args, ", ")) }

	var head, bodies strings.Builder
	for _, c := range copies {
		fmt.Fprintf(&head, "\tif quernBreak == %q {\n\t\t%s\n\t}\n", c.id, calls(c.suffix))
	}
	signature := source[fn.Type.Params.Pos()-1 : fn.Type.End()-1]
	for _, c := range append(copies, functionCopy{suffix: "whole", body: part(fn.Body)}) {
		fmt.Fprintf(&bodies, "\n\nfunc %s%s_%s%s %s", receiver, fn.Name.Name, c.suffix, signature, c.body)
	}
	if fn.Recv != nil {
		receiver = "(quernReceiver " + part(fn.Recv.List[0].Type) + ") "
	}
	return fmt.Sprintf("func %s%s(%s) %s {\n%s\t%s\n}%s", receiver, fn.Name.Name, strings.Join(params, ", "), results, head.String(), calls("whole"), bodies.String())
}

// TestPatterns: each entry of the list is up to date. It builds nothing.
func TestPatterns(t *testing.T) {
	overlay(t)
}
