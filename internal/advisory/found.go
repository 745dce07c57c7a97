package advisory

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
)

// Runtime asks an OCI runtime for its version by running it.
func Runtime(ctx context.Context, binary string) (Found, error) {
	out, err := exec.CommandContext(ctx, binary, "--version").Output() //nolint:gosec // the operator's own choice
	if err != nil {
		return Found{}, fmt.Errorf("%s --version: %w", binary, err)
	}
	return parseRuntime(string(out))
}

// parseRuntime reads "runc version 1.1.5+ds1" and the lines after it, of which
// Debian uses "commit:" for the version of its package. crun and runsc begin
// the same way.
func parseRuntime(out string) (Found, error) {
	first, rest, _ := strings.Cut(out, "\n")
	name, v, ok := strings.Cut(strings.TrimSpace(first), " version ")
	if !ok || name == "" || v == "" {
		return Found{}, fmt.Errorf("no version in %q", first)
	}
	f := Found{Component: name, Version: v}
	for line := range strings.Lines(rest) {
		if commit, ok := strings.CutPrefix(strings.TrimSpace(line), "commit:"); ok {
			f.Package = packageIn(strings.TrimSpace(commit), v)
		}
	}
	return f, nil
}

// Daemon is containerd as its API names itself. Debian puts the version of its
// package where others have a commit.
func Daemon(v, revision string) Found {
	return Found{Component: Containerd, Version: v, Package: packageIn(revision, v)}
}

// packageIn returns the first of these that is the version of a package.
func packageIn(candidates ...string) string {
	for _, c := range candidates {
		if distribution.MatchString(c) {
			return c
		}
	}
	return ""
}

// Kernel is the running kernel. Its release names the series; the version that
// it is built from stands elsewhere on Debian and Ubuntu.
func Kernel() (Found, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Found{}, fmt.Errorf("uname: %w", err)
	}
	signature, _ := os.ReadFile("/proc/version_signature") // Ubuntu's own
	return kernel(unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Version[:]), string(signature)), nil
}

// debianKernel is in uname's version: "#1 SMP PREEMPT_DYNAMIC Debian 6.12.48-1
// (2025-09-20)".
var debianKernel = regexp.MustCompile(`Debian ([0-9][^ ]*)`)

func kernel(release, build, signature string) Found {
	f := Found{Component: Linux, Version: release}
	if m := debianKernel.FindStringSubmatch(build); m != nil {
		// Debian follows the stable series, release by release.
		f.Version = m[1]
		return f
	}
	// "Ubuntu 6.8.0-45.45-generic 6.8.12"
	if fields := strings.Fields(signature); len(fields) == 3 {
		f.Version, f.Package = fields[2], fields[0]+" "+fields[1]
		return f
	}
	f.Package = packageIn(release, build)
	return f
}
