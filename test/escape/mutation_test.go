package escape

import (
	"cmp"
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
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"code-execution-sandbox/image"
	"code-execution-sandbox/internal/runner"
	"code-execution-sandbox/internal/sandbox"
	"code-execution-sandbox/test/harness"
)

// envMutation makes this test binary a step before the runtime: it changes the
// specification of the sandbox in the way named, and the runtime goes on with
// the changed one. So the product needs no switch that could be left on.
const (
	envMutation = "ESCAPE_MUTATION"
	// envTree is a directory of the test's: a root file system, or a place for
	// a planted program.
	envTree = "ESCAPE_TREE"
	// envPID is the process whose PID namespace is joined.
	envPID = "ESCAPE_PID"
)

// mutation takes one protection away.
type mutation struct {
	name string
	edit func(s *specs.Spec, bundle string) error
	// red are the rows that must fail without it.
	red []int
	// green are rows that might be expected to fail and do not, with the reason.
	green map[int]string
	// unproven: the self-test does not see it.
	unproven bool
	// only these rows are run, where others would be unsafe or mean nothing.
	only []int
	// shared makes the root file system that takes the place of the sandbox's own.
	shared func(t *testing.T) string
	// holds asks for a process that holds namespaces to join.
	holds bool
}

// Names that take nothing away.
const (
	mutationNone        = "none"
	mutationRuntimetest = "runtimetest"
)

var mutations = []mutation{
	{name: mutationNone, edit: func(*specs.Spec, string) error { return nil }},
	{name: "no seccomp", red: []int{57, 61, 75, 85, 14, 67, 70, 30, 38, 98},
		edit: func(s *specs.Spec, _ string) error { s.Linux.Seccomp = nil; return nil }},
	{name: "three architectures", red: []int{30},
		edit: func(s *specs.Spec, _ string) error {
			s.Linux.Seccomp.Architectures = []specs.Arch{specs.ArchX86_64, specs.ArchX86, specs.ArchX32}
			// On 32 bits the sockets are one call with the arguments behind a
			// pointer, for which libseccomp takes no rules as these.
			for i := range s.Linux.Seccomp.Syscalls {
				rule := &s.Linux.Seccomp.Syscalls[i]
				rule.Names = slices.DeleteFunc(rule.Names, func(n string) bool { return n == "socket" || n == "socketpair" })
			}
			s.Linux.Seccomp.Syscalls = slices.DeleteFunc(s.Linux.Seccomp.Syscalls, func(r specs.LinuxSyscall) bool { return len(r.Names) == 0 })
			return nil
		}},
	{name: "all of proc", red: []int{33, 34, 35, 36},
		edit: func(s *specs.Spec, _ string) error {
			for i := range s.Mounts {
				s.Mounts[i].Options = slices.DeleteFunc(s.Mounts[i].Options, func(o string) bool { return o == "subset=pid" })
			}
			return nil
		}},
	{name: "no user namespace", red: []int{42}, edit: withoutUserNamespace},
	{name: "a writable root file system", red: []int{1, 2}, shared: writableTree,
		edit: func(s *specs.Spec, _ string) error {
			s.Root.Path, s.Root.Readonly = os.Getenv(envTree), false
			return nil
		}},
	{name: "one root file system for all", unproven: true, red: []int{19}, shared: sharedTree,
		edit: func(s *specs.Spec, _ string) error { s.Root.Path = os.Getenv(envTree); return nil }},
	// Without no_new_privs runc sets the filter first, and ours then refuses it
	// what it still has to do: the sandbox does not start.
	{name: "new privileges, no seccomp", red: []int{79}, only: []int{79},
		edit: func(s *specs.Spec, _ string) error {
			s.Process.NoNewPrivileges, s.Linux.Seccomp = false, nil
			return nil
		}},
	{name: "capabilities kept", red: []int{41, 78},
		edit: func(s *specs.Spec, _ string) error {
			all := []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_NET_RAW", "CAP_SYS_CHROOT", "CAP_MKNOD", "CAP_SYS_ADMIN", "CAP_SYS_PTRACE"}
			s.Process.Capabilities = &specs.LinuxCapabilities{Bounding: all, Effective: all, Permitted: all, Inheritable: all, Ambient: all}
			return nil
		}},
	{name: "no limit of processes", red: []int{102}, only: []int{102, 51},
		edit: func(s *specs.Spec, _ string) error { s.Linux.Resources.Pids = nil; return nil }},
	{name: "no limit of memory", red: []int{105}, only: []int{105, 51},
		edit: func(s *specs.Spec, _ string) error { s.Linux.Resources.Memory = nil; return nil }},
	{name: "programs run from tmp", red: []int{23, 24, 26},
		edit: func(s *specs.Spec, _ string) error {
			for i := range s.Mounts {
				if s.Mounts[i].Destination == "/tmp" {
					s.Mounts[i].Options = slices.DeleteFunc(s.Mounts[i].Options, func(o string) bool { return o == "noexec" })
				}
			}
			return nil
		}},
	{name: "one user id for all, no seccomp", red: []int{116, 169},
		edit: func(s *specs.Spec, b string) error { s.Linux.Seccomp = nil; return withoutUserNamespace(s, b) }},
	{name: "the program is the first process", red: []int{134}, only: []int{134}, edit: programFirst},
	{name: "one PID namespace for all", red: []int{43}, only: []int{43, 138}, edit: sharedPIDs, holds: true,
		green: map[int]string{138: "the launcher ends whatever a program leaves, before the end of the PID namespace would"}},
	{name: "no limits of a process", unproven: true, red: []int{94, 95, 118, 212},
		edit: func(s *specs.Spec, _ string) error {
			s.Process.Rlimits = slices.DeleteFunc(s.Process.Rlimits, func(l specs.POSIXRlimit) bool { return l.Type != "RLIMIT_CORE" && l.Type != "RLIMIT_NOFILE" })
			return nil
		}},
	{name: "one network namespace for all", red: []int{64}, only: []int{64, 51}, edit: sharedNetwork, holds: true},
	{name: "a sysfs", red: []int{44},
		edit: func(s *specs.Spec, _ string) error {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro", "nosuid", "noexec", "nodev"}})
			return nil
		}},
	{name: "another host name", unproven: true, red: []int{48},
		edit: func(s *specs.Spec, _ string) error { s.Hostname = "elsewhere"; return nil }},
}

