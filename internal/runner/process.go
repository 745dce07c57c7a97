package runner

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// process is what /proc tells of a process.
type process struct {
	state  byte // as in proc_pid_stat(5): R, S, D, T, t, Z, X, I
	parent int
}

// readProcess returns false when there is no such process.
func readProcess(pid int) (process, bool) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, false
	}
	return parseStat(raw)
}

// parseStat reads "pid (name) state ppid …"; the name may hold anything.
func parseStat(raw []byte) (process, bool) {
	fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	if len(fields) < 2 || len(fields[0]) != 1 {
		return process{}, false
	}
	parent, err := strconv.Atoi(string(fields[1]))
	return process{state: fields[0][0], parent: parent}, err == nil
}

// runs reports whether the process is neither dead nor stopped.
func (p process) runs() bool { return !strings.ContainsRune("TtZXx", rune(p.state)) }

// shim is the process of a shim.
type shim struct {
	*os.Process

	id string // of its sandbox
}

// shims lists the shims of our containerd and namespace whose sandbox's id is
// wanted.
func (r *Runner) shims(wanted func(id string) bool) []shim {
	var found []shim
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is well-formed
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		id, ok := r.shimID(pid)
		if !ok || !wanted(id) {
			continue
		}
		// A pidfd, which cannot pass on to another process; the one that had
		// the pid before may have ended by now.
		p, err := os.FindProcess(pid)
		if err != nil {
			continue
		}
		if r.isShim(pid, id) {
			found = append(found, shim{p, id})
		} else {
			_ = p.Release()
		}
	}
	return found
}

// hasShim reports whether a sandbox has a shim that lives.
func (r *Runner) hasShim(id string) bool {
	all := r.shims(func(found string) bool { return found == id })
	for _, s := range all {
		_ = s.Release()
	}
	return len(all) > 0
}

// shimID returns the id of the sandbox whose shim a process is.
func (r *Runner) shimID(pid int) (id string, ok bool) {
	args := arguments(pid)
	ok = len(args) > 0 && strings.HasPrefix(filepath.Base(args[0]), "containerd-shim") &&
		argument(args, "-namespace") == r.opts.Namespace && argument(args, "-address") == r.opts.Address
	return argument(args, "-id"), ok
}

// isShim reports whether a process is the shim of a sandbox and has not ended.
func (r *Runner) isShim(pid int, id string) bool {
	got, ok := r.shimID(pid)
	return ok && got == id
}

// arguments returns the command line of a process, nil if there is none.
func arguments(pid int) []string {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(raw) == 0 {
		return nil
	}
	return strings.Split(string(bytes.TrimRight(raw, "\x00")), "\x00")
}

// argument returns the value that follows the flag name in args.
func argument(args []string, name string) string {
	if i := slices.Index(args, name); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

// killShims sends SIGKILL to all of them, and counts those that still lived.
func killShims(all []shim) (killed int, err error) {
	var errs []error
	for _, p := range all {
		switch err := p.Signal(syscall.SIGKILL); {
		case err == nil:
			killed++
		case !errors.Is(err, os.ErrProcessDone):
			errs = append(errs, fmt.Errorf("kill process %d: %w", p.Pid, err))
		}
		_ = p.Release()
	}
	return killed, errors.Join(errs...)
}
