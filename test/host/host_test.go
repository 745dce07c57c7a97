// Package host installs the service on a real host, a virtual machine with
// systemd, cgroup v2 and AppArmor, as its operator would, and goes through what
// happens to it there, from power-on to power-off. vm.sh makes the machine.
package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// What the test is told.
const (
	// envRun says how much of the test is wanted, since it takes its time and a
	// machine: "core" or "whole".
	envRun = "CES_HOST"
	// envTools names the directory with other runtimes that the Makefile builds.
	envTools = "CES_TOOLS"
	// envMachine names the directory of a machine that runs and is to go on
	// running, for work on this test.
	envMachine = "CES_VM"
)

const (
	unit   = "code-execution-sandbox.service"
	socket = "code-execution-sandbox.socket"
	name   = "code-execution-sandbox"
	token  = "a-token-of-the-test-0123456789"
	// slow bounds what an emulated machine on a busy host takes minutes for.
	slow = 10 * time.Minute
)

// machine is a virtual machine that runs.
type machine struct {
	dir, base string
	log       io.Writer
	// variant is what sandboxes are made with.
	variant variant
}

func TestHost(t *testing.T) {
	extent := os.Getenv(envRun)
	if extent == "" {
		t.Skipf("%s is not set: make test-host runs it", envRun)
	}
	m := boot(t)
	// What containerd and Docker make for themselves when they are first used.
	m.run(t, "docker ps -q; echo x | ctr content ingest --expected-digest sha256:73cb3858a687a8494ca3323053016282f3dad39d42cf62ca4e79dda2aac7d9ac x && ctr content rm sha256:73cb3858a687a8494ca3323053016282f3dad39d42cf62ca4e79dda2aac7d9ac; ctr version >/dev/null; mkdir -p /run/containerd/s /run/containerd/runc; ctr namespaces rm default || true")
	before := m.traces(t)
	m.steps(t, []step{
		{"Install", install},
		{"Check", check},
		{"Security", security},
		{"Calls", calls},
		{"ContainerdRestarts", containerdRestarts},
	})
	if extent == "whole" {
		m.steps(t, []step{
			{"ServerIsKilled", serverIsKilled},
			{"ServerHangs", serverHangs},
			{"RestartUnderLoad", restartUnderLoad},
			{"ClockJumps", clockJumps},
			{"HostRunsOutOfMemory", hostRunsOutOfMemory},
			{"BrokenUpgrade", brokenUpgrade},
			{"UpgradeThatCannotBePlaced", upgradeThatCannotBePlaced},
			{"BrokenProfile", brokenProfile},
			{"Upgrade", upgrade},
			{"Reboot", reboot},
		})
	}
	m.steps(t, []step{{"Uninstall", func(t *testing.T, m *machine) { uninstall(t, m, before) }}})
	if extent != "whole" {
		return
	}
	m.steps(t, []step{
		{"Package", func(t *testing.T, m *machine) {
			debianPackage(t, m)
			m.nothingLeft(t, before)
		}},
		{"Escape", escape},
	})
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) { try(t, m, v) })
	}
}

// step is something that is done to the machine.
type step struct {
	name string
	do   func(*testing.T, *machine)
}

// steps goes through them, as far as there is something installed.
func (m *machine) steps(t *testing.T, steps []step) {
	t.Helper()
	for _, step := range steps {
		if !t.Run(step.name, func(t *testing.T) { step.do(t, m) }) && step.name == "Install" {
			t.FailNow()
		}
	}
}

