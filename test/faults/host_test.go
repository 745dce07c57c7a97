package faults

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"golang.org/x/sys/unix"

	"code-execution-sandbox/image"
	"code-execution-sandbox/internal/daemon"
	"code-execution-sandbox/internal/runner"
	"code-execution-sandbox/internal/sandbox"
	"code-execution-sandbox/test/harness"
)

// The image is removed, collected and comes back: running calls do not notice,
// those that wait are refused, even where a sandbox is prepared.
func TestF10ImageGoesAway(t *testing.T) {
	t.Parallel()
	opts, _ := own(t, daemon.Options{})
	opts.Pool = map[sandbox.Language]int{sandbox.Bash: 1}
	opts.Slots = 1
	r := maintained(t, opts)
	call := start(t, r, opts, bash("sleep 6; python3 -c 'import json; print(json.dumps(1))'", 30*time.Second))
	waiting := make(chan answer, 1)
	go func() { waiting <- execute(t, r, bash("echo", time.Second)) }()
	eventually(t, 20*time.Second, "a call waits, and a sandbox for it", func() bool {
		return r.Load().Queued == 1 && r.Load().Prepared[sandbox.Bash] == 1
	})
	img, err := image.Find(t.Context(), opts.Client, harness.ImageName, opts.Snapshotter)
	if err != nil {
		t.Fatal(err)
	}
	if err := opts.Client.ImageService().Delete(t.Context(), img.Name, images.SynchronousDelete()); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "calls are refused", func() bool {
		var notReady *sandbox.NotReadyError
		return errors.As(r.Health(t.Context()), &notReady) && notReady.Check == "image"
	})
	execute(t, r, bash("echo", time.Second)).unavailable(t, "image")
	// Everything that nothing refers to goes.
	lease, err := opts.Client.LeasesService().Create(t.Context(), leases.WithRandomID())
	if err != nil {
		t.Fatal(err)
	}
	if err := opts.Client.LeasesService().Delete(t.Context(), lease, leases.SynchronousDelete); err != nil {
		t.Fatal(err)
	}
	(<-call).is(t, sandbox.StatusExited, "1\n")
	(<-waiting).unavailable(t, "image")
	importImage(t, opts.Client)
	serves(t, r)
}

// A layer of the image is damaged under containerd.
func TestF11DamagedLayer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	opts, _ := own(t, daemon.Options{Root: filepath.Join(dir, "root")})
	opts.SelfTest = true
	r := maintained(t, opts)
	serves(t, r)
	layers, err := filepath.Glob(filepath.Join(dir, "root", "io.containerd.snapshotter.v1.overlayfs", "snapshots", "*", "fs"))
	if err != nil || len(layers) == 0 {
		t.Fatal(layers, err)
	}
	for _, l := range layers {
		if err := os.Rename(l, l+".away"); err != nil {
			t.Fatal(err)
		}
	}
	execute(t, r, bash("echo", time.Second)).unavailable(t, "")
	var notReady *sandbox.NotReadyError
	eventually(t, time.Minute, "the self-test fails", func() bool {
		return errors.As(r.Health(t.Context()), &notReady) && notReady.Check == "selftest"
	})
	for _, l := range layers {
		if err := os.Rename(l+".away", l); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, time.Minute, "the self-test passes", func() bool { return r.Health(t.Context()) == nil })
	serves(t, r)
}