func withoutUserNamespace(s *specs.Spec, _ string) error {
	s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.UserNamespace })
	s.Linux.UIDMappings, s.Linux.GIDMappings = nil, nil
	return nil
}

// programFirst puts user code where the launcher was. It reads the frame as
// the launcher does and becomes the program; there is no report at the end.
func programFirst(s *specs.Spec, _ string) error {
	s.Process.Args = append([]string{"/usr/bin/python3", "-I", "-c", `
import os, sys
held, relay = [], os.dup(1)
for fd in 0, 1, 2:
    reader, writer = os.pipe()
    own, other = (writer, reader) if fd else (reader, writer)
    os.dup2(own, fd)
    os.close(own)
    held.append(other)
reader, writer = os.pipe()
os.dup2(writer, 15)
held.append(reader)
os.write(relay, b"P")
os.close(relay)
os.write(1, b"R")
os.read(0, 1)
for fd in held: os.close(fd)
def exactly(n):
    b = b""
    while len(b) < n: b += os.read(0, n - len(b))
    return b
header = exactly(24)
code = exactly(int.from_bytes(header[20:], "big"))
open("/tmp/main", "wb").write(code)
os.write(15, b"S")
language = sys.argv[1]
os.execv("/usr/bin/" + {"python": "python3"}.get(language, language), [language, "/tmp/main"])`}, s.Process.Args[1:]...)
	return nil
}

// holder is a process in namespaces of its own, which ends with the test.
func holder(t *testing.T) (pid string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sleep", "300")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return strconv.Itoa(cmd.Process.Pid)
}

// foreignUID is the user of a sandbox that shares a namespace: without a user
// namespace it would be the host's 1000, and there are such people.
const foreignUID = 0x6fff0000

// sharedPIDs joins a PID namespace that the test has made, never the host's.
// /proc of a namespace can be mounted by its owner alone, so there is no user
// namespace.
func sharedPIDs(s *specs.Spec, b string) error { return join(s, b, specs.PIDNamespace, "pid") }

func sharedNetwork(s *specs.Spec, b string) error { return join(s, b, specs.NetworkNamespace, "net") }

func join(s *specs.Spec, b string, kind specs.LinuxNamespaceType, name string) error {
	for i := range s.Linux.Namespaces {
		if n := &s.Linux.Namespaces[i]; n.Type == kind {
			n.Path = "/proc/" + os.Getenv(envPID) + "/ns/" + name
		}
	}
	s.Process.User.UID, s.Process.User.GID = foreignUID, foreignUID
	return withoutUserNamespace(s, b)
}

// The program that is planted, in the place of one that nobody misses.
const planted = "/usr/bin/tsort"

const (
	plantSetuid  = "id"
	plantCapable = "cat"
)

