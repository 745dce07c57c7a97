// Package harness gives tests the real thing: a containerd of their own, the
// runtime image in it, runners and whole servers on top, and a look at what
// they leave behind.
//
// CES_BINARY names a server's binary that is there already, for hosts without
// Go; host.go has more of such variables.
//
// A test package calls Main from its TestMain. Without root, containerd or the
// image its tests are skipped, and fail where CI=true.
package harness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"code-execution-sandbox/image"
	"code-execution-sandbox/internal/cgroup"
	"code-execution-sandbox/internal/daemon"
	"code-execution-sandbox/internal/daemon/daemontest"
	"code-execution-sandbox/internal/runner"
	"code-execution-sandbox/internal/sandbox"
)

// The runtime images as make docker-build makes them.
const (
	// Slim has bash and Python alone. Most tests run on it, since it is
	// imported in a second.
	Slim = "code-execution-sandbox-runtime:slim"
	// Full is what is served.
	Full = "code-execution-sandbox-runtime:latest"
)

// ImageName is the runtime image of the tests: Slim, or what Main was told.
var ImageName = Slim

// Namespace is where the tests' containers live: this process's own, since the
// runtime keeps its state by namespace, for all containerds of the host.
var Namespace = fmt.Sprintf("code-execution-sandbox-test-%d", os.Getpid())

// env is what Main has set up.
var env struct {
	dir    string
	daemon *daemon.Daemon
	client *containerd.Client
	binary string

	mu   sync.Mutex
	seen map[string][]string // guarded by mu; ids of sandboxes by address and namespace
}

// Option changes what Main sets up.
type Option func()

// Image makes the tests run on another image than Slim.
func Image(name string) Option { return func() { ImageName = name } }

// Main runs the tests of a package on a private containerd: the one in PATH,
// or the one in the directory that daemontest.EnvBinaries names.
func Main(m *testing.M, options ...Option) int {
	for _, set := range options {
		set()
	}
	if os.Geteuid() != 0 {
		return refuse("needs root")
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), Slow(10*time.Minute), errors.New("setting up took too long"))
	defer cancel()
	if err := setUp(ctx); err != nil {
		return refuse(errors.Join(err, tearDown()).Error())
	}
	code := m.Run()
	if err := tearDown(); err != nil {
		fmt.Fprintln(os.Stderr, "harness:", err)
		code = 1
	}
	return code
}

func refuse(why string) int {
	fmt.Fprintln(os.Stderr, "harness:", why)
	if os.Getenv("CI") == "true" {
		return 1
	}
	fmt.Fprintln(os.Stderr, "harness: SKIPPED, nothing was tested; make test sets up all it needs")
	return 0
}

func setUp(ctx context.Context) (err error) {
	// Short, since a socket's path has 107 bytes at most.
	if env.dir, err = os.MkdirTemp("", "ces"); err != nil {
		return err
	}
	if err := os.Chmod(env.dir, 0o711); err != nil { //nolint:gosec // mapped users must pass
		return err
	}
	binary := ""
	if dir := os.Getenv(daemontest.EnvBinaries); dir != "" {
		binary = filepath.Join(dir, "containerd")
	}
	env.daemon, err = daemon.Start(ctx, daemon.Options{
		Binary: binary, NoSync: true,
		Root: filepath.Join(env.dir, "root"), State: filepath.Join(env.dir, "run"),
	})
	if err != nil {
		return err
	}
	if env.client, err = containerd.New(env.daemon.Address(), containerd.WithDefaultNamespace(Namespace)); err != nil {
		return err
	}
	if _, _, err = image.Import(ctx, env.client, image.Options{Name: ImageName}, image.Docker("")); err != nil {
		return err
	}
	if env.binary = os.Getenv("CES_BINARY"); env.binary != "" {
		return nil
	}
	env.binary = filepath.Join(env.dir, "code-execution-sandbox")
	build := exec.CommandContext(ctx, "go", "build", "-o", env.binary, "code-execution-sandbox/cmd/code-execution-sandbox")
	if os.Getenv(envRace) != "" {
		build.Args = slices.Insert(build.Args, 2, "-race")
	}
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the server: %w: %s", err, out)
	}
	return nil
}

// envRace says that the server is built with the race detector.
const envRace = "CES_RACE"