// boot starts a machine, and powers it off after the test.
func boot(t *testing.T) *machine {
	t.Helper()
	out, err := filepath.Abs("../../bin/host")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(out, "host.log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	m := &machine{dir: os.Getenv(envMachine), log: io.MultiWriter(log, os.Stderr)}
	if m.dir == "" {
		m.dir = filepath.Join(out, "vm")
		m.note("power on")
		m.command(t, nil, "./vm.sh", "boot", m.dir)
		t.Cleanup(func() {
			m.note("power off")
			_ = exec.Command("./vm.sh", "stop", m.dir).Run()
		})
	}
	address, err := os.ReadFile(filepath.Join(m.dir, "http"))
	if err != nil {
		t.Fatal(err)
	}
	m.base = "http://" + strings.TrimSpace(string(address))
	m.run(t, "cat /etc/debian_version; uname -r; stat -fc %T /sys/fs/cgroup; cat /sys/kernel/security/lsm; echo; containerd --version; runc --version | head -n 1; systemctl --version | head -n 1; systemd-analyze | head -n 1")
	return m
}

// note writes a line to the log.
func (m *machine) note(format string, args ...any) {
	_, _ = fmt.Fprintf(m.log, "%s %s\n", time.Now().UTC().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

// try runs a command on this host, with what it says in the log.
func (m *machine) try(ctx context.Context, env []string, name string, args ...string) (string, error) {
	m.note("$ %s %s", filepath.Base(name), strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	var out bytes.Buffer
	cmd.Stdout = io.MultiWriter(&out, m.log)
	cmd.Stderr = cmd.Stdout
	err := cmd.Run()
	return out.String(), err
}

func (m *machine) command(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 8*slow, errors.New("the command takes too long"))
	defer cancel()
	out, err := m.try(ctx, env, name, args...)
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return out
}

// run runs a command on the machine, as root.
func (m *machine) run(t *testing.T, command string) string {
	t.Helper()
	return strings.TrimSpace(m.command(t, nil, "./vm.sh", "ssh", m.dir, command))
}

// await runs a command on the machine again and again until it holds.
func (m *machine) await(t *testing.T, what, command string) {
	t.Helper()
	var out string
	for end := time.Now().Add(slow); time.Now().Before(end); time.Sleep(time.Second) {
		raw, err := exec.CommandContext(t.Context(), "./vm.sh", "ssh", m.dir, command).CombinedOutput()
		if err == nil {
			m.note("%s", what)
			return
		}
		out = string(raw)
	}
	t.Fatalf("never: %s: %s\n%s", what, out, m.run(t, "systemctl status --no-pager -l "+unit+" || true"))
}

// health asks /healthz from this host.
func (m *machine) health(ctx context.Context) (code int, body string) {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("no answer"))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.base+"/healthz", nil)
	if err != nil {
		return 0, err.Error()
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, strings.TrimSpace(string(raw))
}

func (m *machine) awaitHealthy(t *testing.T) string {
	t.Helper()
	var last string
	for end := time.Now().Add(slow); time.Now().Before(end); time.Sleep(time.Second) {
		code, body := m.health(t.Context())
		if code == http.StatusOK {
			m.note("healthy: %s", body)
			return body
		}
		last = body
	}
	t.Fatalf("not healthy: %s\n%s", last, m.run(t, "journalctl -u "+unit+" -n 50 --no-pager -o cat"))
	return ""
}

type bearer struct{ http.RoundTripper }

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+token)
	return b.RoundTripper.RoundTrip(r)
}

// call makes one call as a real client does, over connections of its own.
func (m *machine) call(ctx context.Context, language, code string, seconds int) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, slow, errors.New("the call was never answered"))
	defer cancel()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client := mcp.NewClient(&mcp.Implementation{Name: "host-test", Version: "1"}, nil)
	session, err := client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: m.base + "/mcp", HTTPClient: &http.Client{Transport: bearer{transport}}}, nil)
	if err != nil {
		return "", fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = session.Close() }()
	res, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "execute_code", Arguments: map[string]any{
		"language": language, "code": code, "timeout_seconds": seconds,
	}})
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for _, content := range res.Content {
		if c, ok := content.(*mcp.TextContent); ok {
			text.WriteString(c.Text)
		}
	}
	return text.String(), nil
}