// plant mounts a copy of a program of the image over another one: owned by the
// sandbox's root with the setuid bit, or with every capability.
func plant(s *specs.Spec, bundle, program string) error {
	code, err := os.ReadFile(filepath.Join(bundle, "rootfs/usr/bin", program))
	if err != nil {
		return err
	}
	root := 0
	if maps := s.Linux.UIDMappings; len(maps) > 0 {
		root = int(maps[0].HostID)
	}
	file := filepath.Join(os.Getenv(envTree), filepath.Base(bundle))
	if err := os.WriteFile(file, code, 0o755); err != nil { //nolint:gosec // it is meant to be run
		return err
	}
	if err := os.Chown(file, root, root); err != nil {
		return err
	}
	switch program {
	case plantSetuid:
		err = os.Chmod(file, 0o6755|os.ModeSetuid|os.ModeSetgid)
	case plantCapable:
		// linux/capability.h: VFS_CAP_REVISION_3 with the effective bit, all
		// permitted, none inheritable, for the namespace of this root.
		value := make([]byte, 0, 24)
		for _, word := range []uint32{0x03000001, 0xffffffff, 0, 0x1ff, 0, uint32(root)} { //nolint:gosec // an id
			value = binary.LittleEndian.AppendUint32(value, word)
		}
		err = unix.Setxattr(file, "security.capability", value, 0)
	}
	if err != nil {
		return err
	}
	s.Mounts = append(s.Mounts, specs.Mount{Destination: planted, Type: "bind", Source: file, Options: []string{"bind"}})
	return nil
}

// mutate is what the test binary does in the runtime's place: it edits the
// bundle that is named in the runtime's arguments. The name is that of a
// mutation, with that of a program to plant after a slash.
func mutate(name string, args []string) int {
	name, program, _ := strings.Cut(name, "/")
	err := func() error {
		i := slices.Index(args, "--bundle")
		if i < 0 || i+1 == len(args) {
			return fmt.Errorf("no bundle in %q", args)
		}
		file := filepath.Join(args[i+1], "config.json")
		raw, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var spec specs.Spec
		if err := json.Unmarshal(raw, &spec); err != nil {
			return err
		}
		edit := withRuntimetest
		if name != mutationRuntimetest {
			m := slices.IndexFunc(mutations, func(m mutation) bool { return m.name == name })
			if m < 0 {
				return fmt.Errorf("no mutation %q", name)
			}
			edit = mutations[m].edit
		}
		if err := edit(&spec, args[i+1]); err != nil {
			return err
		}
		if program != "" {
			if err := plant(&spec, args[i+1], program); err != nil {
				return err
			}
		}
		if raw, err = json.Marshal(&spec); err != nil {
			return err
		}
		return os.WriteFile(file, raw, 0o600)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		return 1
	}
	return 0
}

// wrapper writes the runtime binary that mutates and then is the real one.
func wrapper(t testing.TB, name string, env map[string]string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		t.Fatal(err)
	}
	vars := fmt.Sprintf("%s='%s'", envMutation, name)
	for k, v := range env {
		vars += fmt.Sprintf(" %s='%s'", k, v)
	}
	script := fmt.Sprintf("#!/bin/sh\ncase \" $* \" in *' create '*) %s '%s' \"$@\" || exit 1 ;; esac\nexec '%s' \"$@\"\n", vars, self, runc)
	file := filepath.Join(t.TempDir(), "runtime")
	if err := os.WriteFile(file, []byte(script), 0o755); err != nil { //nolint:gosec // it is meant to be run
		t.Fatal(err)
	}
	return file
}

// with runs an exam of its own: the same mutation, with a program planted.
func (x *exam) with(program string, do func(y *exam)) {
	x.settle()
	x.t.Run("with "+program, func(t *testing.T) {
		env := map[string]string{envTree: plot(t)}
		opts := harness.Options(t)
		opts.RuntimeBinary = wrapper(t, cmp.Or(x.mutation, mutationNone)+"/"+program, env)
		y := newExam(t, opts)
		do(y)
		x.take(y)
	})
}

// take takes over the faults of another exam.
func (x *exam) take(y *exam) {
	for n, faults := range y.faults {
		for _, f := range faults {
			x.fault(n, "%s", f)
		}
	}
}

