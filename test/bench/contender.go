package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"code-execution-sandbox/image"
	"code-execution-sandbox/oci"
)

// The ways to run a program, as they stand in the result.
const (
	bareHost  = "bare process"
	bareImage = "bare process, the image's interpreter"
	dockerRun = "docker run, our hardening"
	ociRun    = "runc run, our spec"
	oursCold  = "ours, cold"
	oursWarm  = "ours, warm"
)

var (
	ways      = []string{bareHost, bareImage, dockerRun, ociRun, oursCold, oursWarm}
	languages = []string{"python", "bash"}
)

// run executes a program to its end and returns what it printed. Clients that
// call at the same time have different numbers, below the constant clients.
type runFunc func(ctx context.Context, client int, code string) (string, error)

// contender is one way to run a program in one language.
type contender struct {
	way, lang string
	run       runFunc
	server    *server // behind it, nil for none
}

// serial makes every program of a run print something else.
var serial atomic.Int64

// once makes one call and returns how long it took. A wrong answer is an error.
// A call that has begun goes to its end, also when ctx ends: a command that is
// killed half-way leaves its container.
func (c contender) once(ctx context.Context, client int) (time.Duration, error) {
	n := strconv.FormatInt(serial.Add(1), 10)
	code := map[string]string{"python": "print(" + n + ")", "bash": "echo " + n}[c.lang]
	callCtx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), callTimeout, errors.New("the call took too long"))
	defer cancel()
	start := time.Now()
	out, err := c.run(callCtx, client, code)
	took := time.Since(start)
	if callCtx.Err() != nil {
		return took, context.Cause(callCtx)
	}
	if err == nil && strings.TrimSuffix(out, "\n") != n {
		err = fmt.Errorf("wrong answer %q to %q", clip(out), code)
	}
	return took, err
}

// rest waits until nothing is left to do for the calls that were made.
func (c contender) rest(ctx context.Context) error {
	if c.server != nil {
		if err := c.server.settle(ctx); err != nil {
			return err
		}
	}
	// What the others leave to daemons cannot be asked for.
	time.Sleep(20 * time.Millisecond)
	return context.Cause(ctx)
}

// makeContenders makes those that this host can; what it lacks is noted.
func (b *bench) makeContenders(ctx context.Context, binary, config string) error {
	spec := map[string]*specs.Spec{}
	for _, lang := range languages {
		out, err := exec.CommandContext(ctx, binary, "spec", "--config", config, "--language", lang).Output()
		if err != nil {
			return fmt.Errorf("print the spec: %w", err)
		}
		spec[lang] = new(specs.Spec)
		if err := json.Unmarshal(out, spec[lang]); err != nil {
			return fmt.Errorf("read the spec: %w", err)
		}
	}
	root, err := b.mountImage(ctx)
	if err != nil {
		return err
	}
	makers := map[string]func(lang string) (runFunc, *server, error){
		bareHost:  func(lang string) (runFunc, *server, error) { return bare(lang, ""), nil, nil },
		bareImage: func(lang string) (runFunc, *server, error) { return bare(lang, root), nil, nil },
		dockerRun: func(lang string) (runFunc, *server, error) { f, err := b.docker(spec[lang]); return f, nil, err },
		ociRun: func(lang string) (runFunc, *server, error) {
			f, err := b.runc(lang, spec[lang], root)
			return f, nil, err
		},
		oursCold: func(lang string) (runFunc, *server, error) { return b.cold.runs(lang), b.cold, nil },
		oursWarm: func(lang string) (runFunc, *server, error) { return b.warm.runs(lang), b.warm, nil },
	}
	for _, lang := range languages {
		for _, way := range ways {
			run, s, err := makers[way](lang)
			c := contender{way, lang, run, s}
			if err == nil {
				// The first call also warms the caches.
				_, err = c.once(ctx, 0)
			}
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case errors.Is(err, exec.ErrNotFound) || err != nil && way == dockerRun: // it may have another image, or no daemon
				b.report.Missing = append(b.report.Missing, fmt.Sprintf("%s, %s: %v", way, lang, err))
			case err != nil:
				return fmt.Errorf("%s, %s: %w", way, lang, err)
			default:
				b.contenders = append(b.contenders, c)
			}
		}
	}
	return nil
}

