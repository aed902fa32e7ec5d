// Package debian finds programs of others that Quern is tested and measured with: installed ones,
// or those of a Debian package, which it unpacks without installing anything.
package debian

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Program is a program and the package that contains it.
type Program struct {
	Package string
	// Path is where the package installs it, such as /usr/bin/prometheus.
	Path string
	// Needs are packages with libraries that the program needs and the system may lack.
	Needs []string
}

// Found is the location of a program.
type Found struct {
	Path string
	// Root is where its package was unpacked, "/" if it is installed. The program's other files lie
	// below it.
	Root string
}

// Find looks for an installed program, then fetches its package into the user's cache. The error
// says what to install.
func (p Program) Find(ctx context.Context) (Found, error) {
	if _, err := os.Stat(p.Path); err == nil {
		return Found{p.Path, "/"}, nil
	}
	if path, err := exec.LookPath(filepath.Base(p.Path)); err == nil {
		return Found{path, "/"}, nil
	}
	root, err := p.unpacked(ctx)
	if err != nil {
		return Found{}, fmt.Errorf("there is no %s, and it could not be fetched; do `apt-get install %s`: %w", p.Path, p.Package, err)
	}
	return Found{filepath.Join(root, p.Path), root}, nil
}

// Command returns a command that runs the program with the libraries of its packages.
func (f Found) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, f.Path, args...)
	if f.Root != "/" {
		libs, _ := filepath.Glob(filepath.Join(f.Root, "usr/lib/*-linux-gnu"))
		path := filepath.Join(f.Root, "usr/lib")
		for _, dir := range libs {
			path += ":" + dir
		}
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+path)
	}
	return cmd
}

func (p Program) unpacked(ctx context.Context) (root string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	cache = filepath.Join(cache, "quern", "debian")
	root = filepath.Join(cache, p.Package)
	if _, err := os.Stat(filepath.Join(root, p.Path)); err == nil {
		return root, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	temp, err := os.MkdirTemp(cache, "fetch-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(temp) //nolint:errcheck // it is a cache
	// As the current user: apt's own user may not write here.
	get := exec.CommandContext(ctx, "apt-get", append([]string{"-o", "APT::Sandbox::User=root", "download", p.Package}, p.Needs...)...)
	get.Dir = temp
	if out, err := get.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", get, err, out)
	}
	debs, err := filepath.Glob(filepath.Join(temp, "*.deb"))
	if err != nil {
		return "", err
	}
	into := filepath.Join(temp, "root")
	for _, deb := range debs {
		unpack := exec.CommandContext(ctx, "dpkg", "-x", deb, into)
		if out, err := unpack.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w: %s", unpack, err, out)
		}
	}
	if _, err := os.Stat(filepath.Join(into, p.Path)); err != nil {
		return "", fmt.Errorf("package %s: %w", p.Package, err)
	}
	if err := os.Rename(into, root); err != nil && !os.IsExist(err) {
		if _, missing := os.Stat(filepath.Join(root, p.Path)); missing != nil {
			return "", err
		}
	}
	return root, nil
}