// small is a file system that can be filled.
func small(t *testing.T, megabytes int) (dir string, fill, empty func()) {
	t.Helper()
	dir, err := os.MkdirTemp(filepath.Dir(harness.Binary()), "t")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm,nr_inodes=%dk,mode=0711", megabytes, megabytes)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Unmount(dir, unix.MNT_DETACH), os.Remove(dir)); err != nil {
			t.Error(err)
		}
	})
	filler := filepath.Join(dir, "filler")
	fill = func() {
		f, err := os.Create(filler)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		// Files first: each takes an inode, and some of the space.
		err = os.Mkdir(filler+"s", 0o700)
		for n := 0; err == nil; n++ {
			err = os.WriteFile(filepath.Join(filler+"s", strconv.Itoa(n)), nil, 0o600)
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		for size := 1 << 20; size > 0; {
			if _, err := f.Write(make([]byte, size)); errors.Is(err, syscall.ENOSPC) {
				size /= 2
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	empty = func() {
		if err := os.RemoveAll(filler + "s"); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filler); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	return dir, fill, empty
}

func TestF12DiskFull(t *testing.T) {
	check := func(t *testing.T, opts daemon.Options, runDir string, fill, empty func()) {
		ro, _ := own(t, opts)
		if runDir != "" {
			ro.RunDir = runDir
		}
		r := maintained(t, ro)
		serves(t, r)
		call := start(t, r, ro, bash("sleep 3; echo ok", 20*time.Second))
		fill()
		var served, refused int
		for range 5 {
			within(t, 40*time.Second, func() {
				a := execute(t, r, bash("echo ok", 5*time.Second))
				if a.err == nil {
					a.is(t, sandbox.StatusExited, "ok\n")
					served++
					return
				}
				a.unavailable(t, "")
				refused++
			})
		}
		t.Logf("while full: %d served, %d refused", served, refused)
		(<-call).is(t, sandbox.StatusExited, "ok\n")
		empty()
		serves(t, r)
		clean(t, ro)
	}
	t.Run("root", func(t *testing.T) {
		t.Parallel()
		dir, fill, empty := small(t, 512) // inodes enough for the image
		check(t, daemon.Options{Root: filepath.Join(dir, "root")}, "", fill, empty)
	})
	t.Run("state", func(t *testing.T) {
		t.Parallel()
		dir, fill, empty := small(t, 64)
		check(t, daemon.Options{State: filepath.Join(dir, "run")}, "", fill, empty)
	})
	t.Run("run directory", func(t *testing.T) {
		t.Parallel()
		dir, fill, empty := small(t, 1)
		check(t, daemon.Options{}, filepath.Join(dir, "r"), fill, empty)
	})
}

// No descriptor is left: calls are refused, nothing is lost.
func TestF13NoDescriptors(t *testing.T) {
	opts := harness.Options(t)
	r := maintained(t, opts)
	serves(t, r)
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	call := start(t, r, opts, bash("sleep 3; echo ok", 20*time.Second))
	for spare := range 6 {
		low := unix.Rlimit{Cur: uint64(len(descriptors()) + spare), Max: was.Max}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
			t.Fatal(err)
		}
		a := execute(t, r, bash("echo ok", 5*time.Second))
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Fatal(err)
		}
		if a.err == nil {
			a.is(t, sandbox.StatusExited, "ok\n")
			continue
		}
		a.unavailable(t, "")
	}
	(<-call).is(t, sandbox.StatusExited, "ok\n")
	serves(t, r)
}

// Leftovers of all kinds from instances that are dead, and things that only
// look like them.
func TestF20StaleFiles(t *testing.T) {
	opts := harness.Options(t)
	dead := filepath.Join(opts.RunDir, "0123456789ab")
	box := filepath.Join(dead, "0123456789ab-0123456789ab0123456789ab")
	foreign := filepath.Join(opts.RunDir, "somebody-elses")
	for _, dir := range []string{box, foreign} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	nameless := filepath.Join(opts.RunDir, "new-123")
	old := time.Now().Add(-time.Hour)
	if err := errors.Join(
		unix.Mkfifo(filepath.Join(box, "stdin"), 0o600),
		os.WriteFile(dead+".lock", nil, 0o600),
		os.WriteFile(nameless, nil, 0o600), os.Chtimes(nameless, old, old),
	); err != nil {
		t.Fatal(err)
	}
	// A cgroup of the dead instance with a process in it, and one of nobody.
	var groups []string
	for _, name := range []string{"0123456789ab-feed", "other"} {
		for _, controller := range []string{"memory", "pids", "cpu"} {
			dir := filepath.Join("/sys/fs/cgroup", controller, opts.CgroupParent, name)
			if opts.Cgroups.Version == 2 {
				dir = filepath.Join("/sys/fs/cgroup", opts.CgroupParent, name)
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			groups = append(groups, dir)
		}
	}
	r := harness.Runner(t, opts)
	swept, err := r.Sweep(t.Context())
	if err != nil || swept.Directories != 1 || swept.Cgroups != 1 {
		t.Errorf("%+v, %v", swept, err)
	}
	for _, path := range []string{dead, dead + ".lock", nameless} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
	if names := sandboxes(t, opts); len(names) != 1 || names[0] != "other" {
		t.Errorf("cgroups: %v", names)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Error("not ours, and removed:", err)
	}
	if swept, err := r.Sweep(t.Context()); err != nil || swept.Any() {
		t.Errorf("a second sweep finds %+v, %v", swept, err)
	}
	for _, dir := range groups {
		if err := os.Remove(dir); err != nil && strings.Contains(dir, "other") && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
	if err := os.Remove(foreign); err != nil {
		t.Error(err)
	}
}

// Somebody tidies up the run directory of a server that runs.
func TestF20RunDirectoryGoes(t *testing.T) {
	opts := harness.Options(t)
	r := maintained(t, opts)
	call := start(t, r, opts, bash("sleep 1; echo ok", 10*time.Second))
	locks, err := filepath.Glob(filepath.Join(opts.RunDir, "*.lock"))
	if err != nil || len(locks) != 1 {
		t.Fatal(locks, err)
	}
	if err := os.RemoveAll(strings.TrimSuffix(locks[0], ".lock")); err != nil {
		t.Fatal(err)
	}
	(<-call).is(t, sandbox.StatusExited, "ok\n")
	serves(t, r)
}

// Two in one namespace: each sweeps, none touches what the other has. One dies
// (its lock is let go), the other cleans up behind it.
func TestF18TwoRunners(t *testing.T) {
	for name, sameRunDir := range map[string]bool{"one run directory": true, "two run directories": false} {
		t.Run(name, func(t *testing.T) {
			a, b := harness.Options(t), harness.Options(t)
			b.CgroupParent = a.CgroupParent
			if sameRunDir {
				b.RunDir = a.RunDir
			}
			b.Pool = map[sandbox.Language]int{sandbox.Bash: 2}
			// b is closed first, and must leave nothing of its own; a looks for
			// everything.
			ra := maintained(t, a)
			func() {
				rb := newMaintained(t, b)
				defer rb.end(t)
				eventually(t, 30*time.Second, "the pool fills", func() bool { return rb.Load().Prepared[sandbox.Bash] == 2 })
				call := start(t, ra, a, bash("sleep 1", 10*time.Second))
				ownIDs(t, a, 3)
				(<-call).is(t, sandbox.StatusExited, "")
				var wg sync.WaitGroup
				for range 20 {
					wg.Go(func() {
						execute(t, rb.Runner, bash("sleep 0.2; echo b", 10*time.Second)).is(t, sandbox.StatusExited, "b\n")
					})
					if swept, err := ra.Sweep(t.Context()); err != nil || swept.Any() {
						t.Errorf("one sweeps what the other has: %+v, %v", swept, err)
					}
					execute(t, ra, bash("echo a", 10*time.Second)).is(t, sandbox.StatusExited, "a\n")
				}
				wg.Wait()
			}()
			serves(t, ra)
		})
	}
}

// ownIDs checks that no two of the n sandboxes that exist share host ids.
func ownIDs(t *testing.T, opts runner.Options, n int) {
	t.Helper()
	owner := map[string]string{}
	for _, id := range sandboxes(t, opts) {
		pids, err := opts.Cgroups.Group(filepath.Join(opts.CgroupParent, id)).Processes()
		if err != nil || len(pids) == 0 {
			t.Fatal(pids, err)
		}
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", pids[0]))
		if err != nil {
			t.Fatal(err)
		}
		ids := strings.Join(strings.Fields(string(raw)), " ")
		if other := owner[ids]; other != "" {
			t.Errorf("%s and %s have the same host ids: %s", id, other, ids)
		}
		owner[ids] = id
	}
	if len(owner) != n {
		t.Errorf("host ids of %d sandboxes, want %d", len(owner), n)
	}
}

// Something on the host keeps sandboxes from being removed. They keep their
// rooms, and when too many are lost the server says so; once they can be
// removed, they are. What is mounted in their directories is not deleted.
func TestF9SandboxesCannotBeRemoved(t *testing.T) {
	t.Parallel()
	opts, _ := own(t, daemon.Options{})
	opts.Slots = 1 // which makes two rooms
	r := maintained(t, opts)
	var mounts []string
	release := func() {
		for _, dir := range mounts {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		}
		mounts = nil
	}
	t.Cleanup(release)
	for range 2 {
		call := start(t, r, opts, bash("sleep 2; echo ok", 20*time.Second))
		ids := harness.Asleep(t, opts)
		if len(ids) != 1 {
			t.Fatal("programs run in", ids)
		}
		// Where the runner keeps what it has of that sandbox.
		instance, _, _ := strings.Cut(ids[0], "-")
		dir := filepath.Join(opts.RunDir, instance, ids[0], "held")
		if err := errors.Join(os.MkdirAll(dir, 0o700), unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k")); err != nil {
			t.Fatal(err)
		}
		mounts = append(mounts, dir)
		if err := os.WriteFile(filepath.Join(dir, "foreign"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		(<-call).is(t, sandbox.StatusExited, "ok\n")
	}
	eventually(t, 60*time.Second, "both are given up", func() bool { return r.Load().Quarantined == 2 })
	var notReady *sandbox.NotReadyError
	if err := r.Health(t.Context()); !errors.As(err, &notReady) || notReady.Check != "host" || !strings.Contains(notReady.Reason, "2 of 2") {
		t.Error("health:", err)
	}
	within(t, 5*time.Second, func() { execute(t, r, bash("echo", time.Second)).unavailable(t, "host") })
	for _, dir := range mounts {
		if _, err := os.Stat(filepath.Join(dir, "foreign")); err != nil {
			t.Error("deleted through a mount:", err)
		}
	}
	release()
	eventually(t, 90*time.Second, "both are removed", func() bool { return r.Load().Quarantined == 0 })
	serves(t, r)
	clean(t, opts)
}