// of returns the contenders of a language, or of all for an empty one, rotated
// so that none always follows the same other.
func (b *bench) of(lang string, round int) []contender {
	var out []contender
	for _, c := range b.contenders {
		if lang == "" || c.lang == lang {
			out = append(out, c)
		}
	}
	if round %= max(1, len(out)); round > 0 {
		out = slices.Concat(out[round:], out[:round])
	}
	return out
}

func (s *server) runs(lang string) runFunc {
	return func(ctx context.Context, client int, code string) (string, error) {
		return s.call(ctx, client, lang, code)
	}
}

// interpreters are the arguments before the program's text.
var interpreters = map[string][]string{
	"python": {"python3", "-I", "-c"},
	"bash":   {"bash", "-c"},
}

// interpreterPath is where the distribution has an interpreter: in the image,
// and on most hosts. One of a version manager would start slower, with scripts
// and packages of its own, and flatter us.
var interpreterPath = map[string]string{"python": "/usr/bin/python3", "bash": "/bin/bash"}

// bare starts the interpreter as a process of the host, or below root.
func bare(lang, root string) runFunc {
	args, path := interpreters[lang], interpreterPath[lang]
	var attr *syscall.SysProcAttr
	if root != "" {
		attr = &syscall.SysProcAttr{Chroot: root}
	}
	return func(ctx context.Context, _ int, code string) (string, error) {
		cmd := exec.CommandContext(ctx, path, append(slices.Clip(args[1:]), code)...)
		cmd.Env, cmd.Dir, cmd.SysProcAttr = []string{"PATH=/usr/bin:/bin", "LANG=C.UTF-8"}, "/", attr
		return command(cmd)
	}
}

// docker runs a container with every protection of the spec that the command
// has a flag for. It has none for a user namespace, nor for subset=pid, and so
// has less to do.
func (b *bench) docker(spec *specs.Spec) (runFunc, error) {
	path, err := exec.LookPath("docker")
	if err != nil {
		return nil, err
	}
	profile, err := json.Marshal(spec.Linux.Seccomp)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(b.dir, "seccomp.json")
	if err := os.WriteFile(file, profile, 0o600); err != nil {
		return nil, err
	}
	res := spec.Linux.Resources
	args := []string{
		"run", "--rm", "--pull", "never", "--log-driver", "none",
		"--network", "none", "--read-only", "--cap-drop", "ALL",
		"--security-opt", "no-new-privileges", "--security-opt", "seccomp=" + file,
		"--user", fmt.Sprintf("%d:%d", spec.Process.User.UID, spec.Process.User.GID),
		"--workdir", spec.Process.Cwd, "--hostname", spec.Hostname,
		"--memory", fmt.Sprint(*res.Memory.Limit), "--memory-swap", fmt.Sprint(*res.Memory.Swap),
		"--pids-limit", fmt.Sprint(*res.Pids.Limit),
		"--cpu-period", fmt.Sprint(*res.CPU.Period), "--cpu-quota", fmt.Sprint(*res.CPU.Quota),
		"--oom-score-adj", fmt.Sprint(*spec.Process.OOMScoreAdj),
	}
	for _, l := range spec.Process.Rlimits {
		// The daemon has no name for the soft limit alone, nor for all limits.
		if name := strings.ToLower(strings.TrimPrefix(l.Type, "RLIMIT_")); name != "cpu" {
			args = append(args, "--ulimit", fmt.Sprintf("%s=%d:%d", name, l.Soft, l.Hard))
		}
	}
	for _, m := range spec.Mounts {
		switch m.Destination {
		case "/tmp":
			args = append(args, "--tmpfs", m.Destination+":"+strings.Join(m.Options, ","))
		case "/dev/shm":
			for _, o := range m.Options {
				if size, ok := strings.CutPrefix(o, "size="); ok {
					args = append(args, "--shm-size", size)
				}
			}
		}
	}
	for _, e := range spec.Process.Env {
		args = append(args, "--env", e)
	}
	args = append(args, b.cfg.Sandbox.Image)
	args = append(args, interpreters[spec.Process.Args[1]]...)
	return func(ctx context.Context, _ int, code string) (string, error) {
		return command(exec.CommandContext(ctx, path, append(slices.Clip(args), code)...))
	}, nil
}

