// Package cgroup reads and ends the control groups that a runtime made for
// sandboxes, in cgroup v1 (also hybrid) and v2 alike: memory, processor time,
// out-of-memory kills, the processes inside, and what is left behind. It sets
// no limits; those stand in the OCI spec.
package cgroup

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Version is the version of the cgroup hierarchy that limits memory.
type Version int

// The versions. A hybrid host is V1: its v2 hierarchy has no controllers.
const (
	V1 Version = 1
	V2 Version = 2
)

// Needed are the controllers without which no sandbox is bounded, by their
// kernel names.
var Needed = []string{"memory", "pids", "cpu"}

// Host is the cgroup file system of this host.
type Host struct {
	Version Version
	// mounts has the mount point of each controller; in V2 all are the same.
	mounts map[string]string
}

// Detect reads the mounts of the calling process from /proc/self/mountinfo.
func Detect() (*Host, error) {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("detect cgroup mounts: %w", err)
	}
	return detect(raw, func(root string) ([]byte, error) {
		return os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	})
}

// detect parses mountinfo as described in proc_pid_mountinfo(5): the mount
// point is field 5; type and super options follow the lone "-".
func detect(mountinfo []byte, controllers func(root string) ([]byte, error)) (*Host, error) {
	v1 := map[string]string{}
	unified := ""
	lines := bufio.NewScanner(bytes.NewReader(mountinfo))
	for lines.Scan() {
		left, right, ok := strings.Cut(lines.Text(), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 3 {
			continue
		}
		switch r[0] {
		case "cgroup2":
			if unified == "" {
				unified = l[4]
			}
		case "cgroup":
			for option := range strings.SplitSeq(r[2], ",") {
				if _, seen := v1[option]; !seen {
					v1[option] = l[4]
				}
			}
		}
	}
	if v1["memory"] != "" {
		if unified != "" {
			// Without controllers on a hybrid host, but runtimes make groups there.
			v1["unified"] = unified
		}
		return &Host{Version: V1, mounts: v1}, nil
	}
	if unified == "" {
		return nil, errors.New("detect cgroup mounts: no cgroup file system is mounted")
	}
	raw, err := controllers(unified)
	if err != nil {
		return nil, fmt.Errorf("detect cgroup controllers: %w", err)
	}
	v2 := map[string]string{}
	for name := range strings.FieldsSeq(string(raw)) {
		v2[name] = unified
	}
	// cpu.stat has the processor time even where the controller is off.
	v2["cpuacct"] = unified
	return &Host{Version: V2, mounts: v2}, nil
}

// Missing lists the controllers of Needed that this host does not have.
func (h *Host) Missing() []string {
	var out []string
	for _, c := range Needed {
		if h.mounts[c] == "" {
			out = append(out, c)
		}
	}
	return out
}

// roots returns the distinct mount points.
func (h *Host) roots() []string {
	var out []string
	for _, m := range h.mounts {
		if !slices.Contains(out, m) {
			out = append(out, m)
		}
	}
	slices.Sort(out)
	return out
}

// Children lists the names of the groups directly below parent, in any
// hierarchy. A parent that does not exist has none.
func (h *Host) Children(parent string) ([]string, error) {
	var names []string
	for _, root := range h.roots() {
		entries, err := os.ReadDir(filepath.Join(root, parent))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list cgroups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() && !slices.Contains(names, e.Name()) {
				names = append(names, e.Name())
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// Group is one control group. It need not exist yet, or any more.
type Group struct {
	host *Host
	path string
}

// Group returns the group at an absolute path of the hierarchy, as it stands
// in the spec's linux.cgroupsPath.
func (h *Host) Group(path string) Group { return Group{h, path} }

// file returns the path of a group's file in the hierarchy of a controller.
func (g Group) file(controller, name string) string {
	return filepath.Join(g.host.mounts[controller], g.path, name)
}

// usage is what the kernel says of a group.
type usage struct {
	memory, peak int64 // bytes, page cache and tmpfs included
	cpu          time.Duration
	oomKills     int64
	// limitHits is how often the group's own limit left nothing to do but to
	// kill; v1 has limit, in bytes, to hold against the peak: its failcnt stays
	// 0 on some kernels (seen on 6.18).
	limitHits, limit int64
}

func (g Group) usage() (usage, error) {
	var u usage
	var cpu int64
	var err error
	read := func(dst *int64, controller, name, key string) {
		if err == nil {
			*dst, err = readNumber(g.file(controller, name), key)
		}
	}
	if g.host.Version == V1 {
		read(&u.memory, "memory", "memory.usage_in_bytes", "")
		read(&u.peak, "memory", "memory.max_usage_in_bytes", "")
		read(&u.oomKills, "memory", "memory.oom_control", "oom_kill")
		read(&u.limit, "memory", "memory.limit_in_bytes", "")
		read(&cpu, "cpuacct", "cpuacct.usage", "")
		u.cpu = time.Duration(cpu)
	} else {
		read(&u.memory, "memory", "memory.current", "")
		read(&u.oomKills, "memory", "memory.events", "oom_kill")
		read(&u.limitHits, "memory", "memory.events", "oom")
		read(&cpu, "cpuacct", "cpu.stat", "usage_usec")
		u.cpu = time.Duration(cpu) * time.Microsecond
	}
	if err != nil {
		return usage{}, fmt.Errorf("read cgroup usage: %w", err)
	}
	return u, nil
}

// readNumber reads a file that holds one number, or the number beside key in
// a file of "key value" lines.
func readNumber(file, key string) (int64, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	if key == "" {
		return strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	}
	for line := range strings.Lines(string(raw)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			return strconv.ParseInt(v, 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no line %q", file, key)
}

// Processes lists the process ids in the group, those of the caller's PID
// namespace. A group that does not exist has none.
func (g Group) Processes() ([]int, error) {
	raw, err := os.ReadFile(g.file("memory", "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list cgroup processes: %w", err)
	}
	var pids []int
	for field := range strings.FieldsSeq(string(raw)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("list cgroup processes: %w", err)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// Kill sends SIGKILL to every process of the group, without any help from the
// runtime. It does not wait for their end.
func (g Group) Kill() error {
	if g.host.Version == V2 {
		// cgroup.kill came with Linux 5.14 and cannot be outrun by a fork.
		err := os.WriteFile(g.file("memory", "cgroup.kill"), []byte("1"), 0)
		if err == nil || errors.Is(err, syscall.ENODEV) {
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("kill cgroup: %w", err)
		}
	}
	// A fork can outrun one round; the pids limit bounds how often.
	for range 100 {
		pids, err := g.Processes()
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			// A pid of 0 stands for a process of a foreign PID namespace.
			if pid > 1 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
	return nil
}

// Remove deletes the empty group from every hierarchy. A group that is gone
// is no error; one that still has processes is EBUSY.
func (g Group) Remove() error {
	var errs []error
	for _, root := range g.host.roots() {
		err := syscall.Rmdir(filepath.Join(root, g.path))
		if err != nil && !errors.Is(err, syscall.ENOENT) {
			errs = append(errs, fmt.Errorf("remove cgroup %s: %w", filepath.Join(root, g.path), err))
		}
	}
	return errors.Join(errs...)
}

// Exists reports whether any hierarchy still has the group.
func (g Group) Exists() bool {
	for _, root := range g.host.roots() {
		if _, err := os.Stat(filepath.Join(root, g.path)); err == nil {
			return true
		}
	}
	return false
}
