package runner

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	for _, c := range []struct {
		text   string
		want   process
		ok     bool
		runs   bool
		reason string
	}{
		{"12 (sh) S 1 12 12 0 -1", process{'S', 1}, true, true, "usual"},
		{"12 (a) T 9 (b) R 77 1", process{'R', 77}, true, true, "a name that looks like the rest"},
		{"12 (x) T 4 1", process{'T', 4}, true, false, "stopped"},
		{"12 (x) t 4 1", process{'t', 4}, true, false, "traced"},
		{"12 (x) Z 4 1", process{'Z', 4}, true, false, "a zombie"},
		{"", process{}, false, false, "nothing"},
		{"12 (x) S", process{}, false, false, "cut"},
		{"12 (x) S y", process{state: 'S'}, false, false, "no number"},
	} {
		got, ok := parseStat([]byte(c.text))
		if ok != c.ok || ok && (got != c.want || got.runs() != c.runs) {
			t.Errorf("%s: %q is %+v, %v", c.reason, c.text, got, ok)
		}
	}
}

func TestReadProcess(t *testing.T) {
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = child.Process.Kill(), child.Wait() }()
	is := func(want bool) {
		t.Helper()
		var p process
		var ok bool
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			if p, ok = readProcess(child.Process.Pid); ok && p.parent == os.Getpid() && p.runs() == want {
				return
			}
		}
		t.Errorf("the child is %+v, %v; runs should be %v", p, ok, want)
	}
	is(true)
	_ = child.Process.Signal(syscall.SIGSTOP)
	is(false)
	_ = child.Process.Signal(syscall.SIGCONT)
	is(true)
	_ = child.Process.Kill() // not yet reaped
	is(false)
	if _, ok := readProcess(1 << 30); ok {
		t.Error("no such process is one")
	}
}