// mountImage mounts a view of the image, read-only, for all that run in it.
func (b *bench) mountImage(ctx context.Context) (string, error) {
	img, err := image.Find(ctx, b.client, b.cfg.Sandbox.Image, b.cfg.Containerd.Snapshotter)
	if err != nil {
		return "", err
	}
	store := b.client.SnapshotService(b.cfg.Containerd.Snapshotter)
	mounts, err := store.View(ctx, "bench", img.ChainID, snapshots.WithLabels(map[string]string{"containerd.io/gc.root": "bench"}))
	if errdefs.IsAlreadyExists(err) { // of a run that was killed
		mounts, err = store.Mounts(ctx, "bench")
	}
	if err != nil {
		return "", err
	}
	root := filepath.Join(b.dir, "rootfs")
	if err := os.Mkdir(root, 0o755); err != nil { //nolint:gosec // programs see it
		return "", err
	}
	if err := mount.All(mounts, root); err != nil {
		return "", fmt.Errorf("mount the image: %w", err)
	}
	b.closers = append(b.closers, func() error { return mount.UnmountAll(root, 0) })
	return root, nil
}

// removeSnapshots removes the views of the image, ours and the servers'.
func (b *bench) removeSnapshots(ctx context.Context) error {
	store := b.client.SnapshotService(b.cfg.Containerd.Snapshotter)
	var views []string
	err := store.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if info.Kind == snapshots.KindView {
			views = append(views, info.Name)
		}
		return nil
	})
	for _, key := range views {
		err = errors.Join(err, store.Remove(ctx, key))
	}
	return err
}

// runc runs the very spec of a call without containerd: create, start, wait and
// delete in one command, the program in a frame on standard input.
func (b *bench) runc(lang string, spec *specs.Spec, root string) (runFunc, error) {
	name := b.cfg.Containerd.RuntimeBinary
	if name == "" {
		name = "runc"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return nil, err
	}
	bundle := func(client int) string { return filepath.Join(b.dir, fmt.Sprintf("bundle-%s-%d", lang, client)) }
	group := func(client int) string { return fmt.Sprintf("/%s-runc/%s-%d", filepath.Base(b.dir), lang, client) }
	for client := range clients {
		own := *spec
		linux := *spec.Linux
		process := *spec.Process
		// On the streams that it is started with: nobody opens the launcher's.
		process.Args = []string{oci.Launcher, lang}
		own.Process = &process
		own.Root = &specs.Root{Path: root, Readonly: true}
		linux.CgroupsPath = group(client)
		if len(linux.UIDMappings) > 0 {
			host := uint32(firstUID + (128+client)<<16)
			linux.UIDMappings = []specs.LinuxIDMapping{{HostID: host, Size: linux.UIDMappings[0].Size}}
			linux.GIDMappings = linux.UIDMappings
		}
		own.Linux = &linux
		raw, err := json.Marshal(own)
		if err != nil {
			return nil, err
		}
		if err := os.Mkdir(bundle(client), 0o711); err != nil { //nolint:gosec // mapped users must pass
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(bundle(client), "config.json"), raw, 0o600); err != nil {
			return nil, err
		}
	}
	state := filepath.Join(b.dir, "runc")
	b.closers = append(b.closers, func() error { return removeCgroups(filepath.Dir(group(0))) }, func() error { return removeAll(path, state) })
	return func(ctx context.Context, client int, code string) (string, error) {
		// Several clients may see the same serial number.
		id := fmt.Sprintf("bench-%d-%d-%d", os.Getpid(), serial.Load(), client)
		cmd := exec.CommandContext(ctx, path, "--root", state, "run", "--bundle", bundle(client), id)
		cmd.Stdin = bytes.NewReader(frame(code))
		out, err := command(cmd)
		// The launcher's bytes, in any order: the frame does not wait for the boot.
		return strings.TrimLeft(out, "RS"), err
	}, nil
}

// removeAll removes what a runtime still has: a command that is killed leaves
// its container.
func removeAll(runtime, state string) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), time.Minute, errors.New("the runtime does not answer"))
	defer cancel()
	ids, err := exec.CommandContext(ctx, runtime, "--root", state, "list", "--quiet").Output()
	if err != nil {
		return fmt.Errorf("list what %s has: %w", runtime, err)
	}
	var errs []error
	for id := range strings.FieldsSeq(string(ids)) {
		if out, err := exec.CommandContext(ctx, runtime, "--root", state, "delete", "--force", id).CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("delete %s: %w: %s", id, err, out))
		}
	}
	return errors.Join(errs...)
}

// frame delivers a program to the launcher, which describes it.
func frame(code string) []byte {
	b := append([]byte("CES1"), make([]byte, 16)...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(code))) //nolint:gosec // we wrote it
	return append(b, code...)
}
