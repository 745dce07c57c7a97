// Package faults breaks what the service stands on, one thing at a time, and
// checks two things: each call gets one true answer in bounded time, and
// afterwards nothing is left (F-0). The numbers are those of the table in
// rows_test.go, which says where each fault is tested.
package faults

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"

	"code-execution-sandbox/image"
	"code-execution-sandbox/internal/daemon"
	"code-execution-sandbox/internal/runner"
	"code-execution-sandbox/internal/sandbox"
	"code-execution-sandbox/test/harness"
)

// A test with a containerd of its own runs beside others of its kind: most of
// its time is spent waiting. All others run alone, before them.
const beside = 4

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(beside)); err != nil {
		panic(err)
	}
	before := descriptors()
	code := harness.Main(m)
	if left := above(before); left != "" {
		fmt.Fprintln(os.Stderr, "after all tests:", left)
		code = 1
	}
	os.Exit(code)
}

// base checks at the end of a test that runs alone, after everything that the
// test starts from here on has been taken down, that this process holds no more
// descriptors than now and runs nothing of the runner.
func base(t *testing.T) {
	t.Helper()
	before := descriptors()
	t.Cleanup(func() {
		if left := above(before); left != "" {
			t.Error(left)
		}
	})
}

// above waits until this process holds no more than the descriptors of before
// and runs nothing of the runner, and tells what it has where that never comes.
func above(before []string) string {
	var fds []string
	var stacks string
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if fds, stacks = descriptors(), ours(); len(fds) <= len(before) && stacks == "" {
			return ""
		}
	}
	return fmt.Sprintf("%d descriptors, %d before:\n%s\ngoroutines:\n%s", len(fds), len(before), strings.Join(fds, "\n"), stacks)
}

func descriptors() []string {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err) // no /proc, no tests
	}
	var out []string
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			out = append(out, to)
		}
	}
	return out
}

// ours are the stacks of goroutines in the runner and below it.
func ours() string {
	buf := make([]byte, 8<<20)
	var out []string
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		for _, pkg := range []string{"code-execution-sandbox/internal/runner.", "containerd/api/services"} {
			if strings.Contains(stack, pkg) && !strings.Contains(stack, "faults.ours") {
				out = append(out, stack)
				break
			}
		}
	}
	return strings.Join(out, "\n\n")
}

// own returns options for a containerd that is this test's own, with the image
// in it; break it at will.
//
// Preconditions: the test runs beside others.
func own(t *testing.T, opts daemon.Options) (runner.Options, *daemon.Daemon) {
	t.Helper()
	dir, err := os.MkdirTemp(filepath.Dir(harness.Binary()), "d") // where harness.Leftovers looks
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // mapped users must pass
		t.Fatal(err)
	}
	if opts.Root == "" {
		opts.Root = filepath.Join(dir, "root")
	}
	if opts.State == "" {
		opts.State = filepath.Join(dir, "run")
	}
	opts.NoSync = true
	d, err := daemon.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeoutCause(context.Background(), time.Minute, errors.New("containerd does not end"))
		defer cancel()
		if err := errors.Join(d.Stop(ctx), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	namespace := namespaceOf(opts)
	client, err := containerd.New(d.Address(), containerd.WithDefaultNamespace(namespace))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	importImage(t, client)
	ro := harness.Options(t)
	ro.Client, ro.Address, ro.Namespace = client, d.Address(), namespace
	return ro, d
}

// namespaceOf is the namespace in a daemon that own starts: another for each,
// since the runtime keeps its state by namespace.
func namespaceOf(opts daemon.Options) string {
	return harness.Namespace + "-" + filepath.Base(filepath.Dir(opts.State))
}

func importImage(t *testing.T, client *containerd.Client) {
	t.Helper()
	if _, _, err := image.Import(t.Context(), client, image.Options{Name: harness.ImageName}, image.Docker("")); err != nil {
		t.Fatal(err)
	}
}

// maintained is a runner that keeps itself going and leaves nothing. It is
// closed, and looked at, when the test ends.
func maintained(t *testing.T, opts runner.Options) *runner.Runner {
	t.Helper()
	if opts.Address == harness.Daemon().Address() {
		base(t)
	}
	r := harness.Runner(t, opts)
	m := keep(r)
	t.Cleanup(m.stop)
	return r
}

// keeper is a runner with its maintenance.
type keeper struct {
	*runner.Runner
	stop func()
}

func keep(r *runner.Runner) keeper {
	ctx, cancel := context.WithCancelCause(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { r.Maintain(ctx) })
	return keeper{r, func() {
		cancel(errors.New("the test ended"))
		wg.Wait()
	}}
}

// newMaintained is a runner that end ends.
func newMaintained(t *testing.T, opts runner.Options) keeper {
	t.Helper()
	r, err := runner.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	return keep(r)
}

func (k keeper) end(t *testing.T) {
	k.stop()
	if err := k.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// eventually waits for something that happens in the background. The limit is
// a guard against hanging.
func eventually(t *testing.T, limit time.Duration, what string, happened func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !happened(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never happened: " + what)
		}
	}
}

