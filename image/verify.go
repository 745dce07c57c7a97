package image

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"golang.org/x/sys/unix"
)

const (
	// launcher is PID 1 of every sandbox, see image/launcher.
	launcher = "/usr/lib/code-execution-sandbox/launcher"
	// sandboxUID is the user of every program.
	sandboxUID = "1000"
	// environmentFile is written by image/Dockerfile for the model to read.
	environmentFile = "/usr/lib/code-execution-sandbox/environment"
	// maxEnvironment bounds what is kept of it, in bytes; a label of containerd
	// has 4096 at most, name included.
	maxEnvironment = 2048
	// maxOffenders bounds how many problems one error lists.
	maxOffenders = 20
)

// UnfitError says that an image is not what a sandbox relies on.
type UnfitError struct {
	Name string
	// Offenders are the first problems, one phrase each; More counts the rest.
	Offenders []string
	More      int
}

func (e *UnfitError) Error() string {
	text := fmt.Sprintf("image %s is not fit for a sandbox: %s", e.Name, strings.Join(e.Offenders, "; "))
	if e.More > 0 {
		text += fmt.Sprintf("; and %d more", e.More)
	}
	return text + ": correct image/Dockerfile and build it again"
}

func (e *UnfitError) add(format string, args ...any) {
	if len(e.Offenders) == maxOffenders {
		e.More++
		return
	}
	e.Offenders = append(e.Offenders, fmt.Sprintf(format, args...))
}

// verify looks at the unpacked tree of img as a sandbox will see it, and reads
// Environment from it. Preconditions: ctx carries a lease.
func verify(ctx context.Context, snapshotter snapshots.Snapshotter, img *Image) error {
	unfit := &UnfitError{Name: img.Name}
	if img.Layers < 2 {
		// The overlayfs snapshotter makes it a bind mount. All sandboxes would
		// then share inodes, and with them file locks to signal with.
		unfit.add("it has a single layer, two are needed")
	}
	err := viewed(ctx, snapshotter, *img, func() (err error) {
		if err := examine(ctx, unfit); err != nil {
			return err
		}
		img.Environment, err = readEnvironment()
		return err
	})
	if err != nil {
		return err
	}
	if len(unfit.Offenders) > 0 {
		return unfit
	}
	return nil
}

// viewed calls look with the unpacked tree of img as its root directory.
// Preconditions: ctx carries a lease.
func viewed(ctx context.Context, snapshotter snapshots.Snapshotter, img Image, look func() error) (err error) {
	lease, _ := leases.FromContext(ctx)
	// Not a name that a sweep looks for.
	key := "code-execution-sandbox-verify-" + lease
	mounts, err := snapshotter.View(ctx, key, img.ChainID)
	if err != nil {
		return fmt.Errorf("view snapshot: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), cleanupTimeout, errors.New("cleaning up took too long"))
		defer cancel()
		if e := snapshotter.Remove(ctx, key); e != nil {
			err = errors.Join(err, fmt.Errorf("remove view: %w", e))
		}
	}()
	return inside(mounts, look)
}

// inside calls look with the mounts as its root directory, so that every path
// and every symbolic link means what it means in the sandbox.
//
// All of it happens on a thread with a mount namespace of its own, which ends
// with the thread: nobody else sees the mount, and not even SIGKILL can leave
// it behind.
func inside(mounts []mount.Mount, look func() error) error {
	for _, m := range mounts {
		size := 0
		for _, option := range m.Options {
			size += len(option) + 1
		}
		// For longer options package mount turns to another thread, whose
		// mount namespace is the host's (mountAt in mount_linux.go).
		if m.Type == "overlay" && size >= os.Getpagesize()-512 {
			return errors.New("the image has too many layers: build it with fewer")
		}
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread is of no other use
		if unix.Gettid() == unix.Getpid() {
			// The process's first thread never ends before the process does,
			// and would keep copies of the host's mounts. Hold it, so that the
			// next try gets another.
			defer runtime.UnlockOSThread()
			done <- inside(mounts, look)
			return
		}
		done <- insideThread(mounts, look)
	}()
	return <-done
}

func insideThread(mounts []mount.Mount, look func() error) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); errors.Is(err, unix.EPERM) {
		return fmt.Errorf("make a mount namespace: %w: run this as root", err)
	} else if err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	// Any directory does; this one is on every host.
	const target = "/proc"
	if err := mount.All(mounts, target); err != nil {
		return fmt.Errorf("mount the image: %w (does containerd share this process's file system?)", err)
	}
	if err := unix.Chroot(target); err != nil {
		return fmt.Errorf("enter the image: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("enter the image: %w", err)
	}
	return look()
}

