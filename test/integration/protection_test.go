package integration

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"code-execution-sandbox/internal/cgroup"
	"code-execution-sandbox/internal/runner"
	"code-execution-sandbox/internal/sandbox"
	"code-execution-sandbox/test/harness"
)

// parentFile reads a number that the kernel has of the sandboxes' parent.
func parentFile(t *testing.T, opts runner.Options, v1, v2 string) int64 {
	t.Helper()
	root := "/sys/fs/cgroup"
	file := v2
	if opts.Cgroups.Version == cgroup.V1 {
		controller, _, _ := strings.Cut(v1, ".")
		root, file = filepath.Join(root, controller), v1
	}
	raw, err := os.ReadFile(filepath.Join(root, opts.CgroupParent, file))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestTotalLimits: sandboxes that each keep within their limit do not exceed
// that of all together; one of them pays for it, and says why.
func TestTotalLimits(t *testing.T) {
	opts := harness.Options(t)
	opts.Total = cgroup.Total{Memory: 320 << 20, PIDs: 400, Weight: 50}
	r := harness.Runner(t, opts)
	// Each holds less than the 256 MiB of one, all three more than the total.
	const hold = "b = bytearray(180 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1\nimport time; time.sleep(3)\nprint('held')"
	statuses := make([]sandbox.Status, 3)
	var calls sync.WaitGroup
	for i := range statuses {
		calls.Go(func() {
			req := harness.Python(hold)
			req.Timeout = time.Minute
			res, err := r.Execute(t.Context(), req)
			if err != nil {
				t.Error(err)
				return
			}
			statuses[i] = res.Status
			if res.OOMKilled != res.OOMElsewhere {
				t.Errorf("killed (%v) at its own limit", res.OOMKilled)
			}
		})
	}
	calls.Wait()
	count := map[sandbox.Status]int{}
	for _, s := range statuses {
		count[s]++
	}
	if count[sandbox.StatusOutOfMemory] == 0 || count[sandbox.StatusOutOfMemory] == len(statuses) {
		t.Errorf("three programs with 180 MiB each in 320 MiB ended as %v", statuses)
	}
	if most := opts.Total.Memory; parentFile(t, opts, "memory.limit_in_bytes", "memory.max") != most {
		t.Errorf("the limit of all is not %d", most)
	}
	if got := parentFile(t, opts, "pids.max", "pids.max"); got != 400 {
		t.Errorf("the limit of processes is %d", got)
	}

	// Another command's end takes the empty group with it. The next sandbox
	// finds it bounded again.
	deadline := time.Now().Add(30 * time.Second)
	for len(harness.Leftovers(t, opts)) > 2 && time.Now().Before(deadline) { // ours are a lock and its directory
		time.Sleep(10 * time.Millisecond)
	}
	if err := opts.Cgroups.Group(opts.CgroupParent).Remove(); err != nil {
		t.Fatal(err)
	}
	if res := harness.Run(t, r, harness.Bash("echo again")); string(res.Stdout) != "again\n" {
		t.Errorf("%+v", res)
	}
	if got := parentFile(t, opts, "memory.limit_in_bytes", "memory.max"); got != opts.Total.Memory {
		t.Errorf("the limit is %d once the group was made again", got)
	}
}

// TestProtectionsAreTold: what a host has and lacks stands in /healthz and in
// the metrics.
func TestProtectionsAreTold(t *testing.T) {
	s := harness.Serve(t, harness.Options(t), "[sandbox]\nuser_namespace = false\n")
	resp, err := http.Get(s.Base() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	var health struct {
		Missing  []string  `json:"missing_protections"`
		SelfTest time.Time `json:"self_test"`
	}
	if err := json.Unmarshal(body, &health); err != nil {
		t.Fatal(err)
	}
	if len(health.Missing) != 1 || health.Missing[0] != "user_namespaces" || time.Since(health.SelfTest) > 10*time.Minute {
		t.Errorf("health says %s", body)
	}
	for metric, want := range map[string]string{
		`code_execution_sandbox_missing_protections{name="user_namespaces"}`: "1",
		`code_execution_sandbox_missing_protections{name="total_limits"}`:    "0",
		"code_execution_sandbox_selftest_success":                            "1",
	} {
		if got := s.Metric(t, metric); got != want {
			t.Errorf("%s is %s, want %s", metric, got, want)
		}
	}
	if !strings.Contains(s.Log(), `"a protection is switched off" name=user_namespaces`) {
		t.Errorf("the log does not tell:\n%s", s.Log())
	}
}

// TestMissingProtection: a protection that the host lacks stops the start, and
// its name in the configuration lets it go on.
func TestMissingProtection(t *testing.T) {
	opts := harness.Options(t)
	dir := "/sys/fs/cgroup"
	if opts.Cgroups.Version == cgroup.V1 {
		dir += "/pids"
	}
	// For this command alone the limit of all sandboxes cannot be set.
	const spoil = `mkdir -p "$1"; mount --bind "$1/pids.max" "$1/pids.max"; mount -o remount,bind,ro "$1/pids.max"; shift; exec "$@"`
	run := func(extra string) (string, error) {
		cmd := command(t, "run", "--config", harness.Config(t, opts, extra), "-l", "bash", "-")
		spoiled := exec.CommandContext(t.Context(), "unshare", slices.Concat( //nolint:gosec // a test's own words
			[]string{"-m", "sh", "-ec", spoil, "spoil", filepath.Join(dir, opts.CgroupParent)}, cmd.Args)...)
		spoiled.Dir, spoiled.Env, spoiled.Stdin = cmd.Dir, cmd.Env, strings.NewReader("echo runs")
		out, err := spoiled.CombinedOutput()
		return string(out), err
	}
	out, err := run("")
	if err == nil || !strings.Contains(out, "the protection total_limits is missing") || !strings.Contains(out, `sandbox.allow_missing = ["total_limits"]`) {
		t.Errorf("a start without a limit of all sandboxes together: %v: %s", err, out)
	}
	out, err = run("[sandbox]\nallow_missing = [\"total_limits\"]\n")
	if err != nil || out != "runs\n" {
		t.Errorf("a start without what may be missing: %v: %s", err, out)
	}
	out, err = run("[sandbox]\nallow_missing = [\"apparmor\", \"swap_limit\"]\n")
	if err == nil {
		t.Errorf("a start with other names allowed: %s", out)
	}
	out, err = run("[sandbox]\nallow_missing = [\"seccomp\"]\n")
	if err == nil || !strings.Contains(out, `"seccomp" is not allowed`) {
		t.Errorf("a name that is not known: %v: %s", err, out)
	}
	_ = opts.Cgroups.Group(opts.CgroupParent).Remove()
}
