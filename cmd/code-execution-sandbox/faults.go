package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"code-execution-sandbox/config"
	"code-execution-sandbox/internal/advisory"
	"code-execution-sandbox/internal/runner"
)

// versionTimeout bounds the question for a version.
const versionTimeout = 5 * time.Second

// findRuntime asks the OCI runtime for its version.
func findRuntime(ctx context.Context, cfg config.Config) (advisory.Found, error) {
	binary := cmp.Or(cfg.Containerd.RuntimeBinary, "runc") // the default of the shim for runc
	if cfg.Containerd.RuntimeBinary == "" && runner.SecondKernel(cfg.Containerd.Runtime) {
		binary = "runsc"
	}
	ctx, cancel := context.WithTimeoutCause(ctx, versionTimeout, errors.New("it does not answer"))
	defer cancel()
	return advisory.Runtime(ctx, binary)
}

// knownFaults are those of the kernel, of containerd and of the runtime. What
// does not tell its version is left out, with an error.
func (h *host) knownFaults(ctx context.Context) ([]advisory.Finding, error) {
	var found []advisory.Found
	var errs []error
	add := func(f advisory.Found, err error) {
		if err != nil {
			errs = append(errs, err)
			return
		}
		found = append(found, f)
	}
	add(advisory.Kernel())
	add(findRuntime(ctx, h.cfg))
	versionCtx, cancel := context.WithTimeoutCause(ctx, versionTimeout, errors.New("containerd does not answer"))
	defer cancel()
	if v, err := h.client.Version(versionCtx); err != nil {
		errs = append(errs, fmt.Errorf("version of containerd: %w", err))
	} else {
		add(advisory.Daemon(v.Version, v.Revision), nil)
	}
	findings, err := advisory.Look(found, int(h.cgroups.Version))
	return findings, errors.Join(append(errs, err)...)
}

// split parts the faults that can matter from the ids of those that no program
// can use.
func split(findings []advisory.Finding) (open []advisory.Finding, keptOut []string) {
	for _, f := range findings {
		if f.KeptOut != "" {
			keptOut = append(keptOut, f.ID)
		} else {
			open = append(open, f)
		}
	}
	return open, keptOut
}

// checkFaults looks for known faults by version.
func (h *host) checkFaults(ctx context.Context, out *report) {
	findings, err := h.knownFaults(ctx)
	open, keptOut := split(findings)
	told := []error{err}
	var remedies []string
	for _, f := range open {
		what := fmt.Errorf("%s in %s: %s", f.ID, f.In, f.What)
		if f.MaybeFixed {
			what = fmt.Errorf("%w (by its version; the distribution may have fixed it)", what)
		}
		told = append(told, what)
		if !slices.Contains(remedies, f.Do) {
			remedies = append(remedies, f.Do)
		}
	}
	switch err := errors.Join(told...); {
	case err != nil:
		out.warn("known-faults", remedied{err, strings.Join(remedies, "; ")})
	case len(keptOut) > 0:
		out.add("known-faults", nil, "none that a program could use; %d that none can: %s", len(keptOut), strings.Join(keptOut, ", "))
	default:
		out.add("known-faults", nil, "none by the versions found")
	}
}

// logFaults tells once what is known of the versions found.
func (h *host) logFaults(ctx context.Context) {
	findings, err := h.knownFaults(ctx)
	if err != nil {
		h.log.Warn("not every version is known", "error", err)
	}
	open, keptOut := split(findings)
	for _, f := range open {
		h.log.Warn("known fault", "id", f.ID, "in", f.In.String(), "what", f.What, "do", f.Do, "may_be_fixed", f.MaybeFixed)
	}
	if len(keptOut) > 0 {
		h.log.Debug("known faults that no program in a sandbox can use", "ids", strings.Join(keptOut, " "))
	}
}
