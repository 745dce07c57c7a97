package conformance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"code-execution-sandbox/test/harness"
)

// arch is this machine's architecture in the names of npm packages.
var arch = map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]

// The sources of the folder that the packages are installed into: modules find
// packages beside themselves only.
//
//go:embed package.json package-lock.json *.mjs
var sources embed.FS

var errNoNPM = errors.New("npm is not in PATH; install it (Debian, Ubuntu: apt-get install npm)")

// packages installs what package-lock.json lists, where that has changed, and
// returns the folder.
var packages = sync.OnceValues(func() (string, error) {
	dir, err := filepath.Abs("../../.make/conformance")
	if err != nil {
		return "", err
	}
	files, err := sources.ReadDir(".")
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, file := range files {
		text, err := sources.ReadFile(file.Name())
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(dir, file.Name()), text, 0o644); err != nil {
			return "", err
		}
		if strings.HasSuffix(file.Name(), ".json") {
			sum.Write(text)
		}
	}
	// Written last: without it, or with another one, nothing is installed.
	stamp, want := filepath.Join(dir, "installed"), fmt.Sprintf("%x", sum.Sum(nil))
	if have, err := os.ReadFile(stamp); err == nil && string(have) == want {
		return dir, nil
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return "", errNoNPM
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), 8*time.Minute, errors.New("npm takes too long"))
	defer cancel()
	// The scripts of packages would fetch more from elsewhere; none is needed.
	ci := exec.CommandContext(ctx, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	ci.Dir = dir
	if out, err := ci.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci in %s: %w: %s", dir, err, out)
	}
	return dir, os.WriteFile(stamp, []byte(want), 0o644)
})

// in returns the path of something in the installed packages.
func in(t *testing.T, path ...string) string {
	t.Helper()
	dir, err := packages()
	if errors.Is(err, errNoNPM) && os.Getenv("CI") != "true" {
		t.Skip("SKIPPED, nothing was tested: " + err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	found := filepath.Join(append([]string{dir, "node_modules"}, path...)...)
	if _, err := os.Stat(found); err != nil {
		t.Fatal(err)
	}
	return found
}

// client is a client that runs to its end, in a home of its own and with no way
// to the outside.
type client struct {
	*exec.Cmd
	home           string
	stdout, stderr bytes.Buffer
}

// command returns the client of a program and its arguments; a script runs in
// the installed node.
func command(t *testing.T, program string, args ...string) *client {
	t.Helper()
	node := in(t, "node-linux-"+arch, "bin", "node")
	if strings.HasSuffix(program, "js") {
		program, args = node, append([]string{program}, args...)
	}
	home := t.TempDir()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 4*time.Minute, errors.New("the client does not end"))
	t.Cleanup(cancel)
	c := &client{Cmd: exec.CommandContext(ctx, program, args...), home: home}
	c.Dir = home
	c.WaitDelay = 5 * time.Second
	c.Env = []string{
		"HOME=" + home, "TMPDIR=" + home, "PATH=" + filepath.Dir(node) + ":/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "TERM=dumb",
		"SANDBOX_MCP_TOKEN=" + harness.Token,
		// A test calls nobody: port 9 discards.
		"HTTP_PROXY=http://127.0.0.1:9", "HTTPS_PROXY=http://127.0.0.1:9", "NO_PROXY=127.0.0.1,localhost",
	}
	c.Stdout, c.Stderr = &c.stdout, &c.stderr
	return c
}

// exit runs the client and returns its exit code.
func (c *client) exit(t *testing.T) int {
	t.Helper()
	var exited *exec.ExitError
	if err := c.Run(); err != nil && !errors.As(err, &exited) {
		t.Fatalf("%s: %v: %s", c.Path, err, c.stderr.String())
	}
	return c.ProcessState.ExitCode()
}

// write puts a file into the client's home.
func (c *client) write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(c.home, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