// within ends the test when a call takes longer than its bound.
func within(t *testing.T, limit time.Duration, do func()) {
	t.Helper()
	begin := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
		t.Logf("answered after %v", time.Since(begin).Round(time.Millisecond))
	case <-time.After(limit):
		t.Errorf("no answer within %v", limit)
		<-done
	}
}

// answer is what a call came to.
type answer struct {
	res *sandbox.Result
	err error
}

func (a answer) String() string {
	if a.err != nil {
		return "error: " + a.err.Error()
	}
	return fmt.Sprintf("%s %d: %.100q %.300q", a.res.Status, a.res.ExitCode, a.res.Stdout, a.res.Stderr)
}

// is checks a result for its status and standard output.
func (a answer) is(t *testing.T, status sandbox.Status, stdout string) {
	t.Helper()
	if a.err != nil || a.res.Status != status || string(a.res.Stdout) != stdout {
		t.Errorf("%v, want %s with %q", a, status, stdout)
	}
}

// unavailable checks that a call was not served, and that check is to blame;
// empty for any.
func (a answer) unavailable(t *testing.T, check string) {
	t.Helper()
	var notReady *sandbox.NotReadyError
	errors.As(a.err, &notReady)
	switch {
	case !errors.Is(a.err, sandbox.ErrUnavailable), errors.Is(a.err, sandbox.ErrInternal):
		t.Errorf("%v, want an error that says unavailable", a)
	case check != "" && (notReady == nil || notReady.Check != check):
		t.Errorf("%v, want the check %s", a, check)
	}
}

func execute(t *testing.T, r *runner.Runner, req sandbox.Request) answer {
	res, err := r.Execute(t.Context(), req)
	return answer{res, err}
}

// start executes in the background, and returns once the program runs, which
// must come to a sleep. The answer comes on the channel.
func start(t *testing.T, r *runner.Runner, opts runner.Options, req sandbox.Request) <-chan answer {
	t.Helper()
	before := harness.Asleep(t, opts)
	out := make(chan answer, 1)
	go func() { out <- execute(t, r, req) }()
	eventually(t, 30*time.Second, "the program runs", func() bool { return len(harness.Asleep(t, opts)) > len(before) })
	return out
}

// sandboxes are the ids of those that have a cgroup.
func sandboxes(t *testing.T, opts runner.Options) []string {
	t.Helper()
	names, err := opts.Cgroups.Children(opts.CgroupParent)
	if err != nil {
		t.Fatal(err)
	}
	harness.Saw(opts, names...)
	return names
}

// shims are the process ids of the shims of a containerd.
func shims(t *testing.T, opts runner.Options) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, file := range files {
		raw, _ := os.ReadFile(file) // it may have ended
		line := string(raw)
		if _, rest, ok := strings.Cut(line, "\x00-id\x00"); ok && strings.Contains(line, "containerd-shim") && strings.Contains(line, "\x00"+opts.Address+"\x00") {
			id, _, _ := strings.Cut(rest, "\x00")
			harness.Saw(opts, id)
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, pid)
		}
	}
	return out
}

// signal sends sig to processes of ours; one that has ended is no error.
// SIGSTOP and SIGKILL have taken effect when it returns: a thread sees them when
// it is next scheduled, and until then goes on with its work.
func signal(t *testing.T, sig syscall.Signal, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		if pid <= 1 {
			t.Fatal("no process to signal")
		}
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatal(err)
		}
	}
	if sig != syscall.SIGSTOP && sig != syscall.SIGKILL {
		return
	}
	for _, pid := range pids {
		eventually(t, 10*time.Second, fmt.Sprintf("process %d stops", pid), func() bool { return stopped(t, pid) })
	}
}

// stopped reports whether no thread of a process runs.
func stopped(t *testing.T, pid int) bool {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		raw, err := os.ReadFile(thread)
		if err != nil {
			continue // it has ended
		}
		_, rest, ok := strings.Cut(string(raw), ") ")
		if !ok || !strings.ContainsAny(rest[:1], "TtZX") {
			return false
		}
	}
	return true
}

func bash(code string, timeout time.Duration) sandbox.Request {
	return sandbox.Request{ID: "fault", Language: sandbox.Bash, Code: code, Timeout: timeout}
}

// serves waits until a program runs again.
func serves(t *testing.T, r *runner.Runner) {
	t.Helper()
	var last answer
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if last = execute(t, r, bash("echo back", 10*time.Second)); last.err == nil {
			last.is(t, sandbox.StatusExited, "back\n")
			return
		}
		last.unavailable(t, "")
	}
	t.Fatal("does not recover:", last)
}

// clean waits until nothing but what is prepared is left.
func clean(t *testing.T, opts runner.Options) {
	t.Helper()
	eventually(t, 90*time.Second, "nothing is left", func() bool {
		left := harness.Leftovers(t, opts)
		var rest []string
		for _, l := range left {
			if !strings.HasPrefix(l, harness.InRunDir) {
				rest = append(rest, l)
			}
		}
		return len(rest) == 0
	})
}
