package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"

	"code-execution-sandbox/config"
	"code-execution-sandbox/internal/cgroup"
	"code-execution-sandbox/internal/daemon"
	"code-execution-sandbox/internal/protection"
	"code-execution-sandbox/internal/runner"
	"code-execution-sandbox/internal/sandbox"
)

// app is what the subcommands share.
type app struct {
	configPath string
}

func defaultConfig() string { return config.DefaultPath }

func (a *app) config() (config.Config, error) { return config.Load(a.configPath) }

// logger writes to w.
func logger(c config.Logging, w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Level)) // checked by config
	opts := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// host is a connection to containerd, and the daemon behind it if it is ours.
type host struct {
	cfg     config.Config
	log     *slog.Logger
	client  *containerd.Client
	address string
	private *daemon.Daemon
	// letGo, where there is one, ends the wait for a private containerd that
	// another process has, and says that private is set or stays nil.
	letGo   func()
	cgroups *cgroup.Host
	lacks   []protection.Lack // filled by protect
}

// connect finds containerd as the configuration says. A configured one that
// does not answer is an error, or is waited for by the calls to come when
// patient is set. The caller closes the host.
func connect(ctx context.Context, cfg config.Config, log *slog.Logger, patient bool) (*host, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("containerd's socket belongs to root: run this as root, for example with sudo")
	}
	h := &host{cfg: cfg, log: log}
	var err error
	if h.cgroups, err = cgroup.Detect(); err != nil {
		return nil, err
	}
	if missing := h.cgroups.Missing(); len(missing) > 0 {
		return nil, fmt.Errorf("no sandbox can be bounded on this host: enable its cgroup controllers %s", strings.Join(missing, ", "))
	}
	if cfg.Containerd.Address != config.Private {
		h.address, err = daemon.Find(ctx, cfg.Containerd.Address)
		if err != nil && cfg.Containerd.Address != "" {
			if !patient {
				return nil, err
			}
			log.Warn("containerd is away, waiting for it", "error", err)
			h.address = cfg.Containerd.Address
		}
	}
	if h.address == "" {
		if err := h.usePrivate(ctx, patient); err != nil {
			return nil, fmt.Errorf("no containerd answers, and a private one does not start: %w", err)
		}
	}
	h.client, err = containerd.New(h.address, containerd.WithDefaultNamespace(cfg.Containerd.Namespace),
		containerd.WithDefaultRuntime(cfg.Containerd.Runtime), containerd.WithTimeout(10*time.Second))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect to containerd at %s: %w", h.address, err), h.Close())
	}
	return h, nil
}

// usePrivate starts a private containerd, or uses that of a process that runs. A
// patient host takes it over when that process ends, with which it ends.
func (h *host) usePrivate(ctx context.Context, patient bool) (err error) {
	opts := daemon.Options{
		Binary:      h.cfg.Containerd.PrivateBinary,
		Root:        filepath.Join(h.cfg.DataDir, "containerd"),
		State:       filepath.Join(h.cfg.RunDir, "containerd"),
		Socket:      filepath.Join(h.cfg.RunDir, "containerd", "containerd.sock"),
		Snapshotter: h.cfg.Containerd.Snapshotter,
		Logger:      h.log,
	}
	h.address = opts.Socket
	h.private, err = daemon.Start(ctx, opts)
	switch {
	case errors.Is(err, daemon.ErrInUse) && patient:
		h.log.Warn("another process has the private containerd, and takes the calls that run here along when it ends", "data_dir", h.cfg.DataDir)
		h.inherit(opts)
		return nil
	case errors.Is(err, daemon.ErrInUse) && daemon.Probe(ctx, opts.Socket) == nil:
		return nil
	}
	return err
}

// inheritEvery is how soon a private containerd that has ended is replaced.
const inheritEvery = 500 * time.Millisecond

// inherit starts a private containerd once nobody else has it.
func (h *host) inherit(opts daemon.Options) {
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan struct{})
	h.letGo = func() {
		cancel(errors.New("the server ends"))
		<-done
	}
	go func() {
		defer close(done)
		tick := time.NewTicker(inheritEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			private, err := daemon.Start(ctx, opts)
			switch {
			case err == nil:
				h.log.Info("the private containerd is this server's now")
				h.private = private
				return
			case !errors.Is(err, daemon.ErrInUse) && ctx.Err() == nil:
				h.log.Error("the private containerd does not start", "error", err)
			}
		}
	}()
}

