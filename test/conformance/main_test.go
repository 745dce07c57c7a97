// Package conformance runs the real server, on a real containerd, with the
// clients that people use: the official suite, the Inspector, the SDKs,
// mcp-remote, and coding agents whose model is a stand-in. They come from npm
// in the versions of package-lock.json, into .make/conformance; node itself is
// among them. Without npm those tests are skipped, and fail where CI=true.
//
// rows_test.go has the rows of the list of what must be seen over the wire that
// need real sandboxes, and a table of where each row is tested. Update the
// golden files with -update.
//
// CES_LONG=1 also runs what takes minutes.
package conformance

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"code-execution-sandbox/test/harness"
)

var update = flag.Bool("update", false, "write the golden files")

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// long allows the times that clients have their limits for, and prepares
// nothing, so that an idle server has no sandbox at all.
const long = "[sandbox]\nmax_timeout_seconds = 120\n[pool]\npython = 0\nbash = 0\n"

// hang is how long anything may take that should take no time.
const hang = time.Minute

// golden compares got with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; run go test with -update if it should\n--- got\n%s\n--- want\n%s", path, got, want)
	}
}

// eventually waits for something that takes no time of its own, and returns
// how long it took.
func eventually(t *testing.T, what string, ok func() bool) time.Duration {
	t.Helper()
	begin := time.Now()
	for !ok() {
		if time.Since(begin) > hang {
			t.Fatalf("%s: not within %v", what, hang)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return time.Since(begin)
}

// running reports whether n programs run, by the server's own count.
func running(t *testing.T, s *harness.Server, n string) func() bool {
	return func() bool { return s.Metric(t, `code_execution_sandbox_calls_in_flight{state="running"}`) == n }
}

// sandboxes names what there is of any sandbox. A server that runs also has a
// lease and a view of the image, which are not of a sandbox.
func sandboxes(t *testing.T, s *harness.Server) []string {
	t.Helper()
	return slices.DeleteFunc(harness.Leftovers(t, s.Options), func(what string) bool {
		kind, _, _ := strings.Cut(what, " ")
		return !slices.Contains([]string{"container", "task", "process", "cgroup"}, kind)
	})
}

// gone waits until nothing is left of any sandbox, and says how long that took.
func gone(t *testing.T, s *harness.Server) {
	t.Helper()
	slot := eventually(t, "the slot is free", func() bool { return s.Metric(t, "code_execution_sandbox_slots_taken") == "0" })
	all := eventually(t, "the sandbox is removed", func() bool { return len(sandboxes(t, s)) == 0 })
	t.Logf("the slot was free after %v, the sandbox removed after %v", slot.Round(time.Millisecond), (slot + all).Round(time.Millisecond))
}
