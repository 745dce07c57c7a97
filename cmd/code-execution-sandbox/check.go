package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"code-execution-sandbox/config"
	"code-execution-sandbox/internal/cgroup"
	"code-execution-sandbox/internal/runner"
)

// finding is one answer of check.
type finding struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Detail is what was found; on failure what to do about it.
	Detail string `json:"detail"`
}

func checkCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Tell whether this host is fit, and what to do where it is not",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			findings := check(cmd.Context(), a)
			fit := true
			for _, f := range findings {
				fit = fit && f.OK
			}
			if asJSON {
				out := json.NewEncoder(os.Stdout)
				out.SetIndent("", "  ")
				if err := out.Encode(findings); err != nil {
					return err
				}
			} else {
				for _, f := range findings {
					fmt.Printf("%-5s %-14s %s\n", map[bool]string{true: "ok", false: "FAIL"}[f.OK], f.Name, f.Detail)
				}
			}
			if !fit {
				return exitCode(1)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// check asks one thing after the other; the first that fails ends what rests
// on it.
func check(ctx context.Context, a *app) []finding {
	var out []finding
	add := func(name string, err error, format string, args ...any) bool {
		detail := fmt.Sprintf(format, args...)
		if err != nil {
			detail = err.Error()
		}
		out = append(out, finding{name, err == nil, strings.ReplaceAll(detail, "\n", "; ")})
		return err == nil
	}
	cfg, err := a.config()
	source := cfg.File
	if source == "" {
		source = "defaults, no file"
	}
	if !add("configuration", err, "%s", source) {
		return out
	}
	_, err = cfg.Tokens()
	add("token", err, "set")
	add("runtime", runtimeVersion(ctx, cfg), "%s runs", runtimeBinary(cfg))
	if cg, err := cgroup.Detect(); add("cgroup", err, "") {
		out[len(out)-1].Detail = fmt.Sprintf("version %d", cg.Version)
	}
	h, err := connect(ctx, cfg, logger(quiet(cfg.Logging), os.Stderr), false)
	if !add("containerd", err, "") {
		return out
	}
	defer func() { _ = h.Close() }()
	v, err := h.client.Version(ctx)
	if !add("containerd", err, "%s at %s", v.Version, h.address) {
		return out
	}
	out = append(out[:len(out)-2], out[len(out)-1]) // one line, the one with the version
	opts := h.runnerOptions()
	opts.SelfTest = true
	r, err := runner.New(opts)
	if !add("run directory", err, "%s", cfg.RunDir) {
		return out
	}
	start := time.Now()
	err = r.Refresh(ctx)
	img, _ := r.Image()
	if add("image", err, "%s %s", img.Name, img.Digest) {
		add("self-test", nil, "every protection holds, seen from inside, in %d ms", time.Since(start).Milliseconds())
	}
	closeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout) //nolint:forbidigo // the error says enough
	defer cancel()
	add("clean-up", r.Close(closeCtx), "nothing left behind")
	return out
}

// runtimeBinary is the OCI runtime as far as it is known here.
func runtimeBinary(cfg config.Config) string {
	if cfg.Containerd.RuntimeBinary != "" {
		return cfg.Containerd.RuntimeBinary
	}
	return "runc"
}

// runtimeVersion runs the OCI runtime once.
func runtimeVersion(ctx context.Context, cfg config.Config) error {
	if cfg.Containerd.Runtime != config.Default().Containerd.Runtime {
		return nil // another shim knows its own runtime
	}
	if err := exec.CommandContext(ctx, runtimeBinary(cfg), "--version").Run(); err != nil { //nolint:gosec // the operator's own choice
		return fmt.Errorf("%s does not run (%w): install it, for example with apt-get install runc", runtimeBinary(cfg), err)
	}
	return nil
}