// expect makes a call whose result matches.
func (m *machine) expect(t *testing.T, language, code string, seconds int, want string) {
	t.Helper()
	start := time.Now()
	got, err := m.call(t.Context(), language, code, seconds)
	if err != nil {
		t.Errorf("%s: %v", code, err)
		return
	}
	m.note("call: %s %q: %q in %s", language, code, clip(got), time.Since(start).Round(time.Millisecond))
	if !regexp.MustCompile(want).MatchString(got) {
		t.Errorf("%s: got %q, want %s", code, clip(got), want)
	}
}

func clip(s string) string {
	if len(s) > 200 {
		return s[:200] + "…"
	}
	return s
}

// --- the steps ----------------------------------------------------------------

// deploy runs make deploy as a user of the machine who may use sudo.
func (m *machine) deploy(t *testing.T, binary, image string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 4*slow, errors.New("deploy takes too long"))
	defer cancel()
	return m.try(ctx, []string{
		"BINARY=" + binary, "IMAGE_FROM=" + image, "SSH_OPTIONS=-F " + m.dir + "/ssh_config", "WAIT=600",
	}, "../../systemd/deploy.sh", "ops@vm")
}

// binary builds the server with a version of its own.
func binary(t *testing.T, version string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w -X main.version="+version, "-o", path, "../../cmd/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

// archive is the runtime image as a file, for a machine that builds none.
func archive(t *testing.T, m *machine) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.tar")
	m.command(t, nil, "../../systemd/docker.sh", "save", "-o", path, name+"-runtime:slim")
	return path
}

func install(t *testing.T, m *machine) {
	image := archive(t, m)
	// An operator's own settings, which no installation touches.
	m.run(t, `mkdir -p /etc/`+name+` && cat >/etc/`+name+`/config.toml <<END
shutdown_grace_seconds = 30
[pool]
python = 2
[containerd]
address = "/run/containerd/containerd.sock"
`+m.variant.containerd+`
[sandbox]
image = "`+name+`-runtime:slim"
memory_limit = "512m"
cgroup_parent = "/system.slice/`+name+`-boxes.service/sandboxes"
END
umask 077; echo `+token+` >/etc/`+name+`/token`)
	if out, err := m.deploy(t, binary(t, "v1"), image); err != nil {
		t.Fatalf("deploy: %v\n%s", err, out)
	}
	if body := m.awaitHealthy(t); !strings.Contains(body, `"v1"`) {
		t.Errorf("healthy as %s, want v1", body)
	}
	m.run(t, "systemctl status --no-pager -l "+unit+" "+socket+" "+name+"-boxes.service; systemctl --failed --no-legend")
}

// uninstall removes it, and compares what is there with what was before.
func uninstall(t *testing.T, m *machine, before []string) {
	m.run(t, "/usr/share/"+name+"/systemd/install.sh uninstall")
	m.nothingLeft(t, before)
}

func (m *machine) nothingLeft(t *testing.T, before []string) {
	t.Helper()
	after := m.traces(t)
	for _, line := range after {
		if !slices.Contains(before, line) {
			t.Errorf("left behind: %s", line)
		}
	}
	m.note("traces after: %d, before the installation: %d", len(after), len(before))
}

// check: what a person asks beside the service knows of its settings and token.
func check(t *testing.T, m *machine) {
	if out := m.run(t, name+" check"); !regexp.MustCompile(`(?m)^ok +token `).MatchString(out) {
		t.Errorf("check:\n%s", out)
	}
	if out := m.run(t, name+" client-config --with-token claude-code"); !strings.Contains(out, token) {
		t.Errorf("client-config without the token:\n%s", out)
	}
}

// security holds the unit to a bar of 1.5 of 10.
func security(t *testing.T, m *machine) {
	m.run(t, "systemd-analyze security --no-pager --threshold=15 "+unit)
}