// ServerMemory is a bound, in bytes, of the server's memory: ten times as much
// under the race detector, which needs five to ten times what a program does
// (Go, "Data Race Detector").
func ServerMemory(bytes int64) int64 {
	if os.Getenv(envRace) != "" {
		return 10 * bytes
	}
	return bytes
}

// crunCache is where crun keeps compiled seccomp profiles, for all sandboxes of a
// namespace: it belongs to none of them.
const crunCache = ".cache"

func tearDown() error {
	var errs []error
	if env.client != nil {
		errs = append(errs, env.client.Close())
	}
	if env.daemon != nil {
		ctx, cancel := context.WithTimeoutCause(context.Background(), time.Minute, errors.New("containerd does not end"))
		defer cancel()
		errs = append(errs, env.daemon.Stop(ctx))
	}
	// Shims make it, and none of them removes it.
	states, _ := filepath.Glob(filepath.Join("/run/containerd/runc", Namespace+"*")) // the pattern is well-formed
	for _, dir := range states {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, crunCache)), os.Remove(dir))
	}
	return errors.Join(append(errs, os.RemoveAll(env.dir))...)
}

// Client is connected to the tests' containerd.
func Client() *containerd.Client { return env.client }

// Daemon is the tests' containerd.
func Daemon() *daemon.Daemon { return env.daemon }

// Binary is the path of the server's binary.
func Binary() string { return env.binary }

// Limits are those of the default configuration, with less memory so that a
// test that wants too much of it is quick.
func Limits() sandbox.Limits {
	return sandbox.Limits{
		MaxCodeBytes: 64 << 10, MaxStdinBytes: 1 << 20,
		DefaultTimeout: 10 * time.Second, MaxTimeout: 60 * time.Second,
		MaxOutputBytes: 1 << 20, Memory: 256 << 20, CPUs: 1, PIDs: 128, Tmp: 64 << 20, Shm: 16 << 20,
	}
}

// Options are those of a runner on the tests' containerd, without a pool. The
// run directory and the cgroup are the test's own.
func Options(t testing.TB) runner.Options {
	t.Helper()
	cgroups, err := cgroup.Detect()
	if err != nil {
		t.Fatal(err)
	}
	runDir, err := os.MkdirTemp(env.dir, "r")
	if err != nil {
		t.Fatal(err)
	}
	opts := runner.Options{
		Client: env.client, Address: env.daemon.Address(), Namespace: Namespace, Snapshotter: "overlayfs", ImageName: ImageName,
		RunDir:  runDir,
		Cgroups: cgroups, CgroupParent: "/" + filepath.Base(env.dir) + "-" + filepath.Base(runDir),
		Limits: Limits(), Slots: 4, MaxWaiting: 32, MaxWait: Slow(30 * time.Second),
		PoolMaxAge: 10 * time.Minute, UIDBase: 0x70000000,
		Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	suit(t, &opts)
	return opts
}

// Runner is a runner that is ready. When the test ends it is closed, and must
// have left nothing behind.
func Runner(t testing.TB, opts runner.Options) *runner.Runner {
	t.Helper()
	r, err := runner.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeoutCause(context.Background(), time.Minute, errors.New("the runner does not close"))
		defer cancel()
		if err := r.Close(ctx); err != nil {
			t.Error(err)
		}
		for _, left := range Leftovers(t, opts) {
			t.Error("left behind:", left)
		}
	})
	if err := r.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

// Saw remembers that a sandbox exists, so that Leftovers looks for what can be
// found by its id only.
func Saw(opts runner.Options, ids ...string) {
	env.mu.Lock()
	defer env.mu.Unlock()
	if env.seen == nil {
		env.seen = map[string][]string{}
	}
	key := opts.Address + " " + opts.Namespace
	for _, id := range ids {
		if !slices.Contains(env.seen[key], id) {
			env.seen[key] = append(env.seen[key], id)
		}
	}
}

// leavings are what a shim or a runtime that was killed has left of the
// sandboxes that were seen.
func leavings(opts runner.Options) []string {
	env.mu.Lock()
	defer env.mu.Unlock()
	var found []string
	for _, id := range env.seen[opts.Address+" "+opts.Namespace] {
		for _, path := range daemon.Leavings(opts.Address, opts.Namespace, id) {
			if _, err := os.Lstat(path); err == nil && !slices.Contains(found, path) {
				found = append(found, path)
			}
		}
	}
	return found
}

