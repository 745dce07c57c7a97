package cgroup

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	v1Mounts = `22 1 0:20 / /sys rw,nosuid - sysfs sysfs rw
30 22 0:26 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755
33 30 0:29 / /sys/fs/cgroup/memory rw,nosuid shared:15 - cgroup cgroup rw,memory
34 30 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:16 - cgroup cgroup rw,cpu,cpuacct
35 30 0:31 / /sys/fs/cgroup/pids rw,nosuid - cgroup none rw,pids
36 30 0:31 / /srv/pids rw,nosuid - cgroup none rw,pids
`
	unifiedBeside = `31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:10 - cgroup2 cgroup2 rw,nsdelegate
`
	v2Mounts = `24 1 254:0 / / rw - ext4 /dev/root rw
not a line of mountinfo
29 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 master:2 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
`
)

func TestDetect(t *testing.T) {
	controllers := func(text string) func(string) ([]byte, error) {
		return func(root string) ([]byte, error) {
			if root != "/sys/fs/cgroup" {
				return nil, errors.New("asked for " + root)
			}
			return []byte(text), nil
		}
	}
	never := func(string) ([]byte, error) { return nil, errors.New("not to be asked") }
	for _, c := range []struct {
		name, mounts string
		controllers  func(string) ([]byte, error)
		version      Version // 0: an error
		missing      []string
		memory, cpu  string
	}{
		{"v1", v1Mounts, never, V1, nil, "/sys/fs/cgroup/memory", "/sys/fs/cgroup/cpu,cpuacct"},
		{"hybrid", unifiedBeside + v1Mounts, never, V1, nil, "/sys/fs/cgroup/memory", "/sys/fs/cgroup/cpu,cpuacct"},
		{"v2", v2Mounts, controllers("cpuset cpu io memory hugetlb pids\n"), V2, nil, "/sys/fs/cgroup", "/sys/fs/cgroup"},
		{"v2 without memory", v2Mounts, controllers("cpu pids\n"), V2, []string{"memory"}, "", "/sys/fs/cgroup"},
		{"v2 without any", v2Mounts, controllers(""), V2, Needed, "", ""},
		{"v2 unreadable", v2Mounts, never, 0, nil, "", ""},
		{"none", "24 1 254:0 / / rw - ext4 /dev/root rw\n", never, 0, nil, "", ""},
		{"empty", "", never, 0, nil, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, err := detect([]byte(c.mounts), c.controllers)
			if c.version == 0 {
				if err == nil {
					t.Fatalf("%+v, want an error", h)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if h.Version != c.version || !slices.Equal(h.Missing(), c.missing) || h.mounts["memory"] != c.memory || h.mounts["cpu"] != c.cpu {
				t.Errorf("version %d, missing %q, mounts %q", h.Version, h.Missing(), h.mounts)
			}
		})
	}
	if h, err := detect([]byte(v1Mounts), never); err != nil || h.mounts["pids"] != "/sys/fs/cgroup/pids" {
		t.Errorf("the first of two mounts counts: %v, %v", h, err)
	}
}

func TestReadNumber(t *testing.T) {
	for _, c := range []struct {
		text, key string
		want      int64
		fails     bool
	}{
		{"12345\n", "", 12345, false},
		{"max\n", "", 0, true},
		{"", "", 0, true},
		{"low 0\nhigh 1\noom 7\noom_kill 3\n", "oom_kill", 3, false},
		{"oom_kill_disable 0\nunder_oom 0\noom_kill 2", "oom_kill", 2, false},
		{"oom_kill_disable 0\n", "oom_kill", 0, true},
		{"oom_kill x\n", "oom_kill", 0, true},
	} {
		file := filepath.Join(t.TempDir(), "f")
		write(t, file, c.text)
		got, err := readNumber(file, c.key)
		if got != c.want || (err != nil) != c.fails {
			t.Errorf("%q of %q: %d, %v", c.key, c.text, got, err)
		}
	}
	if _, err := readNumber(filepath.Join(t.TempDir(), "none"), ""); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// fake is a group made of plain files.
func fake(t *testing.T, version Version) (g Group, set func(name, text string)) {
	t.Helper()
	root := t.TempDir()
	h := &Host{Version: version, mounts: map[string]string{"memory": root, "cpu": root, "cpuacct": root, "pids": root}}
	return h.Group("/p/g"), func(name, text string) { write(t, filepath.Join(root, "p/g", name), text) }
}

func TestMeterV1(t *testing.T) {
	g, set := fake(t, V1)
	if _, err := g.Meter(); err == nil {
		t.Error("a group that is not there is measured")
	}
	set("memory.usage_in_bytes", "1000")
	set("memory.max_usage_in_bytes", "5000")
	set("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
	set("memory.limit_in_bytes", "20000000")
	set("cpuacct.usage", "2000000")
	m, err := g.Meter()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if raw, _ := os.ReadFile(g.file("memory", "memory.max_usage_in_bytes")); string(raw) != "0" {
		t.Errorf("the peak was not reset but is %q", raw)
	}
	set("memory.max_usage_in_bytes", "9000")
	set("memory.oom_control", "oom_kill 3\n")
	set("cpuacct.usage", "5000000")
	want := Used{PeakMemory: 8000, CPUTime: 3 * time.Millisecond, OOMKills: 2}
	if used, err := m.Read(); err != nil || used != want {
		t.Errorf("%+v, %v", used, err)
	}
	set("memory.max_usage_in_bytes", "19991000")
	want.PeakMemory, want.LimitHit = 19990000, true
	if used, err := m.Read(); err != nil || used != want {
		t.Errorf("at the limit: %+v, %v", used, err)
	}
}

func TestMeterV2(t *testing.T) {
	g, set := fake(t, V2)
	set("memory.current", "1000")
	set("memory.events", "max 0\noom 0\noom_kill 0\n")
	set("cpu.stat", "usage_usec 100\nuser_usec 90\n")
	after := func() {
		set("memory.current", "4000")
		set("memory.events", "max 9\noom 1\noom_kill 1\n")
		set("cpu.stat", "usage_usec 350\n")
	}
	read := func(m *Meter, want int64) {
		t.Helper()
		if used, err := m.Read(); err != nil || used != (Used{PeakMemory: want, CPUTime: 250 * time.Microsecond, OOMKills: 1, LimitHit: true}) {
			t.Errorf("%+v, %v, want a peak of %d", used, err, want)
		}
	}
	t.Run("no peak file", func(t *testing.T) {
		m, err := g.Meter()
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		after()
		read(m, 3000) // what is held now, a lower bound
	})
	t.Run("a peak that can be reset", func(t *testing.T) {
		set("memory.current", "1000")
		set("memory.events", "oom 0\noom_kill 0\n")
		set("cpu.stat", "usage_usec 100\n")
		set("memory.peak", "7000\n")
		m, err := g.Meter()
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		after()
		set("memory.peak", "6000\n") // what the kernel says through this descriptor
		read(m, 5000)
		// Killed because a group above or the host was out of memory.
		set("memory.events", "oom 0\noom_kill 1\n")
		if used, err := m.Read(); err != nil || used.OOMKills != 1 || used.LimitHit {
			t.Errorf("%+v, %v", used, err)
		}
	})
	t.Run("gone", func(t *testing.T) {
		m, err := g.Meter()
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if err := os.Remove(g.file("memory", "memory.events")); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Read(); !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
	})
}

func TestChildrenExistRemove(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	h := &Host{Version: V1, mounts: map[string]string{"memory": a, "pids": b, "cpu": b}}
	if names, err := h.Children("/p"); err != nil || len(names) > 0 {
		t.Errorf("of no parent: %q, %v", names, err)
	}
	for _, dir := range []string{a + "/p/one", b + "/p/one", b + "/p/two"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, a+"/p/cgroup.procs", "")
	if names, err := h.Children("/p"); err != nil || !slices.Equal(names, []string{"one", "two"}) {
		t.Errorf("%q, %v", names, err)
	}
	two := h.Group("/p/two") // left in one hierarchy only
	if !two.Exists() {
		t.Error("does not exist, in one hierarchy")
	}
	write(t, b+"/p/two/sub", "")
	if err := two.Remove(); !errors.Is(err, syscall.ENOTEMPTY) {
		t.Error(err)
	}
	if err := os.Remove(b + "/p/two/sub"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(two.Remove(), two.Remove()); err != nil || two.Exists() {
		t.Error("still there, or not to be removed twice:", err)
	}
}

func TestKill(t *testing.T) {
	g, set := fake(t, V1)
	if err := g.Kill(); err != nil {
		t.Error("nothing to kill:", err)
	}
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	// Never 0 or 1: those would be the caller's own group, or all.
	set("cgroup.procs", "0\n1\n"+strconv.Itoa(child.Process.Pid)+"\n")
	if err := g.Kill(); err != nil {
		t.Error(err)
	}
	_ = child.Wait()
	if status, ok := child.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		t.Error("ended by", child.ProcessState)
	}
	set("cgroup.procs", "x\n")
	if err := g.Kill(); err == nil {
		t.Error("nonsense is no error")
	}

	g, set = fake(t, V2)
	set("cgroup.kill", "")
	if err := g.Kill(); err != nil {
		t.Error(err)
	}
	if raw, _ := os.ReadFile(g.file("memory", "cgroup.kill")); string(raw) != "1" {
		t.Errorf("cgroup.kill has %q", raw)
	}
}

// content reads files of a directory that may not exist.
func content(dir string, names ...string) string {
	var all []string
	for _, name := range names {
		raw, _ := os.ReadFile(filepath.Join(dir, name))
		all = append(all, strings.TrimSpace(string(raw)))
	}
	return strings.TrimSpace(strings.Join(all, " "))
}

func TestBoundV1(t *testing.T) {
	root := t.TempDir()
	h := &Host{Version: V1, mounts: map[string]string{}}
	for _, c := range []string{"memory", "pids", "cpu", "blkio"} {
		h.mounts[c] = filepath.Join(root, c)
	}
	write(t, root+"/memory/a/b/memory.memsw.limit_in_bytes", "")
	g, total := h.Group("/a/b"), Total{Memory: 1 << 20, PIDs: 100, Weight: 50}
	if g.Bounded(total) {
		t.Error("bounded before it was")
	}
	if err := g.Bound(total); err != nil {
		t.Fatal(err)
	}
	if got := content(root, "memory/a/b/memory.limit_in_bytes", "memory/a/b/memory.memsw.limit_in_bytes", "pids/a/b/pids.max", "cpu/a/b/cpu.shares"); got != "1048576 1048576 100 512" {
		t.Error(got)
	}
	if !g.LimitsSwap() || h.Group("/a").LimitsSwap() {
		t.Error("wrong about swap")
	}
	if !g.Bounded(total) || g.Bounded(Total{Memory: 2 << 20, PIDs: 100}) || g.Bounded(Total{Memory: 1 << 20, PIDs: 99}) {
		t.Error("wrong about the limits in force")
	}
}

func TestBoundV2(t *testing.T) {
	root := t.TempDir()
	h := &Host{Version: V2, mounts: map[string]string{"memory": root, "pids": root, "cpu": root}}
	g, total := h.Group("/a/b"), Total{Memory: 1 << 20, PIDs: 100, Weight: 50}
	if err := g.Bound(total); err == nil {
		t.Error("bounded without a hierarchy")
	}
	write(t, root+"/cgroup.subtree_control", "cpu io memory pids")
	write(t, root+"/a/cgroup.subtree_control", "memory pids")
	write(t, root+"/a/b/memory.swap.max", "max")
	if err := g.Bound(total); err != nil {
		t.Fatal(err)
	}
	if got := content(root+"/a/b", "memory.max", "memory.swap.max", "pids.max", "cpu.weight", "io.weight", "memory.oom.group"); got != "1048576 0 100 50" {
		t.Error(got)
	}
	// In the kernel each adds to what is there.
	if got := content(root, "cgroup.subtree_control", "a/cgroup.subtree_control"); got != "cpu io memory pids +io" {
		t.Error(got)
	}
	if !g.Bounded(total) || !g.LimitsSwap() || h.Group("/a").LimitsSwap() {
		t.Error("not bounded, or wrong about swap")
	}
}
