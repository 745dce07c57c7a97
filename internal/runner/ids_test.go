package runner

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func TestClaimIDs(t *testing.T) {
	const base = 0x5a000000
	file := filepath.Join(t.TempDir(), "ids", "claims")
	claim := func(from uint32, n int) *ids {
		t.Helper()
		got, err := claimIDs(file, from, n)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(got.release)
		return got
	}
	a := claim(base, 3)
	if want := []uint32{base, base + 1<<16, base + 2<<16}; !slices.Equal(a.ranges, want) {
		t.Errorf("the first has %x, want %x", a.ranges, want)
	}
	if b := claim(base, 2); !slices.Equal(b.ranges, []uint32{base + 3<<16, base + 4<<16}) {
		t.Errorf("the second has %x, beside %x", b.ranges, a.ranges)
	}
	a.release()
	if c := claim(base+1<<16, 3); !slices.Equal(c.ranges, []uint32{base + 1<<16, base + 2<<16, base + 5<<16}) {
		t.Errorf("the third has %x", c.ranges)
	}
	// The last range of all is never used: its last id is that of nobody.
	if got, err := claimIDs(file, 0xfffd0000, 3); err == nil || !strings.Contains(err.Error(), "uid_base") {
		t.Errorf("more than there are: %+v, %v", got, err)
	}
	claim(0xfffd0000, 2).release()
}

// A process in a range may be the sandbox of a server that is dead.
func TestClaimPassesOverProcesses(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root")
		}
		t.Skip("needs root")
	}
	const base = 0x5b000000
	file := filepath.Join(t.TempDir(), "claims")
	child := exec.Command("sleep", "60")
	child.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: base + 1<<16 + 1000}}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	got, err := claimIDs(file, base, 2)
	_, _ = child.Process.Kill(), child.Wait()
	if err != nil || !slices.Equal(got.ranges, []uint32{base, base + 2<<16}) {
		t.Errorf("%+v, %v", got, err)
	}
	got.release()
	if again, err := claimIDs(file, base, 2); err != nil || again.ranges[1] != base+1<<16 {
		t.Errorf("after its end: %+v, %v", again, err)
	} else {
		again.release()
	}
}
