package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Total bounds all the groups below one together: what saves the host when the
// limits of the single sandboxes add up to more than it has.
type Total struct {
	// Memory is in bytes; there is no swap. At the limit the kernel ends the
	// largest process below, and on v2 with it the whole sandbox that it is in.
	Memory int64
	// PIDs is the number of processes and threads.
	PIDs int64
	// Weight is the share of processor time and of disk time in a contest with
	// the host's own services, in percent of theirs. There is no quota: it would
	// slow down the preparation of sandboxes while others use theirs up.
	Weight int
}

// Bound makes the group, if need be, and sets its limits. The group itself must
// hold no processes, only groups.
func (g Group) Bound(t Total) error {
	bound := g.boundV2
	if g.host.Version == V1 {
		bound = g.boundV1
	}
	if err := bound(t); err != nil {
		return fmt.Errorf("bound cgroup %s: %w", g.path, err)
	}
	return nil
}

// Bounded reports whether Bound has set the limits and nobody changed them.
func (g Group) Bounded(t Total) bool {
	memory, pids := "memory.limit_in_bytes", "pids.max"
	if g.host.Version == V2 {
		memory = "memory.max"
	}
	haveMemory, err := readNumber(g.file("memory", memory), "")
	if err != nil || haveMemory/pageSize != t.Memory/pageSize {
		return false
	}
	havePIDs, err := readNumber(g.file("pids", pids), "")
	return err == nil && havePIDs == t.PIDs
}

// Limits are those of one group that are in force.
type Limits struct {
	// Memory is in bytes, PIDs counts processes and threads; both are the
	// largest number where there is no limit.
	Memory, PIDs int64
	// CPUs is processor time per time, 0 where there is no limit.
	CPUs float64
	// NoSwap is set where nothing of the group's memory can be swapped out.
	NoSwap bool
}

// Limits asks the kernel.
func (g Group) Limits() (Limits, error) {
	var l Limits
	var errs []error
	number := func(controller, name string) int64 {
		raw, err := os.ReadFile(g.file(controller, name))
		if err != nil {
			errs = append(errs, err)
			return 0
		}
		text := strings.TrimSpace(string(raw))
		if text == "max" {
			return math.MaxInt64
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			errs = append(errs, err)
		}
		return n
	}
	l.PIDs = number("pids", "pids.max")
	if g.host.Version == V1 {
		l.Memory = number("memory", "memory.limit_in_bytes")
		l.NoSwap = g.LimitsSwap() && number("memory", "memory.memsw.limit_in_bytes") == l.Memory
		if quota := number("cpu", "cpu.cfs_quota_us"); quota > 0 {
			l.CPUs = float64(quota) / float64(max(1, number("cpu", "cpu.cfs_period_us")))
		}
	} else {
		l.Memory = number("memory", "memory.max")
		l.NoSwap = g.LimitsSwap() && number("memory", "memory.swap.max") == 0
		raw, err := os.ReadFile(g.file("cpu", "cpu.max")) // "100000 100000", or "max 100000"
		if err != nil {
			errs = append(errs, err)
		}
		var quota, period float64
		if n, _ := fmt.Sscan(string(raw), &quota, &period); n == 2 && period > 0 {
			l.CPUs = quota / period
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Limits{}, fmt.Errorf("read cgroup limits: %w", err)
	}
	return l, nil
}

// LimitsSwap reports whether the kernel can keep the group, which exists, out of
// swap space.
func (g Group) LimitsSwap() bool {
	name := "memory.memsw.limit_in_bytes"
	if g.host.Version == V2 {
		name = "memory.swap.max"
	}
	_, err := os.Stat(g.file("memory", name))
	return err == nil
}

// pageSize is what the kernel rounds memory limits down to.
var pageSize = int64(os.Getpagesize())

func (g Group) boundV1(t Total) error {
	for _, controller := range []string{"memory", "pids", "cpu", "blkio"} {
		if g.host.mounts[controller] == "" && controller == "blkio" {
			continue
		}
		if err := os.MkdirAll(g.file(controller, ""), 0o755); err != nil { //nolint:gosec // as the kernel makes them
			return err
		}
	}
	memory := strconv.FormatInt(t.Memory, 10)
	// The limit of memory and swap together is never below that of memory:
	// which goes first depends on the way it goes. Where swap is not accounted
	// for it does not exist.
	limit, both := g.file("memory", "memory.limit_in_bytes"), g.file("memory", "memory.memsw.limit_in_bytes")
	if err := setExisting(both, memory); err != nil {
		if err := set(limit, memory); err != nil {
			return err
		}
		if err := setExisting(both, memory); err != nil {
			return err
		}
	} else if err := set(limit, memory); err != nil {
		return err
	}
	// The kernel's default of shares is 1024, of BFQ's weights 100.
	return errors.Join(
		set(g.file("pids", "pids.max"), strconv.FormatInt(t.PIDs, 10)),
		set(g.file("cpu", "cpu.shares"), strconv.Itoa(1024*t.Weight/100)),
		setExisting(g.file("blkio", "blkio.bfq.weight"), strconv.Itoa(t.Weight)),
	)
}

func (g Group) boundV2(t Total) error {
	root := g.host.mounts["memory"]
	// A group has the files of a controller when its parent hands it down.
	dir := root
	for part := range strings.SplitSeq(strings.Trim(g.path, "/"), "/") {
		if err := handDown(dir, "memory", "pids", "cpu"); err != nil {
			return err
		}
		_ = handDown(dir, "io") // not every kernel has it
		dir = filepath.Join(dir, part)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // as the kernel makes them
			return err
		}
	}
	// The runtime hands down to the sandboxes what they need. memory.oom.group
	// stays 0 here: it would end all of them for one.
	return errors.Join(
		set(filepath.Join(dir, "memory.max"), strconv.FormatInt(t.Memory, 10)),
		setExisting(filepath.Join(dir, "memory.swap.max"), "0"),
		set(filepath.Join(dir, "pids.max"), strconv.FormatInt(t.PIDs, 10)),
		// The default of both weights is 100.
		set(filepath.Join(dir, "cpu.weight"), strconv.Itoa(t.Weight)),
		setExisting(filepath.Join(dir, "io.weight"), strconv.Itoa(t.Weight)),
	)
}

// handDown gives the children of a group controllers that they do not have.
func handDown(dir string, controllers ...string) error {
	file := filepath.Join(dir, "cgroup.subtree_control")
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	have := " " + strings.TrimSpace(string(raw)) + " "
	for _, c := range controllers {
		if !strings.Contains(have, " "+c+" ") {
			if err := set(file, "+"+c); err != nil {
				return err
			}
		}
	}
	return nil
}

func set(file, text string) error { return os.WriteFile(file, []byte(text), 0) }

// setExisting writes to a file that not every kernel has.
func setExisting(file, text string) error {
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return set(file, text)
}
