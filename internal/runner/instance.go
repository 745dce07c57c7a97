package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Labels on every container we make.
const (
	labelPrefix   = "code-execution-sandbox/"
	labelInstance = labelPrefix + "instance"
	labelLock     = labelPrefix + "lock"
)

// instance is one running server. It owns whatever carries its id: containers
// by their label, cgroups and FIFO directories by the beginning of their
// names. It lives as long as its lock file is locked, which no crash outlasts.
type instance struct {
	id   string // 12 hexadecimal digits
	dir  string // holds one directory of FIFOs per sandbox
	lock *os.File
}

// newInstance makes an instance below runDir.
func newInstance(runDir string) (*instance, error) {
	if !filepath.IsAbs(runDir) {
		return nil, fmt.Errorf("run directory %q is not absolute", runDir)
	}
	if err := os.MkdirAll(runDir, 0o711); err != nil {
		return nil, fmt.Errorf("create run directory: %w", err)
	}
	id := randomHex(6)
	inst := &instance{id: id, dir: filepath.Join(runDir, id)}
	// Locked before it bears the name under which a sweep looks for it.
	lock, err := os.CreateTemp(runDir, namelessLock)
	if err != nil {
		return nil, fmt.Errorf("create instance lock: %w", err)
	}
	if err := errors.Join(
		unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB),
		os.Rename(lock.Name(), lockPath(inst.dir)),
		os.Mkdir(inst.dir, 0o700),
	); err != nil {
		return nil, errors.Join(fmt.Errorf("create instance: %w", err), lock.Close())
	}
	inst.lock = lock
	return inst, nil
}

// namelessLock is the pattern of lock files that are about to get their name.
const namelessLock = "new-*"

// lockPath is the lock file of the instance with the directory dir.
func lockPath(dir string) string { return dir + ".lock" }

func (i *instance) labels() map[string]string {
	return map[string]string{labelInstance: i.id, labelLock: lockPath(i.dir)}
}

// close ends an instance that has nothing left.
func (i *instance) close() error {
	return errors.Join(os.Remove(i.dir), os.Remove(lockPath(i.dir)), i.lock.Close())
}

// abandon ends the instance and leaves what it has to the next sweep.
func (i *instance) abandon() error { return i.lock.Close() }

// locked reports whether the instance with this lock file may be alive: it is
// dead when nobody holds the lock, or when the file is gone, as all of /run is
// after a restart of the host. What cannot be looked at proves nothing.
func locked(path string) bool {
	f, err := os.Open(path) // a service may not write where another has its run directory
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	defer func() { _ = f.Close() }()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil
}