// Leftovers names everything of a sandbox that exists: containers, tasks,
// snapshots, shims and their sockets, mounts, bundles, the runtime's state,
// cgroups and FIFOs. The tests that use one containerd run one after the other,
// so between two of them there is nothing.
func Leftovers(t testing.TB, opts runner.Options) []string {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	var found []string
	must := func(err error) {
		if err != nil {
			t.Fatal("look for leftovers:", err)
		}
	}
	containers, err := opts.Client.ContainerService().List(ctx)
	must(err)
	for _, c := range containers {
		Saw(opts, c.ID)
		found = append(found, "container "+c.ID)
	}
	running, err := opts.Client.TaskService().List(ctx, &tasks.ListTasksRequest{})
	must(errgrpc.ToNative(err))
	for _, task := range running.Tasks {
		found = append(found, fmt.Sprintf("task %s (%s)", task.ID, task.Status))
	}
	must(opts.Client.SnapshotService(opts.Snapshotter).Walk(ctx, func(_ context.Context, s snapshots.Info) error {
		if s.Kind == snapshots.KindActive {
			found = append(found, "snapshot "+s.Name)
		}
		return nil
	}))
	leases, err := opts.Client.LeasesService().List(ctx)
	must(err)
	for _, l := range leases {
		found = append(found, "lease "+l.ID)
	}
	cgroups, err := opts.Cgroups.Children(opts.CgroupParent)
	must(err)
	Saw(opts, cgroups...)
	for _, c := range cgroups {
		found = append(found, "cgroup "+c)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	must(err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, env.dir) && strings.Contains(line, "/"+opts.Namespace+"/") {
			found = append(found, "mount "+strings.Fields(line)[4])
		}
	}
	cmdlines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(err)
	for _, file := range cmdlines {
		raw, _ := os.ReadFile(file) // it may have ended
		if line := strings.ReplaceAll(string(raw), "\x00", " "); strings.Contains(line, "containerd-shim") && strings.Contains(line, " "+opts.Namespace+" ") {
			found = append(found, "process "+line)
		}
	}
	list := func(what, dir string) {
		entries, err := os.ReadDir(dir)
		if !errors.Is(err, os.ErrNotExist) {
			must(err)
		}
		for _, e := range entries {
			if e.Name() != crunCache {
				found = append(found, what+e.Name())
			}
		}
	}
	list(InRunDir, opts.RunDir)
	list("state of the runtime: ", filepath.Join("/run/containerd/runc", opts.Namespace))
	list("bundle ", filepath.Join(filepath.Dir(opts.Address), "io.containerd.runtime.v2.task", opts.Namespace))
	for _, path := range leavings(opts) {
		found = append(found, "left by a shim: "+path)
	}
	return found
}

// Asleep are the ids of the sandboxes whose program has come to a sleep: a test
// that does something to a running program waits for that, not for a time.
func Asleep(t testing.TB, opts runner.Options) []string {
	t.Helper()
	ids, err := opts.Cgroups.Children(opts.CgroupParent)
	if err != nil {
		t.Fatal(err)
	}
	Saw(opts, ids...)
	var out []string
	for _, id := range ids {
		pids, err := opts.Cgroups.Group(filepath.Join(opts.CgroupParent, id)).Processes()
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range pids {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may have ended
			if strings.Contains(string(line), "sleep\x00") {
				out = append(out, id)
				break
			}
		}
	}
	return out
}

// InRunDir begins what Leftovers says of the run directory, where a runner that
// lives has something.
const InRunDir = "in the run directory: "

// Run runs a program and ends the test where that is impossible.
func Run(t testing.TB, r sandbox.Executor, req sandbox.Request) *sandbox.Result {
	t.Helper()
	res, err := r.Execute(t.Context(), req)
	if err != nil {
		t.Fatalf("execute: %v", err)
	}
	return res
}

// Python and Bash are requests with the default time limit.
func Python(code string) sandbox.Request {
	return sandbox.Request{ID: "test", Language: sandbox.Python, Code: code}
}

// Bash is a request with the default time limit.
func Bash(code string) sandbox.Request {
	return sandbox.Request{ID: "test", Language: sandbox.Bash, Code: code}
}
