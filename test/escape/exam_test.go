package escape

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"code-execution-sandbox/internal/runner"
	"code-execution-sandbox/internal/sandbox"
	"code-execution-sandbox/test/harness"
)

// row is something hostile, and what must come of it.
type row struct {
	n    int
	what string

	// What is done is exactly one of these. Probes share a call with others,
	// each in a process of its own; they have the prelude.
	probe        string
	python, bash string
	test         func(x *exam)

	// stdin and seconds belong to python and bash; zero seconds are the
	// default time limit.
	stdin   string
	seconds int

	// out and err are regular expressions for the whole of each stream,
	// without white space around it; for a probe out is both streams. An empty
	// one means silence.
	out, err string
	// end is a regular expression for the end; empty means "exited 0".
	end string

	// residual is why the outcome is accepted although it is not what one
	// would wish for. It is asserted all the same, so that a change is seen.
	residual string
	// unless is why the row says nothing on this host, "" where it does.
	unless func(h *host) string
}

// host is what a row may have to know of where it runs.
type host struct {
	arch    string
	cgroup  int
	lsm     string
	pattern string // of core dumps
	// interrupt: the processor has the interrupt of 32-bit system calls.
	interrupt bool
	// gvisor: programs run on gVisor's kernel.
	gvisor bool
	// resource: the runtime has CAP_SYS_RESOURCE.
	resource bool
	limits   sandbox.Limits
	uidBase  uint32
}

func look(t testing.TB, opts *runner.Options) *host {
	t.Helper()
	// securityfs need not be mounted: then there is no AppArmor to speak of.
	lsm, _ := os.ReadFile("/sys/kernel/security/lsm")
	pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	if err != nil {
		t.Fatal(err)
	}
	return &host{
		arch: opts.Arch, cgroup: int(opts.Cgroups.Version), lsm: string(lsm),
		pattern: strings.TrimSpace(string(pattern)), limits: opts.Limits, uidBase: opts.UIDBase,
		interrupt: hasInterrupt(), resource: hasResource(t), gvisor: runner.SecondKernel(opts.Runtime),
	}
}

