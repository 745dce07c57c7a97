package escape

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"code-execution-sandbox/internal/runner"
	"code-execution-sandbox/internal/sandbox"
	"code-execution-sandbox/test/harness"
)

// runtimetest is the conformance test that the specification's authors have
// for the inside of a container. The last release does not build any more.
const runtimetest = "github.com/opencontainers/runtime-tools/cmd/runtimetest@v0.9.1-0.20251114084447-edf4cb3d2116"

// accepted are its tests that fail on purpose, with the reason.
var accepted = map[string]string{
	"has a file at /dev/ptmx (default device)": "no terminal is promised, so no devpts is mounted and the link to it dangles",
}

// withRuntimetest brings the built program in.
func withRuntimetest(s *specs.Spec, _ string) error {
	s.Mounts = append(s.Mounts, specs.Mount{
		Destination: planted, Type: "bind", Source: filepath.Join(os.Getenv(envTree), "runtimetest"), Options: []string{"bind", "ro"},
	})
	return nil
}

// TestRuntimetest holds a sandbox against its own specification, in the eyes of
// a program that is not ours.
func TestRuntimetest(t *testing.T) {
	dir := directory(t)
	build := exec.CommandContext(t.Context(), "go", "install", runtimetest)
	build.Dir = dir // not in this module
	build.Env = append(os.Environ(), "GOBIN="+dir, "CGO_ENABLED=0", "GOFLAGS=-mod=mod")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build runtimetest: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = os.Remove(filepath.Join(dir, "runtimetest")) })

	opts := harness.Options(t)
	spec, err := runner.Spec(opts, sandbox.Python)
	if err != nil {
		t.Fatal(err)
	}
	// It is the program and not the launcher that it looks at.
	spec.Process.Args = []string{planted, "--path", "/tmp/bundle"}
	// Three things end it, and are other rows' matter: the name of a limit that
	// it misspells, the capabilities, for which it reads a file of /proc/sys, and
	// the propagation of mounts, for which it makes a directory in /.
	spec.Process.Rlimits = slices.DeleteFunc(spec.Process.Rlimits, func(l specs.POSIXRlimit) bool { return l.Type == "RLIMIT_SIGPENDING" })
	spec.Process.Capabilities, spec.Linux.RootfsPropagation = nil, ""
	config, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	opts.RuntimeBinary = wrapper(t, mutationRuntimetest, map[string]string{envTree: dir})
	x := newExam(t, opts)
	// The first sandbox of a runner has the ids that the specification shows.
	res := harness.Run(t, x.r, sandbox.Request{
		ID: "test", Language: sandbox.Python, Stdin: config, Timeout: harness.Slow(30 * time.Second),
		Code: "import os, sys\nos.mkdir('/tmp/bundle')\nopen('/tmp/bundle/config.json', 'w').write(sys.stdin.read())\n" +
			"os.execv('" + planted + "', ['" + planted + "', '--path', '/tmp/bundle'])",
	})
	passed := 0
	for line := range strings.Lines(string(res.Stdout)) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "ok ") && !strings.Contains(line, "# SKIP"):
			passed++
		case strings.HasPrefix(line, "not ok "):
			_, what, _ := strings.Cut(line, " - ")
			if accepted[what] == "" {
				t.Error(line)
			}
		}
	}
	t.Logf("%d passed", passed)
	if passed < 50 || ending(res) != "exited 0" {
		t.Errorf("%s, %d passed:\n%s\n%s", ending(res), passed, res.Stdout, res.Stderr)
	}
}