// Close ends the connection, and the private daemon.
func (h *host) Close() error {
	var errs []error
	if h.client != nil {
		errs = append(errs, h.client.Close())
	}
	if h.letGo != nil {
		h.letGo()
	}
	if h.private != nil {
		ctx, cancel := context.WithTimeoutCause(context.Background(), closeTimeout, errors.New("the private containerd does not end"))
		defer cancel()
		errs = append(errs, h.private.Stop(ctx))
	}
	return errors.Join(errs...)
}

// limits maps the configuration to the contract.
func limits(cfg config.Config) sandbox.Limits {
	s := cfg.Sandbox
	return sandbox.Limits{
		MaxCodeBytes: int(s.MaxCodeBytes), MaxStdinBytes: int(s.MaxStdinBytes),
		DefaultTimeout: s.DefaultTimeout.Duration(), MaxTimeout: s.MaxTimeout.Duration(),
		MaxOutputBytes: int(s.MaxOutputBytes),
		Memory:         int64(s.MemoryLimit), CPUs: float64(s.CPULimit), PIDs: int64(s.PIDsLimit),
		Tmp: int64(s.TmpfsSize), Shm: int64(s.ShmSize),
	}
}

// runnerOptions maps the configuration to a runner without a pool.
func (h *host) runnerOptions() runner.Options {
	cfg := h.cfg
	opts := runner.Options{
		Client: h.client, Address: h.address, Namespace: cfg.Containerd.Namespace,
		Snapshotter: cfg.Containerd.Snapshotter, ImageName: cfg.Sandbox.Image,
		Runtime: cfg.Containerd.Runtime, RuntimeBinary: cfg.Containerd.RuntimeBinary,
		RunDir: cfg.RunDir, Cgroups: h.cgroups, CgroupParent: cfg.Sandbox.CgroupParent,
		Limits: limits(cfg),
		Slots:  cfg.Sandbox.MaxConcurrent, MaxWaiting: cfg.Queue.MaxWaiting, MaxWait: cfg.Queue.MaxWait.Duration(),
		PoolMaxAge: cfg.Pool.MaxAge.Duration(), Preload: cfg.Pool.Preload,
		Arch: runtime.GOARCH,
		Log:  h.log,
	}
	if cfg.Sandbox.UserNamespace && !h.lack(protection.UserNamespaces) {
		opts.UIDBase = uint32(cfg.Sandbox.UIDBase) //nolint:gosec // the range is checked by config
	}
	if h.canConfine() && !h.lack(protection.AppArmor) {
		opts.AppArmorProfile = cfg.Sandbox.AppArmorProfile
	}
	opts.NoSwapLimit = h.lack(protection.SwapLimit)
	if total, err := h.total(); err == nil && !h.lack(protection.TotalLimits) {
		opts.Total = total
	}
	return opts
}

// readInput reads a file, or standard input for "-".
func readInput(name string) (string, error) {
	if name == "-" {
		b, err := io.ReadAll(os.Stdin)
		return string(b), err
	}
	b, err := os.ReadFile(name)
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		err = fmt.Errorf("%s: %w", name, path.Err)
	}
	return string(b), err
}

// quiet keeps a one-shot command from telling what only matters to a server.
func quiet(c config.Logging) config.Logging {
	if c.Level == "info" {
		c.Level = "error"
	}
	return c
}

// withHost calls do with a connection to containerd.
func withHost(ctx context.Context, cfg config.Config, do func(*host) error) error {
	h, err := connect(ctx, cfg, logger(quiet(cfg.Logging), os.Stderr), false)
	if err != nil {
		return err
	}
	return errors.Join(do(h), h.Close())
}

// closeTimeout bounds the removal of the last sandbox.
const closeTimeout = time.Minute

// withRunner calls do with a runner that keeps no pool and has not looked for
// an image yet, on a host with every protection that is asked for.
func withRunner(ctx context.Context, cfg config.Config, do func(*runner.Runner) error) error {
	return withHost(ctx, cfg, func(h *host) error {
		if err := h.protect(); err != nil {
			return err
		}
		return h.withRunner(ctx, do)
	})
}

func (h *host) withRunner(ctx context.Context, do func(*runner.Runner) error) error {
	r, err := runner.New(h.runnerOptions())
	if err != nil {
		return err
	}
	err = do(r)
	closeCtx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), closeTimeout, errors.New("sandboxes are left, the next sweep removes them"))
	defer cancel()
	return errors.Join(err, r.Close(closeCtx))
}