func calls(t *testing.T, m *machine) {
	m.expect(t, "python", "print(6*7)", 60, `(?s)^exit_code: 0\b.*42`)
	m.expect(t, "bash", "echo $((6*7)); exit 3", 60, `(?s)^exit_code: 3\b.*42`)
	m.expect(t, "python", "x = bytearray(1 << 30)", 60, `memory`)
	m.expect(t, "bash", "sleep 60", 2, `(?i)timed.out|time limit`)
	bomb := `(?s)^exit_code: 0\b.*at most True`
	if m.variant.gvisor {
		bomb = `^exit_code: 137 \(killed by SIGKILL` // with its kernel, which the host refuses more
	}
	m.expect(t, "python", "import os\nn = 0\ntry:\n  while n < 1000:\n    if os.fork() == 0:\n      import time; time.sleep(30)\n    n += 1\nexcept OSError: print('at most', n < 130)", 60, bomb)
	m.expect(t, "python", "import sys\nsys.stdout.write('x' * 3000000)", 60, `(?s)^exit_code: 0`)
	m.expect(t, "python", "import socket\ntry: socket.create_connection(('192.0.2.1', 53), 5)\nexcept OSError as e: print(e)", 60, `not supported|unreachable`)
	// The sandboxes stand where systemd leaves them alone, under a profile.
	m.run(t, `ls -d /sys/fs/cgroup/system.slice/`+name+`-boxes.service/sandboxes/*/`)
	if !m.variant.unconfined {
		m.run(t, `aa-status --json | grep -o '"`+name+`": *"enforce"'`)
	}
}

// pid is the server's.
func (m *machine) pid(t *testing.T) string {
	t.Helper()
	return m.run(t, "systemctl show -P MainPID "+unit)
}

// containerdRestarts: a call that runs does not notice.
func containerdRestarts(t *testing.T, m *machine) {
	pid := m.pid(t)
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		m.expect(t, "bash", "sleep 30; echo still here", 60, `(?s)^exit_code: 0\b.*still here`)
	}()
	m.awaitRunning(t, 1)
	m.run(t, "systemctl restart containerd")
	<-answered
	m.awaitHealthy(t)
	m.expect(t, "python", "print('after')", 60, `after`)
	if now := m.pid(t); now != pid {
		t.Errorf("the server was restarted with containerd: process %s, was %s", now, pid)
	}
}

// awaitRunning waits until the server says in its status that n calls run.
func (m *machine) awaitRunning(t *testing.T, n int) {
	t.Helper()
	m.await(t, fmt.Sprintf("%d calls run", n), fmt.Sprintf("systemctl show -P StatusText %s | grep -q '^ready: %d running'", unit, n))
}

func serverIsKilled(t *testing.T, m *machine) {
	pid := m.pid(t)
	m.run(t, "kill -9 "+pid)
	m.await(t, "another server", "p=$(systemctl show -P MainPID "+unit+") && [ $p != 0 ] && [ $p != "+pid+" ]")
	m.awaitHealthy(t)
	m.expect(t, "python", "print('again')", 60, `again`)
	m.onlyOwn(t)
}

// onlyOwn waits until there are no sandboxes but those of the server that runs.
func (m *machine) onlyOwn(t *testing.T) {
	t.Helper()
	m.await(t, "no sandbox of a dead server is left",
		`[ "$(ctr -n `+name+` containers ls -q | cut -d- -f1 | sort -u | wc -l)" -le 1 ] && [ "$(ls /run/`+name+` | grep -c '\.lock$')" = 1 ]`)
}

// serverHangs: the watchdog ends a server that does not move.
func serverHangs(t *testing.T, m *machine) {
	pid := m.pid(t)
	m.run(t, "kill -STOP "+pid)
	m.await(t, "the watchdog has ended it", "journalctl -u "+unit+" --no-pager -o cat | grep -q 'Watchdog timeout'")
	m.await(t, "another server", "p=$(systemctl show -P MainPID "+unit+") && [ $p != 0 ] && [ $p != "+pid+" ]")
	m.awaitHealthy(t)
	m.expect(t, "bash", "echo again", 60, `again`)
	m.onlyOwn(t)
}

