package daemon_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"code-execution-sandbox/internal/daemon"
	"code-execution-sandbox/internal/daemon/daemontest"
	"code-execution-sandbox/internal/sandbox"
)

// envHelper makes the test binary a process that starts a daemon with the
// options in it, tells its pid, and waits to be killed.
const envHelper = "DAEMON_TEST_HELPER"

// hang bounds every wait for something that must happen soon.
const hang = 30 * time.Second

func TestMain(m *testing.M) {
	text := os.Getenv(envHelper)
	if text == "" {
		os.Exit(m.Run())
	}
	var opts daemon.Options
	if err := json.Unmarshal([]byte(text), &opts); err != nil {
		panic(err)
	}
	d, err := daemon.Start(context.Background(), opts)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(d.PID())
	select {}
}

// await waits until ok, or fails the test.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(hang); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after %v", what, hang)
		}
	}
}

// alive reports whether the process runs; a zombie does not.
func alive(pid int) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && len(line) > 0
}

// under lists processes and mounts that have to do with dir.
func under(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err != nil || pid == os.Getpid() {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if strings.Contains(string(line), dir) {
			found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		if strings.Contains(line, dir) {
			found = append(found, line)
		}
	}
	return found
}

func connect(t *testing.T, d *daemon.Daemon) *containerd.Client {
	t.Helper()
	client, err := containerd.New(d.Address(), containerd.WithDefaultNamespace(daemontest.Namespace), containerd.WithDefaultRuntime("io.containerd.runc.v2"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// sleeper starts a container that sleeps, on the host's programs.
func sleeper(t *testing.T, client *containerd.Client, id string) containerd.Task {
	t.Helper()
	root := t.TempDir()
	mounts := []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}}
	for _, dir := range []string{"/bin", "/lib", "/lib64", "/usr"} {
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		mounts = append(mounts, specs.Mount{Destination: dir, Type: "bind", Source: dir, Options: []string{"rbind", "ro"}})
	}
	container, err := client.NewContainer(t.Context(), id, containerd.WithSpec(&specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: root},
		Process: &specs.Process{Args: []string{"/bin/sleep", "1000"}, Cwd: "/"},
		Mounts:  mounts,
		Linux: &specs.Linux{
			CgroupsPath: "/" + daemontest.Namespace + "/" + id,
			Namespaces:  []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}},
		},
	}))
	if err != nil {
		t.Fatal(err)
	}
	task, err := container.NewTask(t.Context(), cio.NullIO)
	if err != nil {
		t.Fatal(err)
	}
	if err := task.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return task
}

func unique(t *testing.T) string {
	return fmt.Sprintf("daemon-test-%d-%d", os.Getpid(), time.Now().UnixNano())
}

// gone fails the test if the daemon of opts has left anything but its root.
func gone(t *testing.T, opts daemon.Options) {
	t.Helper()
	if left := under(t, filepath.Dir(opts.Root)); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	if _, err := os.Stat(opts.State); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("state directory: %v", err)
	}
}

