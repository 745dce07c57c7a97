package image

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"code-execution-sandbox/internal/sandbox"
	"code-execution-sandbox/test/harness"
)

// What users of other sandboxes complained of, by the number of the case: the
// Python environment on a read-only root, standard input, locale.
func TestCases(t *testing.T) {
	r := harness.Runner(t, options(t))
	python, bash := sandbox.Python, sandbox.Bash
	runAll(t, r, []program{
		// No directory for caches, fonts looked for at every start.
		{of: "T46", language: python, stdout: "ok\n[]\n", code: `import matplotlib; matplotlib.use("Agg"); import matplotlib.pyplot as p; p.plot([1]); p.savefig("/tmp/a.png"); print("ok")
import pathlib; print(list(pathlib.Path("/tmp").rglob("fontlist*")))`},
		// A user without a name or a home.
		{of: "T48", language: python, stdout: "sandbox /tmp pwd.struct_passwd(pw_name='sandbox', pw_passwd='x', pw_uid=1000, pw_gid=1000, pw_gecos='sandbox', pw_dir='/tmp', pw_shell='/bin/bash')\nTrue\n",
			code: `import getpass,os,pwd; print(getpass.getuser(), os.path.expanduser("~"), pwd.getpwuid(os.getuid())); open(os.path.expanduser("~/x"), "w"); print(os.access(os.environ["HOME"], os.W_OK))`},
		// Code that its user may not read, a working directory that cannot be made.
		{of: "T49", language: python, stdout: "/tmp CapEff:\t0000000000000000\n", code: `import os; open(__file__).read(); print(os.getcwd(), *[l.strip() for l in open("/proc/self/status") if l.startswith("CapEff")])`},
		{of: "T49", language: bash, stdout: "/tmp\n0\n", code: `pwd; cat "$0" >/dev/null; echo $?`},
		// No /dev/shm.
		{of: "T51", language: python, stdout: "[1, 2]\n5\n", code: `from multiprocessing import Pool, shared_memory; print(Pool(2).map(abs,[-1,-2]))
m = shared_memory.SharedMemory(create=True, size=1 << 20); m.buf[0] = 5; print(m.buf[0]); m.close(); m.unlink()`},
		// Nothing in /tmp can be executed, scripts can be run.
		{of: "T52", language: bash, stdout: "126\nbash\npython\n", code: `cp /bin/ls /tmp/l && /tmp/l 2>err; echo $?; grep -q 'Permission denied' err || cat err; echo 'echo bash' > x.sh; echo 'print("python")' > x.py; bash x.sh; python3 x.py`},
		{of: "T52", language: python, stdout: "OSError failed to map segment from shared object\n", code: `import ctypes, glob, shutil
shutil.copy(glob.glob("/usr/lib/*/libz.so.1")[0], "/tmp/z.so")
try: ctypes.CDLL("/tmp/z.so")
except OSError as e: print(type(e).__name__, str(e).split(": ", 1)[1])`},
		// A list of system calls so short that libraries die.
		{of: "T53", language: python, stdout: "   a\n0  1\n", code: `import numpy, pandas; print(pandas.DataFrame({"a":[1]}))`},
		// Standard input that nobody can give, or that never ends.
		{of: "T54", language: python, stdout: "EOFError\n", code: "try: input()\nexcept EOFError as e: print(type(e).__name__)"},
		{of: "T54", language: python, stdin: "42", stdout: "42\n", code: `print(input())`},
		// A locale that knows ASCII alone.
		{of: "T56", language: python, stdout: "↗ é 日本\nutf-8 UTF-8\n", code: `print("↗ é 日本"); import sys,locale; print(sys.stdout.encoding, locale.getpreferredencoding())`},
		{of: "T56", language: bash, stdout: "2\n", code: `echo "é" | wc -m`},
	})
}

// As many threads as the host has processors, against a limit of processes.
func TestT50NumpyBelowALowLimitOfProcesses(t *testing.T) {
	opts := options(t)
	opts.Limits.PIDs = 64
	program{of: "T50", language: sandbox.Python, stdout: "500.0\n1\n", code: `import numpy; print((numpy.ones((500,500))@numpy.ones((500,500)))[499, 499])
import os; print(len(os.listdir("/proc/self/task")))`}.run(t, harness.Runner(t, opts))
	// Every library that asks is told how many processors there are.
	opts = options(t)
	opts.Limits.CPUs = 2
	program{of: "T50", language: sandbox.Bash, stdout: "2 2 2 2\n", code: `echo $OMP_NUM_THREADS $OPENBLAS_NUM_THREADS $MKL_NUM_THREADS $NUMEXPR_NUM_THREADS`}.run(t, harness.Runner(t, opts))
}