// hasResource reports whether this process, and so the runtime that it causes to
// be started, has CAP_SYS_RESOURCE.
func hasResource(t testing.TB) bool {
	t.Helper()
	var sets [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &sets[0]); err != nil {
		t.Fatal(err)
	}
	return sets[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// exam is one runner under examination. Its methods may be called from several
// goroutines.
type exam struct {
	t    *testing.T
	opts runner.Options
	r    sandbox.Executor
	host *host
	// mutation is what the runtime's wrapper takes away, if there is one.
	mutation string

	mu     *sync.Mutex
	faults map[int][]string // guarded by mu
}

func newExam(t *testing.T, opts runner.Options) *exam {
	t.Helper()
	return &exam{t: t, opts: opts, r: harness.Runner(t, opts), host: look(t, &opts), mu: new(sync.Mutex), faults: map[int][]string{}}
}

// fault notes that a row does not hold.
func (x *exam) fault(n int, format string, args ...any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.faults[n] = append(x.faults[n], fmt.Sprintf(format, args...))
}

// errNoVerdict marks a fault of ours: the row says nothing.
const errNoVerdict = "NO VERDICT, the call failed: "

// run executes a program and returns nil, with a fault, where that is an error
// or takes too long. A program can never cause either.
func (x *exam) run(ctx context.Context, n int, req sandbox.Request) *sandbox.Result {
	if req.Timeout == 0 {
		req.Timeout = x.opts.Limits.DefaultTimeout
	}
	start := time.Now()
	res, err := x.r.Execute(ctx, req)
	if err != nil {
		x.fault(n, errNoVerdict+"%v", err)
		return nil
	}
	took := time.Since(start)
	if took > req.Timeout+harness.Slow(3*time.Second) {
		x.fault(n, "the call returned after %v, the limit is %v", took, req.Timeout)
	}
	if took > harness.Slow(5*time.Second) {
		x.t.Logf("row %d took %v", n, took)
	}
	return res
}

// python and bash run a program that must end by itself and without error, and
// return what it printed.
func (x *exam) python(n int, code string) string {
	return x.output(n, harness.Python(x.prelude()+code))
}

func (x *exam) bash(n int, code string) string { return x.output(n, harness.Bash(code)) }

func (x *exam) output(n int, req sandbox.Request) string {
	res := x.run(x.t.Context(), n, req)
	if res == nil {
		return ""
	}
	if end := ending(res); end != "exited 0" || len(res.Stderr) > 0 {
		x.fault(n, "%s: %s", end, excerpt(res.Stderr))
	}
	return strings.TrimSpace(string(res.Stdout))
}

// beside runs act while a program is at work that has reached its flag(), and
// then ends that program. It returns what the program printed.
func (x *exam) beside(n int, code string, act func()) string {
	ctx, cancel := context.WithCancelCause(x.t.Context())
	defer cancel(nil)
	done := make(chan *sandbox.Result, 1)
	go func() {
		req := harness.Python(x.prelude() + code + "\nflag()\ntime.sleep(60)\n")
		req.Timeout = harness.Slow(30 * time.Second)
		done <- x.run(ctx, n, req)
	}()
	x.await(n, "the neighbour's flag", func() bool { return x.processes() > 10 })
	act()
	cancel(errors.New("seen enough"))
	res := <-done
	if res == nil {
		return ""
	}
	if end := ending(res); end != "canceled" || len(res.Stderr) > 0 {
		x.fault(n, "the neighbour: %s: %s", end, excerpt(res.Stderr))
	}
	return strings.TrimSpace(string(res.Stdout))
}

// settle waits until what earlier calls have left is removed.
func (x *exam) settle() {
	x.await(0, "the end of all sandboxes", func() bool {
		left, err := filepath.Glob(filepath.Join(x.opts.RunDir, "*", "*"))
		return err == nil && len(left) == 0
	})
}

// processes is the number of processes in the fullest sandbox.
func (x *exam) processes() int {
	most := 0
	names, err := x.opts.Cgroups.Children(x.opts.CgroupParent)
	if err != nil {
		x.t.Error(err)
	}
	for _, name := range names {
		pids, err := x.opts.Cgroups.Group(filepath.Join(x.opts.CgroupParent, name)).Processes()
		if err != nil {
			x.t.Error(err)
		}
		most = max(most, len(pids))
	}
	return most
}

// await waits for something that happens soon.
func (x *exam) await(n int, what string, happened func() bool) {
	for deadline := time.Now().Add(harness.Slow(15 * time.Second)); !happened(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			x.fault(n, "never happened: %s", what)
			return
		}
	}
}

var (
	//go:embed testdata/prelude.py
	preludeText string
	//go:embed testdata/batch.py
	batchText string
)

// numbers reads the numbers of the system calls of this architecture.
var numbers = sync.OnceValues(func() (map[string]int, error) {
	raw, err := os.ReadFile("../../oci/testdata/syscalls-" + runtime.GOARCH + ".txt")
	if err != nil {
		return nil, err
	}
	out := map[string]int{}
	for line := range strings.Lines(string(raw)) {
		if number, name, ok := strings.Cut(strings.TrimSpace(line), " "); ok && number != "#" {
			if out[strings.TrimSpace(name)], err = strconv.Atoi(number); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
})

// prelude is what probes, and programs that ask for it, begin with.
func (x *exam) prelude() string {
	nr, err := numbers()
	if err != nil {
		x.t.Fatal(err)
	}
	spec, err := runner.Spec(x.opts, sandbox.Python)
	if err != nil {
		x.t.Fatal(err)
	}
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		x.t.Fatal(err)
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		x.t.Fatal(err)
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		x.t.Fatal(err)
	}
	numbers, _ := json.Marshal(nr)
	facts, err := json.Marshal(map[string]any{
		"arch": x.host.arch, "environment": spec.Process.Env, "uid_base": x.opts.UIDBase,
		"memory": x.opts.Limits.Memory, "tmp": x.opts.Limits.Tmp, "shm": x.opts.Limits.Shm, "pids": x.opts.Limits.PIDs,
		"boot": boot.Sec, "host_memory": uint64(info.Totalram) * uint64(info.Unit),
		"host_cpus": runtime.NumCPU(), "release": unix.ByteSliceToString(uts.Release[:]),
	})
	if err != nil {
		x.t.Fatal(err)
	}
	text := strings.Replace(preludeText, "NR = {}", "NR = "+string(numbers), 1)
	return strings.Replace(text, "HOST = {}", "HOST = "+string(facts), 1)
}

// ending is how a run ended, in one or two words.
func ending(res *sandbox.Result) string {
	switch res.Status {
	case sandbox.StatusExited:
		return fmt.Sprintf("exited %d", res.ExitCode)
	case sandbox.StatusSignaled:
		return fmt.Sprintf("signaled %d", res.Signal)
	}
	return string(res.Status)
}

// sit examines the rows: probes together, then programs some at a time, then
// what needs the runner for itself.
func (x *exam) sit(rows []row) {
	rows = slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return r.unless != nil && r.unless(x.host) != "" })
	var probes []row
	for _, r := range rows {
		if r.probe != "" {
			probes = append(probes, r)
		}
	}
	for group := range slices.Chunk(probes, 40) {
		x.probes(group)
	}
	programs := make(chan *row)
	var workers sync.WaitGroup
	for range 3 {
		workers.Go(func() {
			for r := range programs {
				x.program(r)
			}
		})
	}
	for i := range rows {
		if rows[i].python != "" || rows[i].bash != "" {
			programs <- &rows[i]
		}
	}
	close(programs)
	workers.Wait()
	x.settle()
	for _, r := range rows {
		if r.test != nil {
			r.test(x)
		}
	}
}

