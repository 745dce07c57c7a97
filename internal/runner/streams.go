package runner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// runcShim is the shim whose processes are processes of the host.
const runcShim = "io.containerd.runc.v2"

// streams are our ends of the standard streams of a sandbox.
//
// The launcher makes the pipes, and we open their other ends by way of /proc:
// nothing stands between us and the program, so its end of file is ours, and
// neither the shim nor containerd has to be awake for a call. Where the launcher is
// no process of the host (gVisor), the shim relays between FIFOs and the sandbox.
type streams struct {
	stdin, stdout, stderr *os.File
	// keep is the other end of stdin's FIFO, which can then be opened before the
	// shim does, or of the pipe by which the launcher sees that we live and says
	// that the program starts.
	keep *os.File
}

// started reports whether the launcher has said in the pipe of its own that the
// program starts. What it has said stays there until it is asked for.
func (s *streams) started() bool {
	var said [1]byte
	n := 0
	conn, err := s.keep.SyscallConn()
	if err != nil {
		return false // it is closed
	}
	_ = conn.Read(func(fd uintptr) bool {
		n, _ = unix.Read(int(fd), said[:])
		return true
	})
	return n == 1 && said[0] == startByte
}

// cut closes the program's streams. The launcher may still see that we live.
func (s *streams) cut() { closeAll(s.stdin, s.stdout, s.stderr) }

func (s *streams) closeStreams() { closeAll(s.keep, s.stdin, s.stdout, s.stderr) }

func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

// end is one of our ends: the file that it becomes, the descriptor in the
// launcher, and how it is opened.
type end struct {
	file       **os.File
	descriptor int
	flag       int
}

// lifeDescriptor is LIFE in image/launcher/launcher.c.
const lifeDescriptor = 15

// ends lists them, with keep at the descriptor of the launcher that is given. In
// this order, and without blocking, none waits for anybody.
func (s *streams) ends(keep int) []end {
	return []end{
		{&s.keep, keep, os.O_RDONLY},
		{&s.stdin, 0, os.O_WRONLY},
		{&s.stdout, 1, os.O_RDONLY},
		{&s.stderr, 2, os.O_RDONLY},
	}
}

// fifo returns the path of the FIFO behind a descriptor of the launcher.
func fifo(dir string, descriptor int) string {
	return filepath.Join(dir, [...]string{"stdin", "stdout", "stderr"}[descriptor])
}

// openFIFOs makes the FIFOs between us and the shim, in a directory of their own.
func openFIFOs(dir string) (s streams, err error) {
	defer func() {
		if err != nil {
			s.closeStreams()
		}
	}()
	err = os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrNotExist) { // somebody has tidied up the run directory
		err = errors.Join(os.MkdirAll(filepath.Dir(filepath.Dir(dir)), 0o711), os.MkdirAll(dir, 0o700))
	}
	if err != nil {
		return s, fmt.Errorf("create stream directory: %w", err)
	}
	for _, e := range s.ends(0) {
		path := fifo(dir, e.descriptor)
		if err := unix.Mkfifo(path, 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
			return s, fmt.Errorf("create %s: %w", path, err)
		}
		f, err := os.OpenFile(path, e.flag|unix.O_NONBLOCK, 0)
		if err != nil {
			return s, fmt.Errorf("open stream: %w", err)
		}
		*e.file = f
	}
	return s, nil
}

// openPipes opens the ends of the pipes that the launcher has made. genuine tells
// whether its pid still is the launcher's, once it can no longer pass on to
// another process without our noticing.
func openPipes(launcher int, genuine func() bool) (s streams, err error) {
	defer func() {
		if err != nil {
			s.closeStreams()
		}
	}()
	proc := filepath.Join("/proc", strconv.Itoa(launcher))
	dir, err := unix.Open(proc, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		err = fmt.Errorf("%w (the launcher has ended, or the server does not see the host's processes)", err)
	}
	if err != nil {
		return s, fmt.Errorf("open %s: %w", proc, err)
	}
	defer func() { _ = unix.Close(dir) }()
	if !genuine() {
		// Looking takes a descriptor itself.
		if _, err := os.ReadFile(filepath.Join(proc, "stat")); err != nil {
			return s, fmt.Errorf("look at the launcher: %w", err)
		}
		return s, fmt.Errorf("%s is not the launcher (the server must see the host's processes)", proc)
	}
	for _, e := range s.ends(lifeDescriptor) {
		name := "fd/" + strconv.Itoa(e.descriptor)
		fd, err := unix.Openat(dir, name, e.flag|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("%w (it takes CAP_SYS_PTRACE)", err)
		}
		if err != nil {
			return s, fmt.Errorf("open %s/%s: %w", proc, name, err)
		}
		*e.file = os.NewFile(uintptr(fd), name)
	}
	return s, nil
}
