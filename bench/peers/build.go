package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

const (
	victoriaModule, victoriaVersion = "github.com/VictoriaMetrics/VictoriaMetrics", "v1.151.0"
	prometheusModule                = "github.com/prometheus/prometheus"
)

// buildQuern builds Quern with the given tags into dir, and returns the path of the program.
func buildQuern(ctx context.Context, dir string, tags ...string) (string, error) {
	program := filepath.Join(dir, strings.Join(append([]string{"quern"}, tags...), "-"))
	return program, goTool(ctx, ".", "build", "-tags", strings.Join(tags, ","), "-o", program, "./cmd/quern")
}

// buildPrometheus builds the Prometheus whose PromQL Quern uses into dir, and returns the path of the program.
func buildPrometheus(ctx context.Context, dir string) (string, error) {
	version, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Version}}", prometheusModule).Output()
	if err != nil {
		return "", fmt.Errorf("version of %s: %w", prometheusModule, err)
	}
	return filepath.Join(dir, "prometheus"),
		buildModule(ctx, dir, prometheusModule, strings.TrimSpace(string(version)), []string{"cmd/prometheus"}, "remove_all_sd")
}

// buildVictoria builds VictoriaMetrics into dir, and returns the path of the program.
func buildVictoria(ctx context.Context, dir string) (string, error) {
	return filepath.Join(dir, "victoria-metrics"), buildModule(ctx, dir, victoriaModule, victoriaVersion, []string{"app/victoria-metrics"})
}

// buildModule builds programs of a module into dir, which it makes. It makes a module that needs exactly this version, so that the
// versions of what both need are not those of Quern. The tags leave parts out that are not measured.
func buildModule(ctx context.Context, dir, module, version string, programs []string, tags ...string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	mod := fmt.Sprintf("module peer\n\ngo 1.23\n\nrequire %s %s\n", module, version)
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(mod), 0o600); err != nil {
		return err
	}
	args := []string{"build", "-mod=mod", "-tags", strings.Join(tags, ","), "-o", dir + "/"}
	for _, program := range programs {
		args = append(args, path.Join(module, program))
	}
	return goTool(ctx, dir, args...)
}

func goTool(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return nil
}