// probes runs many probes in one call.
func (x *exam) probes(rows []row) {
	var list [][2]string
	byKey := map[string]*row{}
	for i := range rows {
		key := fmt.Sprintf("%03d-%d", rows[i].n, i)
		byKey[key] = &rows[i]
		list = append(list, [2]string{key, rows[i].probe})
	}
	stdin, err := json.Marshal(list)
	if err != nil {
		x.t.Fatal(err)
	}
	req := harness.Python(x.prelude() + batchText)
	req.Stdin, req.Timeout = stdin, harness.Slow(60*time.Second)
	res := x.run(x.t.Context(), rows[0].n, req)
	if res == nil {
		for _, r := range rows[1:] {
			x.fault(r.n, errNoVerdict+"with row %d", rows[0].n)
		}
		return
	}
	for line := range bytes.Lines(res.Stdout) {
		var answer [2]string
		if err := json.Unmarshal(line, &answer); err != nil {
			x.t.Errorf("the probes' driver: %v: %s", err, line)
			continue
		}
		r := byKey[answer[0]]
		delete(byKey, answer[0])
		if !matches(r.out, answer[1]) {
			x.fault(r.n, "%s: got %q, want %q", r.what, excerpt([]byte(answer[1])), r.out)
		}
	}
	for _, r := range byKey {
		x.fault(r.n, errNoVerdict+"%s: the driver %s: %s", r.what, ending(res), excerpt(res.Stderr))
	}
}

// program runs a row that is a whole program.
func (x *exam) program(r *row) {
	req := harness.Bash(r.bash)
	if r.python != "" {
		req = harness.Python(r.python)
		if !strings.HasPrefix(r.python, bare) {
			req.Code = x.prelude() + r.python
		}
	}
	req.Stdin, req.Timeout = []byte(r.stdin), harness.Slow(time.Duration(r.seconds)*time.Second)
	res := x.run(x.t.Context(), r.n, req)
	if res == nil {
		return
	}
	want := r.end
	if want == "" {
		want = "exited 0"
	}
	if got := ending(res); !matches(want, got) {
		x.fault(r.n, "%s: %s, want %s\nstdout: %s\nstderr: %s", r.what, got, want, excerpt(res.Stdout), excerpt(res.Stderr))
	}
	for _, s := range []struct {
		name, want string
		got        []byte
	}{{"stdout", r.out, res.Stdout}, {"stderr", r.err, res.Stderr}} {
		if got := strings.TrimSpace(string(s.got)); !matches(s.want, got) {
			x.fault(r.n, "%s: %s is %q, want %q", r.what, s.name, excerpt([]byte(got)), s.want)
		}
	}
}

// bare begins a Python program that runs without the prelude.
const bare = "# bare\n"

// anything is an expectation that everything meets.
const anything = ".*"

func matches(pattern, text string) bool {
	return regexp.MustCompile(`(?s)^(?:` + pattern + `)$`).MatchString(text)
}

func excerpt(b []byte) string {
	const most = 600
	if len(b) > most {
		return string(b[:most]) + "…"
	}
	return string(b)
}