// examine adds to unfit whatever is wrong with the tree at "/".
func examine(ctx context.Context, unfit *UnfitError) error {
	// Mount targets: the root is read-only, so nothing can be made later, and
	// a symbolic link would let the image say what is covered.
	for _, dir := range []string{"/dev", "/proc", "/tmp"} {
		info, err := os.Lstat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			unfit.add("directory %s is missing", dir)
		case err != nil:
			return err
		case !info.IsDir():
			unfit.add("%s is not a directory", dir)
		case dir == "/tmp" && info.Mode() != fs.ModeDir|fs.ModeSticky|0o777:
			unfit.add("/tmp has mode %04o, not 1777", unixMode(info.Mode()))
		}
	}
	for _, file := range []string{launcher, "/usr/bin/python3", "/bin/bash"} {
		if err := examineProgram(unfit, file); err != nil {
			return err
		}
	}
	if err := examineUser(unfit); err != nil {
		return err
	}
	return filepath.WalkDir("/", func(name string, entry fs.DirEntry, err error) error {
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		// The sandbox mounts its own over these two, so nobody can reach what
		// is in them; images made by debootstrap have device nodes in /dev.
		if name == "/dev" || name == "/proc" {
			return fs.SkipDir
		}
		return examineFile(unfit, name, entry)
	})
}

// examineProgram checks what everybody must be able to execute. "Everybody"
// matters: with a user namespace root's files belong to nobody in there.
func examineProgram(unfit *UnfitError, name string) error {
	info, err := os.Lstat(name)
	if err == nil && name != launcher {
		info, err = os.Stat(name)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		unfit.add("%s is missing", name)
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		unfit.add("%s is not a regular file", name)
	case info.Mode()&0o005 != 0o005:
		unfit.add("%s has mode %04o: everybody must be able to read and execute it", name, unixMode(info.Mode()))
	}
	real, err := filepath.EvalSymlinks(name)
	if err != nil {
		return err
	}
	for dir := path.Dir(real); ; dir = path.Dir(dir) {
		info, err := os.Lstat(dir)
		if err != nil {
			return err
		}
		if info.Mode()&0o005 != 0o005 {
			unfit.add("%s has mode %04o: everybody must be able to enter it", dir, unixMode(info.Mode()))
		}
		if dir == "/" {
			return nil
		}
	}
}

// examineUser checks that the user of the programs has a name.
func examineUser(unfit *UnfitError) error {
	info, err := os.Stat("/etc/passwd")
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		unfit.add("file /etc/passwd is missing")
		return nil
	}
	if err != nil {
		return err
	}
	file, err := os.Open("/etc/passwd")
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(io.LimitReader(file, 1<<20))
	for lines.Scan() {
		if fields := strings.Split(lines.Text(), ":"); len(fields) > 2 && fields[2] == sandboxUID {
			return nil
		}
	}
	unfit.add("/etc/passwd has no user with id %s", sandboxUID)
	return lines.Err()
}

// readEnvironment is the text of environmentFile on one line.
func readEnvironment() (string, error) {
	info, err := os.Lstat(environmentFile)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	file, err := os.Open(environmentFile)
	if err != nil {
		return "", err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxEnvironment))
	return strings.Join(strings.Fields(strings.ToValidUTF8(string(text), "")), " "), err
}

// examineFile checks one entry of the tree for ways to gain or keep anything.
func examineFile(unfit *UnfitError, name string, entry fs.DirEntry) error {
	info, err := entry.Info()
	if err != nil {
		return err
	}
	mode := info.Mode()
	switch {
	case mode&fs.ModeSymlink != 0:
		return nil
	case mode&fs.ModeDevice != 0:
		unfit.add("device node %s", name)
	case !mode.IsDir() && mode&fs.ModeSetuid != 0:
		unfit.add("setuid file %s", name)
	case !mode.IsDir() && mode&fs.ModeSetgid != 0:
		unfit.add("setgid file %s", name)
	case mode&0o002 != 0 && name != "/tmp":
		unfit.add("world-writable %s", name)
	}
	if !mode.IsRegular() {
		return nil
	}
	_, err = unix.Lgetxattr(name, "security.capability", nil)
	switch {
	case err == nil:
		unfit.add("file capabilities on %s", name)
	case !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("read capabilities of %s: %w", name, err)
	}
	return nil
}

// unixMode is mode as chmod(1) wants it.
func unixMode(mode fs.FileMode) uint32 {
	bits := uint32(mode.Perm())
	for flag, bit := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if mode&flag != 0 {
			bits |= bit
		}
	}
	return bits
}