// plot is a file system without nosuid: /tmp of the host may have it.
func plot(t testing.TB) string {
	t.Helper()
	dir := directory(t)
	if err := unix.Mount("plot", dir, "tmpfs", 0, "mode=755,size=64m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// directory is one that mapped users can pass.
func directory(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cese")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // mapped users must pass
		t.Fatal(err)
	}
	return dir
}

// sharedTree is the image's root file system, mounted once.
func sharedTree(t *testing.T) string { return tree(t, false) }

// writableTree is one that can be written.
func writableTree(t *testing.T) string { return tree(t, true) }

// kept keeps a snapshot that no container refers to.
var kept = snapshots.WithLabels(map[string]string{"containerd.io/gc.root": "escape"})

func tree(t *testing.T, writable bool) string {
	t.Helper()
	ctx := t.Context()
	img, err := image.Find(ctx, harness.Client(), harness.ImageName, "overlayfs")
	if err != nil {
		t.Fatal(err)
	}
	store := harness.Client().SnapshotService("overlayfs")
	const key = "escape-tree"
	mounts, err := store.View(ctx, key, img.ChainID, kept)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Remove(context.WithoutCancel(ctx), key); err != nil {
			t.Error(err)
		}
	})
	if writable {
		above := plot(t)
		for _, d := range []string{"upper", "work"} {
			if err := os.Mkdir(filepath.Join(above, d), 0o755); err != nil { //nolint:gosec // mapped users must pass
				t.Fatal(err)
			}
		}
		mounts[0].Options = append(mounts[0].Options, "upperdir="+filepath.Join(above, "upper"), "workdir="+filepath.Join(above, "work"))
	}
	dir := directory(t)
	if err := mount.All(mounts, dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mount.UnmountAll(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// proof is what the server's own self-test says.
func proof(t *testing.T, opts runner.Options) error {
	t.Helper()
	opts.SelfTest = true
	r, err := runner.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	err = r.Refresh(t.Context())
	if notReady := (*sandbox.NotReadyError)(nil); err != nil && (!errors.As(err, &notReady) || notReady.Check != "selftest") {
		t.Errorf("no verdict of the self-test: %v", err)
	}
	return err
}

// TestMutations takes the protections away one at a time, and wants the rows
// that each serves to fail: a test that cannot fail proves nothing. Without a
// mutation, the same way through the wrapper fails no row. With -sweep all
// probes are run, and it prints whatever else depends on the protection.
func TestMutations(t *testing.T) {
	var probes []int
	for _, section := range sections {
		for _, r := range section.rows {
			if r.probe != "" {
				probes = append(probes, r.n)
			}
		}
	}
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			env := map[string]string{}
			if m.shared != nil {
				env[envTree] = m.shared(t)
			}
			if m.holds {
				env[envPID] = holder(t)
			}
			opts := harness.Options(t)
			opts.RuntimeBinary = wrapper(t, m.name, env)
			x := newExam(t, opts)
			x.mutation = m.name
			// A sandbox that does not start is no proof of anything.
			control := harness.Bash("echo works; sleep 60")
			control.Timeout = time.Second
			if res := harness.Run(t, x.r, control); string(res.Stdout) != "works\n" {
				t.Fatalf("the sandbox does not work without %s: %+v", m.name, res)
			}
			numbers := m.only
			if numbers == nil {
				numbers = slices.Clone(m.red)
			}
			if m.only == nil && (*sweep || m.name == mutationNone) {
				numbers = append(numbers, probes...)
			}
			rows := slices.DeleteFunc(rowsOf(numbers...), func(r row) bool {
				// Long ones only where they are meant.
				return r.probe == "" && !slices.Contains(m.red, r.n) && m.only == nil
			})
			x.sit(rows)
			var red []int
			for n, faults := range x.faults {
				if slices.ContainsFunc(faults, func(f string) bool { return !strings.HasPrefix(f, errNoVerdict) }) {
					red = append(red, n)
				} else {
					t.Errorf("row %d: %s", n, faults)
				}
			}
			slices.Sort(red)
			fmt.Printf("mutation: %-34s red: %s\n", m.name+":", strings.Trim(fmt.Sprint(red), "[]"))
			for _, n := range m.red {
				if !slices.Contains(red, n) {
					t.Errorf("without %s row %d holds all the same: %q", m.name, n, x.faults[n])
				}
			}
			if err := proof(t, opts); (err != nil) != (m.name != mutationNone && !m.unproven) {
				t.Errorf("the self-test says: %v", err)
			}
			for n, why := range m.green {
				if slices.Contains(red, n) {
					t.Errorf("row %d fails, although %s: %q", n, why, x.faults[n])
				}
			}
			if m.name == mutationNone && len(red) > 0 {
				t.Errorf("nothing is taken away, and rows fail: %v", x.faults)
			}
			if testing.Verbose() {
				for _, n := range red {
					t.Logf("row %d: %.300q", n, x.faults[n])
				}
			}
		})
	}
}

// TestStopIsNoEnd: where a program can make the launcher its tracer, a signal that
// it gets is no end of it.
func TestStopIsNoEnd(t *testing.T) {
	opts := harness.Options(t)
	opts.RuntimeBinary = wrapper(t, "no seccomp", nil)
	x := newExam(t, opts)
	got := x.python(83, `
signal.signal(signal.SIGUSR1, lambda *_: print("caught"))
print(call("ptrace", 0, 0, 0, 0))
os.kill(os.getpid(), signal.SIGUSR1)
print("went on")`)
	if want := "ok\ncaught\nwent on"; got != want || len(x.faults) > 0 {
		t.Errorf("got %q, want %q; %v", got, want, x.faults)
	}
}