// A hundred at once, each with the answer to its own question.
func TestT41ParallelCalls(t *testing.T) {
	s := harness.Serve(t, options(t), "[queue]\nmax_waiting = 100\nmax_wait_seconds = 300\n")
	session := s.Connect(t)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			res, err := harness.Call(t.Context(), session, map[string]any{"language": "bash", "code": fmt.Sprintf("echo =%d=", i)})
			if err != nil {
				t.Error(err)
				return
			}
			if text := harness.Text(t, res); !strings.Contains(text, fmt.Sprintf("=%d=", i)) {
				t.Errorf("call %d: %s", i, text)
			}
		})
	}
	wg.Wait()
}

// However many come, as many run as there are slots; the others wait for a
// while that is told apart, or hear that the server is busy.
func TestT42NoMoreThanTheSlots(t *testing.T) {
	opts := options(t)
	opts.Slots, opts.MaxWaiting = 3, 500
	opts.MaxWait = 5 * time.Minute
	r := harness.Runner(t, opts)
	var done, waited, running, most atomic.Int64
	stop := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				names, err := opts.Cgroups.Children(opts.CgroupParent)
				if err != nil {
					t.Error(err)
					return
				}
				running.Store(int64(len(names)))
				most.Store(max(most.Load(), running.Load()))
			}
		}
	})
	var wg sync.WaitGroup
	for range 60 {
		wg.Go(func() {
			res, err := r.Execute(t.Context(), sandbox.Request{ID: "test", Language: sandbox.Bash, Code: "sleep 0.2"})
			if err != nil || res.ExitCode != 0 {
				t.Error(res, err)
				return
			}
			done.Add(1)
			if res.Queued > 200*time.Millisecond && res.Duration < 30*time.Second {
				waited.Add(1)
			}
		})
	}
	wg.Wait()
	close(stop)
	watch.Wait()
	if done.Load() != 60 || waited.Load() < 40 {
		t.Errorf("%d of 60 calls ended, %d with a wait of its own", done.Load(), waited.Load())
	}
	// Sandboxes of calls that have their answer may still be on their way out.
	if got, limit := most.Load(), int64(2*opts.Slots+2); got == 0 || got > limit {
		t.Errorf("%d sandboxes at once, at most %d are expected", got, limit)
	}
}

// Nothing of a call is there in the next, whoever asks.
func TestT43NothingStays(t *testing.T) {
	opts := options(t)
	opts.Pool = map[sandbox.Language]int{sandbox.Bash: 2}
	r := harness.Runner(t, opts)
	for i := range 50 {
		leave := harness.Run(t, r, harness.Bash(`echo secret > /tmp/s; echo secret > /dev/shm/s; export S=secret; (setsid sleep 60 &) ; echo left`))
		look := harness.Run(t, r, harness.Bash(`ls -A /tmp /dev/shm; echo [$S]; set -- /proc/[0-9]*; echo $#`))
		if string(leave.Stdout) != "left\n" || string(look.Stdout) != "/dev/shm:\n\n/tmp:\nmain.sh\n[]\n2\n" {
			t.Fatalf("pair %d: %q, then %q", i, leave.Stdout, look.Stdout)
		}
	}
}

// The first call after a start is as quick as any: what takes long is done
// before the server calls itself ready.
func TestT44TheFirstCallIsQuick(t *testing.T) {
	opts := options(t)
	s := harness.Start(t, opts, "")
	early, err := http.Get(s.Base() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	_ = early.Body.Close()
	s.AwaitHealthy(t)
	session := s.Connect(t)
	start := time.Now()
	res, err := harness.Call(t.Context(), session, map[string]any{"language": "python", "code": "import json; print(6*7)"})
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	t.Logf("healthz at first: %d; first call: %v", early.StatusCode, took)
	// 1 s is what is promised; a machine under load gets more.
	if !strings.Contains(harness.Text(t, res), "42") || took > 10*time.Second {
		t.Errorf("after %v: %s", took, harness.Text(t, res))
	}
	s.Stop(t)
	for _, left := range harness.Leftovers(t, opts) {
		t.Error("left behind:", left)
	}
}
