package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"

	"code-execution-sandbox/config"
	"code-execution-sandbox/image"
	"code-execution-sandbox/internal/cgroup"
	"code-execution-sandbox/internal/daemon"
)

const (
	namespace = "code-execution-sandbox-bench"
	// callTimeout bounds one call of any contender.
	callTimeout = time.Minute
	// firstUID keeps us away from a service that runs here with its defaults.
	firstUID = 0x74000000
)

// bench is one run: two servers, one with its pool as it ships and one without,
// and the contenders.
type bench struct {
	opts       options
	cfg        config.Config // of the servers, as far as it is the same
	dir        string
	client     *containerd.Client
	cgroups    *cgroup.Host
	warm, cold *server
	contenders []contender
	report     report
	closers    []func() error // run in reverse
}

// clients is the largest number of clients at one time.
const clients = 8

func newBench(ctx context.Context, opts options) (_ *bench, err error) {
	b := &bench{opts: opts}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if b.dir, err = os.MkdirTemp("", "cesbench"); err != nil {
		return nil, err
	}
	b.closers = append(b.closers, func() error { return os.RemoveAll(b.dir) })
	if err := os.Chmod(b.dir, 0o711); err != nil { //nolint:gosec // mapped users must pass
		return nil, err
	}
	if b.cgroups, err = cgroup.Detect(); err != nil {
		return nil, err
	}
	settings := append([]string{fmt.Sprintf("containerd.namespace = %q", namespace)}, opts.settings...)
	file := filepath.Join(b.dir, "config.toml")
	if err := os.WriteFile(file, []byte(strings.Join(settings, "\n")+"\n"), 0o600); err != nil {
		return nil, err
	}
	if b.cfg, err = config.Load(file); err != nil {
		return nil, err
	}
	if err := b.importImage(ctx); err != nil {
		return nil, err
	}
	binary, err := b.build(ctx)
	if err != nil {
		return nil, err
	}
	b.report.Host = describeHost(ctx, b.client)
	b.report.Settings = opts.settings

	// A busy machine is no reason to stop, but it must be known.
	b.report.Host.Busy = machineBusy(2 * time.Second)

	start := func(name string, uid int, more ...string) (*server, error) {
		lines := append(append([]string{fmt.Sprintf("sandbox.uid_base = %d", uid)}, settings...), more...)
		own := fmt.Sprintf("%s-%s", filepath.Base(b.dir), name)
		runDir := filepath.Join("/run", own)
		b.closers = append(b.closers, func() error { return os.RemoveAll(runDir) })
		s, err := startServer(ctx, binary, filepath.Join(b.dir, name), runDir, "/"+own, b.cgroups, clients, lines)
		if err != nil {
			return nil, fmt.Errorf("%s server: %w", name, err)
		}
		b.closers = append(b.closers, func() error { return removeCgroups(s.parent) }, s.stop)
		return s, nil
	}
	if b.cold, err = start("cold", firstUID, "pool.python = 0", "pool.bash = 0"); err != nil {
		return nil, err
	}
	if b.warm, err = start("warm", firstUID+64<<16); err != nil {
		return nil, err
	}
	b.warm.pool = map[string]int{"python": b.cfg.Pool.Python, "bash": b.cfg.Pool.Bash}
	if err := b.warm.settle(ctx); err != nil {
		return nil, err
	}
	b.report.Memory.ServerStart = serverMemory(b.warm.pid)

	if err := b.makeContenders(ctx, binary, file); err != nil {
		return nil, err
	}
	return b, nil
}

// importImage connects to containerd and brings the image in.
func (b *bench) importImage(ctx context.Context) error {
	address, err := daemon.Find(ctx, b.cfg.Containerd.Address)
	if err != nil {
		return err
	}
	if b.client, err = containerd.New(address, containerd.WithDefaultNamespace(namespace)); err != nil {
		return err
	}
	b.closers = append(b.closers, b.client.Close)
	source := image.Docker(b.cfg.Docker.Socket)
	if b.opts.tar != "" {
		f, err := os.Open(b.opts.tar)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		source = image.Tar(f)
	}
	name := b.cfg.Sandbox.Image
	if _, _, err := image.Import(ctx, b.client, image.Options{Name: name, Snapshotter: b.cfg.Containerd.Snapshotter}, source); err != nil {
		return err
	}
	b.closers = append(b.closers, func() error {
		ctx, cancel := context.WithTimeoutCause(context.Background(), time.Minute, errors.New("containerd does not answer"))
		defer cancel()
		if err := b.removeSnapshots(ctx); err != nil {
			return err
		}
		if err := image.Remove(ctx, b.client, name); err != nil {
			return err
		}
		return b.client.NamespaceService().Delete(ctx, namespace)
	})
	return nil
}

// build makes the binary as `make build` does, unless one was given.
func (b *bench) build(ctx context.Context) (string, error) {
	if b.opts.server != "" {
		return filepath.Abs(b.opts.server)
	}
	binary := filepath.Join(b.dir, "code-execution-sandbox")
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o", binary, "code-execution-sandbox/cmd/code-execution-sandbox")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the server: %w: %s", err, out)
	}
	return binary, nil
}

// close takes everything down in the reverse order.
func (b *bench) close() error {
	var errs []error
	for _, undo := range slices.Backward(b.closers) {
		errs = append(errs, undo())
	}
	b.closers = nil
	return errors.Join(errs...)
}

// fault notes a wrong answer or a failed call.
func (b *bench) fault(format string, args ...any) {
	b.report.faultsMu.Lock()
	defer b.report.faultsMu.Unlock()
	b.report.Faults = append(b.report.Faults, fmt.Sprintf(format, args...))
}

// command runs a program to its end and returns what it printed.
func command(cmd *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, clip(stderr.String()))
	}
	return stdout.String(), nil
}
