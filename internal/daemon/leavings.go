package daemon

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	// runcRoot is where shims let runc keep its state (pkg/process in containerd).
	runcRoot = "/run/containerd/runc"
	// shimSockets is where shims serve (pkg/shim in containerd). From 2.3 on
	// socket_dir can say otherwise, as it does for a private daemon.
	shimSockets = "/run/containerd/s"
	// privateShimSockets is that of a private daemon, below its State.
	privateShimSockets = "s"
	// bundles is where containerd keeps what it starts shims from, below its
	// State. It hides a bundle before it removes it (atomicDelete in
	// core/runtime/v2), and does not look for one that is hidden when it starts.
	bundles = "io.containerd.runtime.v2.task"
)

// Leavings are the paths that one shim, its runtime, or containerd itself leave
// behind when they are killed, beside what containerd itself finds again. They belong to nobody
// else: each has the whole id in its name.
func Leavings(address, namespace, id string) []string {
	// SocketAddress in pkg/shim.
	socket := fmt.Sprintf("%x", sha256.Sum256([]byte(filepath.Join(address, namespace, id))))
	return []string{
		filepath.Join(runcRoot, namespace, id),
		filepath.Join(shimSockets, socket),
		filepath.Join(filepath.Dir(address), privateShimSockets, socket),
		filepath.Join(filepath.Dir(address), bundles, namespace, "."+id),
	}
}

// RemoveLeavings removes them.
//
// Preconditions: the shim has ended.
func RemoveLeavings(address, namespace, id string) error {
	if address == "" || namespace == "" || id == "" {
		return errors.New("remove what a shim left: its name is not known")
	}
	var errs []error
	for _, path := range Leavings(address, namespace, id) {
		if err := RemoveFlat(path); err != nil {
			errs = append(errs, fmt.Errorf("remove what a shim left: %w", err))
		}
	}
	return errors.Join(errs...)
}

// RemoveFlat removes a file, or a directory and the files in it. It does not go
// deeper: what is mounted in a directory is not ours to delete. What is not
// there is no error.
func RemoveFlat(path string) error {
	var errs []error
	entries, _ := os.ReadDir(path) // none in a file
	paths := make([]string, 0, len(entries)+1)
	for _, e := range entries {
		paths = append(paths, filepath.Join(path, e.Name()))
	}
	for _, p := range append(paths, path) {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