// load makes calls without a pause until stop is called, which returns how many
// were made and what went wrong.
func (m *machine) load(t *testing.T, clients int) (stop func() (int, []string)) {
	t.Helper()
	var done atomic.Bool
	var count atomic.Int64
	var mu sync.Mutex
	var failed []string
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for !done.Load() {
				got, err := m.call(t.Context(), "bash", "echo ok", 60)
				count.Add(1)
				if err != nil || !strings.Contains(got, "ok") {
					mu.Lock()
					failed = append(failed, fmt.Sprintf("%q %v", clip(got), err))
					mu.Unlock()
				}
			}
		})
	}
	for count.Load() < int64(clients) {
		time.Sleep(100 * time.Millisecond)
	}
	return func() (int, []string) {
		done.Store(true)
		all.Wait()
		return int(count.Load()), failed
	}
}

// restartUnderLoad: nobody is refused, calls wait for the new server.
func restartUnderLoad(t *testing.T, m *machine) {
	stop := m.load(t, 2)
	m.run(t, "systemctl restart "+unit)
	m.awaitHealthy(t)
	count, failed := stop()
	m.note("restart under load: %d calls, %d failed", count, len(failed))
	for _, f := range failed {
		t.Errorf("failed: %s", f)
	}
}

// clockJumps: a call is measured by another clock than the one that jumps.
func clockJumps(t *testing.T, m *machine) {
	for _, jump := range []string{"+1 day", "-2 days", "+1 day"} {
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			m.expect(t, "bash", "sleep 15; echo on time", 60, `(?s)^exit_code: 0\b.*on time`)
		}()
		m.awaitRunning(t, 1)
		m.run(t, `date -s "`+jump+`"`)
		<-answered
	}
	m.awaitHealthy(t)
	m.onlyOwn(t)
}

// hostRunsOutOfMemory: what dies is the program in a sandbox that holds most, and
// its caller is told whose memory ran out.
func hostRunsOutOfMemory(t *testing.T, m *machine) {
	pid, daemon := m.pid(t), m.run(t, "systemctl show -P MainPID containerd")
	// A tmpfs takes memory without a process to blame: all but what the program
	// needs at first, and then the rest bit by bit, until something has died.
	m.run(t, `mkdir -p /tmp/hog && mount -t tmpfs -o size=100% hog /tmp/hog && dd if=/dev/zero of=/tmp/hog/most bs=1M count=$(( $(awk '/MemAvailable/ { print $2 }' /proc/meminfo) / 1024 - 600 )) 2>&1 | tail -n 1`)
	defer m.run(t, "umount /tmp/hog; journalctl -k --no-pager -o cat | grep -i 'out of memory' | tail -n 5")
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		m.expect(t, "python", "x = b'x' * (350 << 20)\nimport time\ntime.sleep(58)\nprint('alive')", 60, `^exit_code: 137 \(killed: the host ran out of memory, try again\)`)
	}()
	m.awaitRunning(t, 1)
	m.run(t, `oom() { awk '/^oom_kill / { print $2 }' /proc/vmstat; }; before=$(oom); i=0; sleep 3
while [ "$(oom)" = "$before" ] && [ $i -lt 100 ]; do dd if=/dev/zero of=/tmp/hog/$i bs=1M count=10 status=none; i=$((i + 1)); done
rm -f /tmp/hog/*; echo "after $i bits, $(($(oom) - before)) killed"`)
	<-answered
	m.awaitHealthy(t)
	if now := m.pid(t); now != pid {
		t.Errorf("the server is process %s, was %s", now, pid)
	}
	if now := m.run(t, "systemctl show -P MainPID containerd"); now != daemon {
		t.Errorf("containerd is process %s, was %s", now, daemon)
	}
	m.expect(t, "python", "print('after')", 60, `after`)
}

