package integration

import (
	"bytes"
	"context"
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"code-execution-sandbox/internal/runner"
	"code-execution-sandbox/internal/sandbox"
	"code-execution-sandbox/test/harness"
)

func TestTimeLimit(t *testing.T) {
	r := harness.Runner(t, harness.Options(t))
	for name, req := range map[string]sandbox.Request{
		"busy loop":        harness.Python("print('before')\nwhile True: pass"),
		"sleep":            harness.Bash("echo before; sleep 60"),
		"deaf to signals":  harness.Bash("trap '' TERM INT HUP; trap 'sleep 99' EXIT; echo before; sleep 60"),
		"background too":   harness.Bash("echo before; sleep 300 & wait"),
		"own session":      harness.Bash("echo before; setsid sh -c 'sleep 600' & disown; sleep 600"),
		"own stdin filled": harness.Bash("echo before; exec 3<>/dev/stdin; echo more >&3; sleep 60"),
		"deadly to PID 1":  harness.Python("import os, resource, time\nprint('before')\ntry: resource.prlimit(1, resource.RLIMIT_CPU, (1, 1))\nexcept PermissionError: pass\nif os.fork() == 0:\n  while 1: os.kill(1, 17)\ntime.sleep(60)"),
		"stdin never read": {ID: "test", Language: sandbox.Bash, Code: "echo before; sleep 60", Stdin: make([]byte, 1<<20)},
		"threads at exit":  harness.Python("import threading, time\nprint('before')\nthreading.Thread(target=time.sleep, args=(60,)).start()"),
		"fork bomb":        harness.Bash("echo before; :(){ :|:& };: 2>/dev/null; while :; do :; done"),
	} {
		t.Run(name, func(t *testing.T) {
			const limit = 2 * time.Second
			req.Timeout = limit
			res := harness.Run(t, r, req)
			check(t, res, killedAt(sandbox.StatusTimedOut))
			if string(res.Stdout) != "before\n" {
				t.Errorf("stdout %q: what was printed before is part of the answer", res.Stdout)
			}
			// A guard against twice the limit, not a measurement.
			if res.Duration < limit || res.Duration >= 2*limit {
				t.Errorf("ended after %v", res.Duration)
			}
		})
	}
}

func TestMemoryLimit(t *testing.T) {
	opts := harness.Options(t)
	r := harness.Runner(t, opts)
	for name, req := range map[string]sandbox.Request{
		"the program":  harness.Python("x = bytearray(1 << 30)"),
		"a child":      harness.Bash(`python3 -c 'x = bytearray(1 << 30)'; exit 0`),
		"many of them": harness.Bash(`for i in $(seq 8); do python3 -c 'x = bytearray(60 << 20); import time; time.sleep(3)' & done; wait`),
	} {
		t.Run(name, func(t *testing.T) {
			res := harness.Run(t, r, req)
			if res.Status != sandbox.StatusOutOfMemory || !res.OOMKilled || res.OOMElsewhere {
				t.Errorf("%s (oom %v) with exit code %d: %s", res.Status, res.OOMKilled, res.ExitCode, res.Stderr)
			}
		})
	}
	t.Run("the peak", func(t *testing.T) {
		res := harness.Run(t, r, harness.Python("x = bytearray(100 << 20)"))
		check(t, res, exit(0))
		if mb := res.PeakMemory >> 20; mb < 95 || mb > 140 {
			t.Errorf("100 MiB are reported as %d", mb)
		}
		if res := harness.Run(t, r, harness.Python("pass")); res.PeakMemory>>20 > 8 {
			t.Errorf("nothing is reported as %d MiB: the launcher's share is not the program's", res.PeakMemory>>20)
		}
	})
	t.Run("processor time", func(t *testing.T) {
		res := harness.Run(t, r, harness.Python("import time\nt = time.process_time()\nwhile time.process_time() - t < 0.5: pass"))
		if res.CPUTime < 450*time.Millisecond || res.CPUTime > 900*time.Millisecond {
			t.Errorf("half a second of work is reported as %v", res.CPUTime)
		}
	})
}

func TestOtherLimits(t *testing.T) {
	r := harness.Runner(t, harness.Options(t))
	for _, c := range []struct{ name, code, want string }{
		{"a full /tmp", `head -c 5G /dev/zero > /tmp/f; stat -c %s /tmp/f`, "No space left on device"},
		{"files in /tmp", `for i in $(seq 20000); do : > /tmp/f$i || break; done; echo end`, "No space left on device"},
		{"processes", `for i in $(seq 500); do sleep 5 & done; kill %1; echo end`, "Resource temporarily unavailable"},
		{"open files", `python3 -c 'import os; [os.open("/", os.O_RDONLY) for _ in range(100000)]'`, "Too many open files"},
		{"programs in /tmp", `cp /bin/true /tmp/t && /tmp/t`, "Permission denied"},
		{"root file system", `touch /usr/x`, "Read-only file system"},
	} {
		t.Run(c.name, func(t *testing.T) {
			res := harness.Run(t, r, harness.Bash(c.code))
			if !strings.Contains(string(res.Stderr), c.want) {
				t.Errorf("%s %d, stderr does not say %q: %.300s", res.Status, res.ExitCode, c.want, res.Stderr)
			}
		})
	}
}

