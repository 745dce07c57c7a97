package daemon

import (
	"os"
	"path/filepath"
	"testing"
)

// A bundle that containerd had hidden when it was killed goes with its sandbox;
// those of others stay, hidden or not.
func TestRemoveLeavings(t *testing.T) {
	state := t.TempDir()
	bundle := func(name string) string {
		dir := filepath.Join(state, "io.containerd.runtime.v2.task", "ns", name)
		if err := os.MkdirAll(filepath.Join(dir, "rootfs"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	hidden, other, living := bundle(".a-1"), bundle(".a-2"), bundle("a-1")
	if err := RemoveLeavings(filepath.Join(state, "containerd.sock"), "ns", "a-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(hidden); !os.IsNotExist(err) {
		t.Errorf("the hidden bundle: %v", err)
	}
	for _, dir := range []string{other, living} {
		if _, err := os.Lstat(filepath.Join(dir, "config.json")); err != nil {
			t.Error(err)
		}
	}
}