// brokenUpgrade: a server that does not come is taken back without anybody's help.
func brokenUpgrade(t *testing.T, m *machine) {
	broken := filepath.Join(t.TempDir(), "broken")
	// It knows its version and imports an image, and fails when it is to serve.
	script := "#!/bin/sh\n[ \"$1\" = serve ] || exit 0\necho broken on purpose >&2\nexit 1\n"
	if err := os.WriteFile(broken, []byte(script), 0o755); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	started := m.run(t, "date +%s")
	out, err := m.deploy(t, broken, "keep")
	for _, said := range []string{"systemd has given up", "rolled back"} {
		if err == nil || !strings.Contains(out, said) {
			t.Errorf("deploy of a broken binary: %v, without %q:\n%s", err, said, out)
		}
	}
	// It was the server's own limit, and the units are as they were.
	for what, command := range map[string]string{
		"complaints": "journalctl --no-pager -o cat --since @" + started + " | grep -E 'boxes.service: Failed|Dependency failed|marked executable' || true",
		"modes":      "find /usr/lib/systemd/system -name 'code-execution-sandbox*' ! -perm 0644",
	} {
		if got := m.run(t, command); got != "" {
			t.Errorf("%s after the broken binary:\n%s", what, got)
		}
	}
	if body := m.awaitHealthy(t); !strings.Contains(body, `"v1"`) {
		t.Errorf("healthy as %s, want v1", body)
	}
	m.expect(t, "python", "print('as before')", 60, `as before`)
}

// upgradeThatCannotBePlaced: what ran before still does, and nobody is told
// otherwise.
func upgradeThatCannotBePlaced(t *testing.T, m *machine) {
	m.run(t, "mount --bind /usr/bin/"+name+" /usr/bin/"+name) // nothing can be renamed over it
	out, err := m.deploy(t, binary(t, "v2"), "keep")
	m.run(t, "umount -l /usr/bin/"+name+" && ! ls /usr/bin/"+name+".new")
	if err == nil || !strings.Contains(out, "rolled back") || strings.Contains(out, "healthy at") {
		t.Errorf("deploy of a binary that cannot be put in place: %v\n%s", err, out)
	}
	if body := m.awaitHealthy(t); !strings.Contains(body, `"v1"`) {
		t.Errorf("healthy as %s, want v1", body)
	}
}

// brokenProfile: a version that comes with an AppArmor profile under which no
// sandbox works is taken back, and its profile with it.
func brokenProfile(t *testing.T, m *machine) {
	out, err := m.try(t.Context(), nil, "./vm.sh", "ssh", m.dir, `set -e
		mkdir /root/next && cp -r /usr/share/`+name+`/* /root/next
		sed -i 's|^}|  deny /usr/bin/** rx,\n}|' /root/next/systemd/apparmor.d/`+name+`
		WAIT=60 /root/next/systemd/install.sh install /usr/bin/`+name+` keep`)
	if err == nil || !strings.Contains(out, "rolled back") {
		t.Errorf("a version with a broken profile: %v\n%s", err, out)
	}
	m.run(t, "rm -rf /root/next; ! grep -r 'deny /usr/bin' /etc/apparmor.d/"+name+" /usr/share/"+name)
	m.expect(t, "python", "print('as before')", 60, `as before`)
}

func upgrade(t *testing.T, m *machine) {
	next := binary(t, "v2")
	stop := m.load(t, 1)
	out, err := m.deploy(t, next, "keep")
	count, failed := stop()
	if err != nil {
		t.Fatalf("deploy: %v\n%s", err, out)
	}
	m.note("upgrade under load: %d calls, %d failed", count, len(failed))
	for _, f := range failed {
		t.Errorf("failed: %s", f)
	}
	if body := m.awaitHealthy(t); !strings.Contains(body, `"v2"`) {
		t.Errorf("healthy as %s, want v2", body)
	}
}