func TestStartAndStop(t *testing.T) {
	daemontest.Require(t)
	daemontest.Each(t, func(t *testing.T, binary string) {
		t.Setenv("SANDBOX_MCP_TOKEN", "a secret")
		t.Setenv("NOTIFY_SOCKET", "/run/none")
		opts := daemontest.Options(t, binary)
		d, err := daemon.Start(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		if address, err := daemon.Find(t.Context(), "unix://"+d.Address()); err != nil || address != d.Address() {
			t.Errorf("find: %q, %v", address, err)
		}
		if d.Version() == "" {
			t.Error("no version")
		}
		pid := d.PID()
		if !alive(pid) {
			t.Fatalf("no process %d", pid)
		}
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil || !strings.HasPrefix(string(environ), "PATH="+filepath.Dir(look(t, binary))) || strings.Count(string(environ), "\x00") != 1 {
			t.Errorf("environment %q, %v", environ, err)
		}
		for dir, mode := range map[string]os.FileMode{opts.Root: 0o700, opts.State: 0o711} {
			if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != mode {
				t.Errorf("%s: %v, %v", dir, info.Mode(), err)
			}
		}
		if ports := listening(t, pid); len(ports) > 0 {
			t.Errorf("it listens on TCP: %q", ports)
		}
		if _, err := daemon.Start(t.Context(), opts); !errors.Is(err, daemon.ErrInUse) {
			t.Errorf("second start: %v", err)
		}
		if err := daemon.Probe(t.Context(), d.Address()); err != nil {
			t.Errorf("after the second start: %v", err)
		}

		client := connect(t, d)
		task := sleeper(t, client, unique(t))
		inside := int(task.Pid())
		for range 2 {
			if err := d.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if alive(pid) || alive(inside) {
			t.Error("a process survives")
		}
		gone(t, opts)

		// The same directories serve again.
		if d, err = daemon.Start(t.Context(), opts); err != nil {
			t.Fatal(err)
		}
		if err := d.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		gone(t, opts)
	})
}

func look(t *testing.T, binary string) string {
	t.Helper()
	path, err := exec.LookPath(binary)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// listening lists the TCP sockets on which the process listens.
func listening(t *testing.T, pid int) []string {
	t.Helper()
	var inodes, found []string
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if link, err := os.Readlink(fd); err == nil && strings.HasPrefix(link, "socket:[") {
			inodes = append(inodes, strings.Trim(link, "socket:[]"))
		}
	}
	for _, table := range []string{"tcp", "tcp6"} {
		file, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		for lines := bufio.NewScanner(file); lines.Scan(); {
			// sl local remote state … inode, where state 0A listens
			if f := strings.Fields(lines.Text()); len(f) > 9 && f[3] == "0A" && slices.Contains(inodes, f[9]) {
				found = append(found, f[1])
			}
		}
	}
	return found
}

func TestDaemonIsRestarted(t *testing.T) {
	daemontest.Each(t, func(t *testing.T, binary string) {
		d, client := daemontest.Start(t, binary)
		task := sleeper(t, client, unique(t))
		inside := int(task.Pid())
		for range 2 {
			before := d.PID()
			if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			await(t, "restart", func() bool {
				now := d.PID()
				return now != 0 && now != before && daemon.Probe(t.Context(), d.Address()) == nil
			})
		}
		// What ran goes on, and the same client sees it.
		if !alive(inside) {
			t.Error("the container ended with the daemon")
		}
		status, err := task.Status(t.Context())
		if err != nil || status.Status != containerd.Running {
			t.Errorf("status %v, %v", status, err)
		}
	})
}

// TestParentIsKilled: however we end, the daemon ends with us, and the next
// start ends what it had left running.
func TestParentIsKilled(t *testing.T) {
	daemontest.Require(t)
	daemontest.Each(t, func(t *testing.T, binary string) {
		opts := daemontest.Options(t, binary)
		opts.Logger = nil
		text, err := json.Marshal(opts)
		if err != nil {
			t.Fatal(err)
		}
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		parent := exec.Command(self)
		parent.Env = append(os.Environ(), envHelper+"="+string(text))
		out, err := parent.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := parent.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(line)
		}
		client, err := containerd.New(filepath.Join(opts.State, "containerd.sock"), containerd.WithDefaultNamespace(daemontest.Namespace), containerd.WithDefaultRuntime("io.containerd.runc.v2"))
		if err != nil {
			t.Fatal(err)
		}
		task := sleeper(t, client, unique(t))
		inside := int(task.Pid())
		_ = client.Close()

		if err := parent.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = parent.Wait()
		await(t, "end of the daemon", func() bool { return !alive(pid) })
		if !alive(inside) {
			t.Fatal("the container should outlive the daemon: nothing is tested")
		}

		d, err := daemon.Start(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		if alive(inside) {
			t.Error("the container of the earlier instance still runs")
		}
		containers, err := connect(t, d).Containers(t.Context())
		if err != nil || len(containers) > 0 {
			t.Errorf("containers %v, %v", containers, err)
		}
		if err := d.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		gone(t, opts)
	})
}

// TestStopOfAStuckDaemon: the orderly way is barred, and all ends nevertheless.
func TestStopOfAStuckDaemon(t *testing.T) {
	daemontest.Require(t)
	daemontest.Each(t, func(t *testing.T, binary string) {
		opts := daemontest.Options(t, binary)
		d, err := daemon.Start(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		id := unique(t)
		task := sleeper(t, connect(t, d), id)
		inside := int(task.Pid())
		pid := d.PID()
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if err := d.Stop(ctx); err != nil {
			t.Error(err)
		}
		if alive(pid) || alive(inside) {
			t.Error("a process survives")
		}
		if _, err := os.Stat(filepath.Join("/run/containerd/runc", daemontest.Namespace, id)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("state of runc: %v", err)
		}
		gone(t, opts)
		// With nobody to run runc delete, the cgroups stay; they are the test's.
		for _, dir := range glob(t, "/sys/fs/cgroup/*/"+daemontest.Namespace+"/"+id, "/sys/fs/cgroup/"+daemontest.Namespace+"/"+id) {
			_ = unix.Rmdir(dir)
		}
	})
}

func glob(t *testing.T, patterns ...string) (found []string) {
	t.Helper()
	for _, pattern := range patterns {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, paths...)
	}
	return found
}

// TestEarlierDaemonIsEnded: a process that outlived its parent is known by the
// config in its arguments, and only then killed.
func TestEarlierDaemonIsEnded(t *testing.T) {
	daemontest.Require(t)
	opts := daemontest.Options(t, "")
	if err := os.MkdirAll(opts.State, 0o711); err != nil {
		t.Fatal(err)
	}
	for arg, ends := range map[string]bool{filepath.Join(opts.State, "containerd.toml"): true, "another": false} {
		other := exec.Command("/bin/sh", "-c", "sleep 1000 & wait", "sh", arg)
		other.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := other.Start(); err != nil {
			t.Fatal(err)
		}
		for !alive(other.Process.Pid) { // execve has begun, and its arguments are not there yet
			time.Sleep(time.Millisecond)
		}
		if err := os.MkdirAll(opts.State, 0o711); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(opts.State, "containerd.pid"), fmt.Append(nil, other.Process.Pid, "\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := daemon.Start(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		if lives := alive(other.Process.Pid); lives == ends {
			t.Errorf("%s: alive is %v", arg, lives)
		}
		_ = syscall.Kill(-other.Process.Pid, syscall.SIGKILL)
		_ = other.Wait()
		if err := d.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestNoSyncStartsOverAfterTheHostWentDown(t *testing.T) {
	daemontest.Require(t)
	daemontest.Each(t, func(t *testing.T, binary string) {
		opts := daemontest.Options(t, binary)
		trace := filepath.Join(opts.Root, "trace")
		boot := filepath.Join(opts.Root, "nosync.boot")
		start := func() {
			t.Helper()
			d, err := daemon.Start(t.Context(), opts)
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		}
		start()
		if err := os.WriteFile(trace, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		start()
		if _, err := os.Stat(trace); err != nil {
			t.Errorf("after a stop in order: %v", err)
		}
		if err := os.WriteFile(boot, []byte("another boot\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		opts.NoSync = false // what counts is how it was written
		start()
		if _, err := os.Stat(trace); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after the host went down: %v", err)
		}
		if _, err := os.Stat(boot); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("mark: %v", err)
		}
	})
}

func TestStartFails(t *testing.T) {
	daemontest.Require(t)
	script := func(text string) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), "containerd")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		name, says string
		change     func(*daemon.Options)
	}{
		{"no binary", "install containerd", func(o *daemon.Options) { o.Binary = "/nonexistent/containerd" }},
		{"ends at once", "exit status 3: it is broken", func(o *daemon.Options) { o.Binary = script("echo it is broken >&2; exit 3") }},
		{"never serves", "gave up", func(o *daemon.Options) { o.Binary = script("exec sleep 1000") }},
		{"no snapshotter", "no snapshotter nonesuch", func(o *daemon.Options) { o.Snapshotter = "nonesuch" }},
		{"broken snapshotter", "snapshotter devmapper does not work", func(o *daemon.Options) { o.Snapshotter = "devmapper" }},
		{"long path", "too long", func(o *daemon.Options) { o.State += strings.Repeat("x", 100) }},
		{"relative path", "absolute", func(o *daemon.Options) { o.State = "run" }},
		{"one directory", "two absolute paths", func(o *daemon.Options) { o.State = o.Root + "/" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			opts := daemontest.Options(t, "")
			c.change(&opts)
			ctx := t.Context()
			if c.name == "never serves" {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeoutCause(ctx, 200*time.Millisecond, errors.New("gave up"))
				defer cancel()
			}
			_, err := daemon.Start(ctx, opts)
			if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("start: %v", err)
			}
			gone(t, opts)
			if _, err := os.Stat("run"); err == nil {
				t.Error("made a directory in the working directory")
			}
		})
	}
}

func TestFind(t *testing.T) {
	dir, err := os.MkdirTemp("", "ces")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	mute := filepath.Join(dir, "mute.sock")
	listener, err := net.Listen("unix", mute)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	stale := filepath.Join(dir, "stale.sock")
	dead, err := net.Listen("unix", stale)
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = dead.Close()

	for socket, says := range map[string]string{
		filepath.Join(dir, "none.sock"): "no such socket",
		stale:                           "nobody listens",
		mute:                            "gave up",
	} {
		ctx := t.Context()
		if socket == mute {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(ctx, 100*time.Millisecond, errors.New("gave up"))
			defer cancel()
		}
		_, err := daemon.Find(ctx, socket)
		var notReady *sandbox.NotReadyError
		if !errors.As(err, &notReady) || notReady.Check != "containerd" || !strings.Contains(notReady.Reason, socket+": "+says) || !strings.Contains(notReady.Reason, "containerd.address") {
			t.Errorf("%s: %v", socket, err)
		}
	}
}