// The cap is exact, and both ends of a long stream are kept.
func TestOutputCap(t *testing.T) { bothWays(t, testOutputCap) }

func testOutputCap(t *testing.T, opts runner.Options) {
	opts.Limits.MaxOutputBytes = 1 << 16
	r := harness.Runner(t, opts)
	const limit = 1 << 16
	for _, n := range []int{0, 1, limit - 1, limit, limit + 1, 2 * limit, 3<<20 + 7} {
		res := harness.Run(t, r, harness.Python("import sys\nfor s in sys.stdout, sys.stderr:\n  s.buffer.write((b'%09d\\n' * 400000 % tuple(range(400000)))[:"+strconv.Itoa(n)+"])"))
		check(t, res, exit(0))
		want := output(n)
		for name, got := range map[string]struct {
			kept  []byte
			head  int
			total int64
		}{"stdout": {res.Stdout, res.StdoutHead, res.StdoutBytes}, "stderr": {res.Stderr, res.StderrHead, res.StderrBytes}} {
			if got.total != int64(n) || len(got.kept) != min(n, limit) {
				t.Errorf("%s of %d bytes: %d counted, %d kept", name, n, got.total, len(got.kept))
			}
			tail := len(got.kept) - got.head
			if !bytes.Equal(got.kept[:got.head], want[:got.head]) || !bytes.Equal(got.kept[got.head:], want[n-tail:]) {
				t.Errorf("%s of %d bytes: not its beginning and its end", name, n)
			}
		}
		if res.Truncated() != (n > limit) {
			t.Errorf("%d bytes: truncated is %v", n, res.Truncated())
		}
	}
}

func output(n int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		s := strconv.Itoa(i)
		b.WriteString(strings.Repeat("0", 9-len(s)) + s + "\n")
	}
	return b.Bytes()[:n]
}

// A flood is drained, counted and forgotten.
func TestFloodLeavesTheServerFlat(t *testing.T) {
	opts := harness.Options(t)
	r := harness.Runner(t, opts)
	flood := func(code string, timeout time.Duration) *sandbox.Result {
		req := harness.Bash(code)
		req.Timeout = timeout
		return harness.Run(t, r, req)
	}
	flood("yes", time.Second) // warms up
	before := residentBytes(t)
	res := flood("yes", 2*time.Second)
	check(t, res, killedAt(sandbox.StatusTimedOut))
	if len(res.Stdout) != opts.Limits.MaxOutputBytes || res.StdoutBytes < 16<<20 {
		t.Errorf("%d bytes kept of %d", len(res.Stdout), res.StdoutBytes)
	}
	res = flood("yes >&2 & yes", 2*time.Second)
	if len(res.Stderr) != opts.Limits.MaxOutputBytes || len(res.Stdout) != opts.Limits.MaxOutputBytes {
		t.Errorf("both streams: %d and %d bytes kept", len(res.Stdout), len(res.Stderr))
	}
	if grown := residentBytes(t) - before; grown > 32<<20 {
		t.Errorf("the process grew by %d MiB while %d MiB went by", grown>>20, res.StdoutBytes>>20)
	}
}

func residentBytes(t *testing.T) int64 {
	runtime.GC()
	raw, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(raw))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// The last bytes before the end are never lost.
func TestLastBytesArrive(t *testing.T) {
	opts := harness.Options(t)
	opts.Pool = map[sandbox.Language]int{sandbox.Bash: 4}
	r := maintained(t, opts)
	calls := 1000
	if testing.Short() {
		calls = 50
	}
	want := strings.Repeat("x", 5000) + "END\n"
	each(t, 4, calls, func(ctx context.Context) error {
		res, err := r.Execute(ctx, harness.Bash(`printf 'x%.0s' $(seq 5000); echo END`))
		if err != nil {
			return err
		}
		if string(res.Stdout) != want {
			return errors.New("output lost: " + string(res.Stdout[max(0, len(res.Stdout)-20):]))
		}
		return nil
	})
}

// each calls do n times from some clients at once.
func each(t *testing.T, clients, n int, do func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	work := make(chan struct{}, n)
	for range n {
		work <- struct{}{}
	}
	close(work)
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for range work {
				if ctx.Err() != nil {
					return
				}
				if err := do(ctx); err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		t.Error(err)
	}
}