// reboot: the service is back by itself, and nothing of before is left.
func reboot(t *testing.T, m *machine) {
	before := m.run(t, "cat /proc/sys/kernel/random/boot_id")
	m.note("reboot")
	_, _ = m.try(t.Context(), nil, "./vm.sh", "ssh", m.dir, "systemctl reboot")
	m.await(t, "the machine is back", `[ "$(cat /proc/sys/kernel/random/boot_id)" != `+before+` ]`)
	m.awaitHealthy(t)
	m.expect(t, "python", "print('after the reboot')", 60, `after the reboot`)
	m.onlyOwn(t)
	m.run(t, "systemctl --failed --no-legend; systemd-analyze | head -n 1")
}

// debianPackage installs the package, uses the service and purges it.
func debianPackage(t *testing.T, m *machine) {
	m.command(t, nil, "make", "-s", "-C", "../..", "package", "ARCH=amd64", "VERSION=3.0.0")
	m.command(t, nil, "./vm.sh", "put", m.dir, "../../bin/"+name+"_3.0.0_amd64.deb", archive(t, m), "/root/")
	m.run(t, "mkdir -p /etc/"+name+"; umask 077; echo "+token+" >/etc/"+name+"/token; dpkg -i /root/*.deb")
	// The server is there and waits for an image. It sees by itself that one has come.
	m.run(t, name+" image import - </root/image.tar")
	if body := m.awaitHealthy(t); !strings.Contains(body, `"3.0.0"`) {
		t.Errorf("healthy as %s, want 3.0.0", body)
	}
	m.expect(t, "python", "print('packaged')", 60, `packaged`)
	m.run(t, "dpkg --purge "+name+"; rm /root/*.deb /root/image.tar")
}

// traces lists what an installation could leave on the machine.
func (m *machine) traces(t *testing.T) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "./vm.sh", "ssh", m.dir, `
find /etc /usr /opt /srv /root /home /var/lib /var/cache /run /dev /tmp -xdev ! -path '/run/systemd/*' ! -path '/run/udev/*' ! -path '/run/log/*' \
	! -path '/var/lib/systemd/*' ! -path '/var/lib/containerd/*/blobs/*' ! -path '/dev/pts/*' ! -path '/run/user/*' ! -path '/tmp/systemd-private*' \
	! -path '/var/tmp/*' ! -path '/run/sudo/*' ! -path '/var/lib/sudo/*' ! -path '/var/lib/private*' ! -path '/var/cache/private*' ! -path '/run/sshd*' ! -path '/run/docker/*' \
	! -path '/run/credentials*' ! -path '/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/*' | sed 's/^/file /'
find /var/lib/containerd/io.containerd.content.v1.content/blobs -type f 2>/dev/null | sed 's/^/content /'
find /var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots -mindepth 1 -maxdepth 1 2>/dev/null | sed 's/^/snapshot /'
find /sys/fs/cgroup -type d -name '*`+name+`*' | sed 's/^/cgroup /'
ctr namespaces ls -q | sed 's/^/namespace /'
systemctl list-unit-files --no-legend '*`+name+`*' | sed 's/^/unit /'
systemctl list-units --all --no-legend '*`+name+`*' | sed 's/^/unit /'
getent passwd | sed 's/^/user /'
getent group | sed 's/^/group /'
ps -eo args | grep -e 'containerd-shim' -e '`+name+`' | grep -v grep | sed 's/^/process /'
grep -e '`+name+`' /proc/mounts | sed 's/^/mount /'
ss -Hltnp | grep -v '"containerd"' | awk '{ print "listens", $4 }'
cat /sys/kernel/security/apparmor/profiles | sed 's/^/profile /'
`).Output()
	if err != nil {
		t.Fatalf("list what is there: %v", err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}
