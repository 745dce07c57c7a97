package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"golang.org/x/sys/unix"
)

// host is what the figures were measured on.
type host struct {
	Processor  string `json:"processor"`
	Processors int    `json:"processors"`
	MemoryMB   int64  `json:"memory_mb"`
	Kernel     string `json:"kernel"`
	Containerd string `json:"containerd"`
	Runc       string `json:"runc"`
	Docker     string `json:"docker"`
	Python     string `json:"python"`
	Go         string `json:"go"`
	Revision   string `json:"revision"`
	Date       string `json:"date"`
	// Busy is the share of the machine's processors that others used before
	// anything was measured: 0 to 1. Above a tenth the figures are noise.
	Busy float64 `json:"busy_before"`
}

func describeHost(ctx context.Context, client *containerd.Client) host {
	first := func(name string, args ...string) string {
		out, err := exec.CommandContext(ctx, name, args...).Output()
		if err != nil {
			return "none"
		}
		line, _, _ := strings.Cut(string(out), "\n")
		return strings.TrimSpace(line)
	}
	h := host{
		Processors: runtime.NumCPU(),
		Runc:       first("runc", "--version"),
		Docker:     first("docker", "version", "--format", "{{.Server.Version}}"),
		Python:     first(interpreterPath["python"], "--version"),
		Go:         runtime.Version(),
		Revision:   first("git", "-c", "safe.directory=*", "describe", "--always", "--dirty"),
		Date:       time.Now().UTC().Format(time.RFC3339),
	}
	cpuinfo, _ := os.ReadFile("/proc/cpuinfo") // a nicety
	for line := range strings.Lines(string(cpuinfo)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			h.Processor = strings.TrimSpace(value)
			break
		}
	}
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		h.Kernel = unix.ByteSliceToString(uts.Release[:])
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		h.MemoryMB = int64(info.Totalram) * int64(info.Unit) >> 20 //nolint:gosec // memory fits
	}
	if v, err := client.Version(ctx); err == nil {
		h.Containerd = v.Version
	}
	return h
}

// jiffies returns the machine's processor time spent and idle, from
// /proc/stat, see proc_stat(5).
func jiffies() (busy, idle time.Duration) {
	raw, _ := os.ReadFile("/proc/stat") // always there
	line, _, _ := strings.Cut(string(raw), "\n")
	fields := strings.Fields(line)
	for i, f := range fields[1:min(len(fields), 9)] {
		n, _ := strconv.ParseInt(f, 10, 64)
		// The unit is 1/100 s on every Linux that Go runs on. Stolen time is
		// neither.
		d := time.Duration(n) * 10 * time.Millisecond
		switch i {
		case 3, 4: // idle, iowait
			idle += d
		case 7: // steal
		default:
			busy += d
		}
	}
	return busy, idle
}

// machineBusy is the share of the processors in use during d.
func machineBusy(d time.Duration) float64 {
	busy, idle := jiffies()
	time.Sleep(d)
	busy2, idle2 := jiffies()
	return ratio((busy2 - busy).Seconds(), (busy2 - busy + idle2 - idle).Seconds())
}

// serverMemory returns the resident memory of a process in MB.
func serverMemory(pid int) float64 { return mapped(pid, "Rss:") }

// mapped returns a line of a process's smaps_rollup in MB: "Pss:" is its share
// of what it has mapped, "Rss:" all of it. 0 for a process that has ended.
func mapped(pid int, key string) float64 {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	for line := range strings.Lines(string(raw)) {
		if value, ok := strings.CutPrefix(line, key); ok {
			kb, _ := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 64)
			return kb / 1024
		}
	}
	return 0
}

// shims returns the shims of our namespace by the id of their sandbox.
func shims() map[string]int {
	found := map[string]int{}
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is well-formed
	for _, file := range files {
		raw, _ := os.ReadFile(file) // it may have ended
		args := strings.Split(string(raw), "\x00")
		if !strings.HasPrefix(filepath.Base(args[0]), "containerd-shim") {
			continue
		}
		flags := map[string]string{}
		for i := 1; i+1 < len(args); i++ {
			flags[args[i]] = args[i+1]
		}
		if flags["-namespace"] == namespace {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			found[flags["-id"]] = pid
		}
	}
	return found
}

// processName is the name of the program that a process runs.
func processName(pid int) string {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	name, _, _ := strings.Cut(string(raw), "\x00")
	return filepath.Base(name)
}

// removeCgroups removes the empty cgroup of a name below the root from every
// hierarchy, of a hybrid host also the one without controllers.
func removeCgroups(name string) error {
	var errs []error
	dirs, _ := filepath.Glob("/sys/fs/cgroup/*" + name) // the pattern is well-formed
	for _, dir := range append(dirs, "/sys/fs/cgroup"+name) {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
