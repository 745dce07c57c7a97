// Package daemontest gives tests a real containerd of their own.
package daemontest

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"golang.org/x/sys/unix"

	"code-execution-sandbox/internal/daemon"
)

// Namespace is the default namespace of the clients handed out.
const Namespace = "code-execution-sandbox-test"

// EnvBinaries names the variable with a directory that holds another
// containerd and its shim: Each then runs its test with that one too.
const EnvBinaries = "CES_CONTAINERD_BIN"

// Each runs test as a subtest with the containerd in PATH, and with the one
// that EnvBinaries names.
func Each(t *testing.T, test func(t *testing.T, binary string)) {
	t.Run("host", func(t *testing.T) { test(t, "containerd") })
	if dir := os.Getenv(EnvBinaries); dir != "" {
		t.Run("other", func(t *testing.T) { test(t, filepath.Join(dir, "containerd")) })
	}
}

// Require ends the test unless it runs as root and containerd is installed: it
// is skipped on a developer's machine, and fails where CI=true.
func Require(t testing.TB) {
	t.Helper()
	_, err := exec.LookPath("containerd")
	if os.Geteuid() == 0 && err == nil {
		return
	}
	const why = "needs root and containerd"
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// Start starts binary, or the containerd in PATH when it is empty, on
// directories of its own, and returns it with a client for Namespace. When the
// test ends both end, and nothing may be left mounted.
func Start(t testing.TB, binary string) (*daemon.Daemon, *containerd.Client) {
	t.Helper()
	Require(t)
	d, err := daemon.Start(t.Context(), Options(t, binary))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeoutCause(context.Background(), time.Minute, errors.New("containerd does not end"))
		defer cancel()
		if err := d.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	client, err := containerd.New(d.Address(), containerd.WithDefaultNamespace(Namespace))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return d, client
}

// Options are what Start starts a daemon with. The directories are removed
// when the test ends.
func Options(t testing.TB, binary string) daemon.Options {
	t.Helper()
	// Not t.TempDir: a socket's path has 107 bytes at most.
	dir, err := os.MkdirTemp("", "ces")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("daemon left something: %v", err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	return daemon.Options{
		Binary: binary,
		Root:   filepath.Join(dir, "root"),
		State:  filepath.Join(dir, "run"),
		NoSync: true,
		Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
}
