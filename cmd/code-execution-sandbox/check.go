package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"code-execution-sandbox/config"
	"code-execution-sandbox/internal/cgroup"
	"code-execution-sandbox/internal/runner"
	"code-execution-sandbox/internal/sandbox"
)

// status says how a finding ended.
type status string

const (
	statusOK      status = "ok"
	statusWarning status = "warning" // programs run, but it should be seen to
	statusFailed  status = "failed"  // none runs
	statusSkipped status = "skipped" // what it rests on has failed
)

// finding is one answer of check.
type finding struct {
	Name   string `json:"name"`
	Status status `json:"status"`
	// Detail is what was found, Remedy what to do unless it is well.
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

// findings are the names of all that check looks at, in the order of the
// report. They are stable: monitoring matches them. The remedy is what to do
// about a finding that knows no better one of its own.
var findings = []finding{
	{Name: "configuration", Remedy: "correct the file; config/config.toml.dist lists every key with its range"},
	{Name: "token", Remedy: "put the variable into .env (`make env` writes SANDBOX_MCP_TOKEN there), or set auth_token_file"},
	{Name: "cgroup", Remedy: "mount cgroup v2 at /sys/fs/cgroup, or v1 with the controllers memory, pids and cpu"},
	{Name: "runtime", Remedy: "install the runtime, such as runc 1.1.5 or newer with apt-get install runc, or correct containerd.runtime_binary"},
	{Name: "memory", Remedy: "lower sandbox.max_concurrent or sandbox.memory_limit, or give the host more memory"},
	{Name: "containerd", Remedy: "start it, for example with systemctl start containerd; containerd.address names its socket, and \"private\" starts one of our own"},
	{Name: "protections", Remedy: "see the detail; sandbox.allow_missing lets this host do without one by name"},
	{Name: "known-faults", Remedy: "update what is named"},
	{Name: "run-directory", Remedy: "set run_dir to an absolute path on a tmpfs that root can write"},
	{Name: "image", Remedy: "import the runtime image: make docker-build import (with PROFILE=slim and CONFIG=FILE where they are used), or docker save IMAGE | code-execution-sandbox image import -"},
	{Name: "self-test", Remedy: "a protection does not hold, a module of pool.preload is not in the image, or a sandbox does not start; nothing is served until it does: see the detail, and containerd's log where that says too little"},
	{Name: "leftovers", Remedy: "a server that is not alive any more left them: its next start removes them, and so does code-execution-sandbox sweep"},
	{Name: "clean-up", Remedy: "run code-execution-sandbox sweep; if that does not help, restart containerd and run it again"},
}

// report is what check prints.
type report struct {
	// Fit is true when programs can run here.
	Fit      bool      `json:"fit"`
	Version  string    `json:"version"`
	Findings []finding `json:"findings"`
}

// remedied is an error that knows what to do about it.
type remedied struct {
	error
	remedy string
}

func (e remedied) Unwrap() error { return e.error }

// add records a finding, one of those above: failed with err, else well with
// the detail.
func (r *report) add(name string, err error, format string, args ...any) bool {
	f := finding{Name: name, Status: statusOK, Detail: fmt.Sprintf(format, args...)}
	if err != nil {
		f.Status, f.Detail = statusFailed, err.Error()
	}
	r.put(f, err)
	return err == nil
}

// warn records a finding that should be seen to.
func (r *report) warn(name string, err error) {
	r.put(finding{Name: name, Status: statusWarning, Detail: err.Error()}, err)
}

func (r *report) put(f finding, err error) {
	f.Detail = strings.ReplaceAll(f.Detail, "\n", "; ")
	if own := (remedied{}); errors.As(err, &own) {
		f.Remedy = own.remedy
	}
	i := slices.IndexFunc(findings, func(known finding) bool { return known.Name == f.Name })
	if err != nil && f.Remedy == "" {
		f.Remedy = findings[i].Remedy
	}
	r.Findings = append(r.Findings, f)
}

// complete adds what was not come to, puts all in order, and decides.
func (r *report) complete() {
	r.Fit = true
	var sorted []finding
	for _, known := range findings {
		f := finding{Name: known.Name, Status: statusSkipped, Detail: "rests on what failed"}
		if i := slices.IndexFunc(r.Findings, func(found finding) bool { return found.Name == known.Name }); i >= 0 {
			f = r.Findings[i]
		}
		r.Fit = r.Fit && (f.Status == statusOK || f.Status == statusWarning)
		sorted = append(sorted, f)
	}
	r.Findings = sorted
}

// print writes the report for a person.
func (r *report) print(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range r.Findings {
		word := string(f.Status)
		if f.Status == statusFailed {
			word = "FAILED" // must not be overlooked
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\n", word, f.Name, f.Detail)
		if f.Remedy != "" {
			_, _ = fmt.Fprintf(table, "\t\t-> %s\n", f.Remedy)
		}
	}
	return table.Flush()
}

func checkCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Tell whether this host is fit, and what to do where it is not",
		Long: `Tell whether this host is fit, and what to do where it is not.

Ends with 0 when programs can run here, warnings or not, and with 1 when they
cannot. A server may run at the same time.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r := &report{Version: version}
			check(cmd.Context(), a, r)
			r.complete()
			if asJSON {
				out := json.NewEncoder(os.Stdout)
				out.SetIndent("", "  ")
				out.SetEscapeHTML(false)
				if err := out.Encode(r); err != nil {
					return err
				}
			} else if err := r.print(os.Stdout); err != nil {
				return err
			}
			if !r.Fit {
				return exitCode(1)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, `print JSON: {"fit", "version", "findings": [{"name", "status", "detail", "remedy"}]}`)
	return cmd
}

// check asks one thing after the other; the first that fails ends what rests
// on it.
func check(ctx context.Context, a *app, out *report) {
	cfg, err := a.config()
	source := cfg.File
	if source == "" {
		source = "defaults, no file"
	}
	if !out.add("configuration", err, "%s", source) {
		return
	}
	// Programs can run without one, and the server may get its own elsewhere.
	if _, err = cfg.Tokens(); errors.Is(err, config.ErrNoToken) {
		out.warn("token", err)
	} else {
		out.add("token", err, "set")
	}
	checkCgroup(out)
	runtime, err := runtimeVersion(ctx, cfg)
	out.add("runtime", err, "%s", runtime)
	checkMemory(cfg, out)

	h, err := connect(ctx, cfg, logger(quiet(cfg.Logging), os.Stderr), false)
	if err != nil {
		out.add("containerd", err, "")
		return
	}
	defer func() { _ = h.Close() }()
	v, err := h.client.Version(ctx)
	if !out.add("containerd", err, "%s at %s", v.Version, h.address) {
		return
	}
	h.checkProtections(out)
	h.checkFaults(ctx, out)
	opts := h.runnerOptions()
	opts.SelfTest = true
	r, err := runner.New(opts)
	if !out.add("run-directory", err, "%s", cfg.RunDir) {
		return
	}
	start := time.Now()
	err = r.Refresh(ctx)
	img, found := r.Image()
	switch {
	case err == nil:
		out.add("image", nil, "%s %s", img.Name, img.Digest)
		out.add("self-test", nil, "every protection holds, seen from inside, in %d ms", time.Since(start).Milliseconds())
	case failedCheck(err) == "selftest":
		if found {
			out.add("image", nil, "%s %s", img.Name, img.Digest)
		} else {
			out.add("image", nil, "%s", cfg.Sandbox.Image)
		}
		out.add("self-test", err, "")
	default:
		out.add("image", err, "")
	}
	n, err := r.Strays(ctx)
	if err == nil && n > 0 {
		out.warn("leftovers", fmt.Errorf("%d sandboxes that nobody owns", n))
	} else {
		out.add("leftovers", err, "none of an earlier server")
	}
	closeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout) //nolint:forbidigo // the error says enough
	defer cancel()
	out.add("clean-up", r.Close(closeCtx), "nothing left of this check")
}

// checkCgroup looks at the controllers that bound a sandbox.
func checkCgroup(out *report) {
	cg, err := cgroup.Detect()
	if err == nil {
		if missing := cg.Missing(); len(missing) > 0 {
			err = fmt.Errorf("version %d without the controllers %s: no sandbox can be bounded", cg.Version, strings.Join(missing, ", "))
		}
	}
	version := 0
	if err == nil {
		version = int(cg.Version)
	}
	out.add("cgroup", err, "version %d", version)
}

// checkMemory compares what the programs may take with what there is: where
// they can take all, the host's own killer chooses who dies.
func checkMemory(cfg config.Config, out *report) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		out.warn("memory", fmt.Errorf("ask the kernel for the size of memory: %w", err))
		return
	}
	const mib = 1 << 20
	have := info.Totalram * uint64(info.Unit) / mib
	want := uint64(cfg.Sandbox.MemoryLimit) / mib * uint64(cfg.Sandbox.MaxConcurrent) //nolint:gosec // both are positive, see config
	if want > have {
		out.warn("memory", fmt.Errorf("%d programs at once may take %d MiB, the host has %d MiB", cfg.Sandbox.MaxConcurrent, want, have))
		return
	}
	out.add("memory", nil, "%d programs at once may take %d of %d MiB", cfg.Sandbox.MaxConcurrent, want, have)
}

// failedCheck is the name of the health check that err speaks of, if it does.
func failedCheck(err error) string {
	if notReady := (*sandbox.NotReadyError)(nil); errors.As(err, &notReady) {
		return notReady.Check
	}
	return ""
}

// runtimeBinary is the OCI runtime as far as it is known here.
func runtimeBinary(cfg config.Config) string {
	if cfg.Containerd.RuntimeBinary != "" {
		return cfg.Containerd.RuntimeBinary
	}
	return "runc"
}

// runtimeVersion runs the OCI runtime once and returns the first line it says.
func runtimeVersion(ctx context.Context, cfg config.Config) (string, error) {
	if cfg.Containerd.Runtime != config.Default().Containerd.Runtime {
		return cfg.Containerd.Runtime + ", a shim that knows its own runtime", nil
	}
	said, err := exec.CommandContext(ctx, runtimeBinary(cfg), "--version").Output() //nolint:gosec // the operator's own choice
	if err != nil {
		return "", fmt.Errorf("%s does not run: %w", runtimeBinary(cfg), err)
	}
	first, _, _ := strings.Cut(string(said), "\n")
	return first, nil
}
