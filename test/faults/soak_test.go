package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"code-execution-sandbox/internal/sandbox"
	"code-execution-sandbox/test/harness"
)

// mixed are the calls of the soak, each with what must come of it.
var mixed = []struct {
	name     string
	weight   int
	language sandbox.Language
	code     string
	stdin    string
	want     sandbox.Status
	exit     int
	stdout   string // its beginning
	bytes    int64  // of stdout
}{
	{"python", 30, sandbox.Python, "print(sum(range(1000)))", "", sandbox.StatusExited, 0, "499500\n", 7},
	{"bash", 24, sandbox.Bash, "echo $((6*7)); ls /tmp", "", sandbox.StatusExited, 0, "42\nmain.sh\n", 11},
	{"input", 10, sandbox.Python, "import sys; print(sys.stdin.read()[::-1])", "abc", sandbox.StatusExited, 0, "cba\n", 4},
	{"failure", 8, sandbox.Python, "raise SystemExit(7)", "", sandbox.StatusExited, 7, "", 0},
	{"crash", 6, sandbox.Python, "print('x', flush=True); import ctypes; ctypes.string_at(0)", "", sandbox.StatusSignaled, 139, "x\n", 2},
	{"kill", 4, sandbox.Bash, "echo x; kill -9 $$", "", sandbox.StatusSignaled, 137, "x\n", 2},
	{"background", 4, sandbox.Bash, "setsid sleep 100 & echo x", "", sandbox.StatusExited, 0, "x\n", 2},
	{"flood", 4, sandbox.Bash, "yes | head -c 8M", "", sandbox.StatusExited, 0, "y\ny\n", 8 << 20},
	{"memory", 3, sandbox.Python, "x = bytearray(1 << 30)", "", sandbox.StatusOutOfMemory, 137, "", 0},
	{"time limit", 3, sandbox.Bash, "echo x; sleep 60", "", sandbox.StatusTimedOut, 137, "x\n", 2},
	{"cancel", 4, sandbox.Bash, "sleep 60", "", sandbox.StatusCanceled, 137, "", 0},
}

// soakCalls is how many calls the soak makes; SOAK_CALLS overrides it.
func soakCalls(t *testing.T) int {
	t.Helper()
	n := 300
	if testing.Short() {
		n = 100
	}
	if v := os.Getenv("SOAK_CALLS"); v != "" {
		var err error
		if n, err = strconv.Atoi(v); err != nil || n < 100 {
			t.Fatalf("SOAK_CALLS=%s: want a number from 100 on", v)
		}
	}
	return n
}

// Many mixed calls from 4 clients: every answer is right, nothing is left, and
// the last call is served as the first.
func TestSoak(t *testing.T) {
	n := soakCalls(t)
	opts := harness.Options(t)
	opts.Pool = map[sandbox.Language]int{sandbox.Python: 4, sandbox.Bash: 2}
	r := maintained(t, opts)
	eventually(t, time.Minute, "the pool fills", func() bool {
		l := r.Load()
		return l.Prepared[sandbox.Python] == 4 && l.Prepared[sandbox.Bash] == 2
	})
	var deck []int
	for i, m := range mixed {
		for range m.weight {
			deck = append(deck, i)
		}
	}
	var (
		next    atomic.Int64
		mu      sync.Mutex
		took    = make([]time.Duration, n) // of "python", by number; 0 for others
		counts  = map[string]int{}
		memory  []int64
		daemons []int64
	)
	measure := func() {
		debug.FreeOSMemory()
		runtime.GC()
		memory = append(memory, resident(t, os.Getpid()))
		daemons = append(daemons, resident(t, harness.Daemon().PID()))
	}
	begin := time.Now()
	const parts = 10
	for part := range parts {
		var wg sync.WaitGroup
		end := int64(n * (part + 1) / parts)
		for range 4 {
			wg.Go(func() {
				for i := next.Add(1) - 1; i < end; i = next.Add(1) - 1 {
					m := mixed[deck[rand.IntN(len(deck))]]
					ctx, cancel := context.WithCancelCause(t.Context())
					req := sandbox.Request{ID: "soak", Language: m.language, Code: m.code, Stdin: []byte(m.stdin), Timeout: 30 * time.Second}
					switch m.name {
					case "time limit":
						req.Timeout = time.Second
					case "cancel":
						time.AfterFunc(time.Duration(rand.IntN(400))*time.Millisecond, func() { cancel(errors.New("gone")) })
					}
					start := time.Now()
					res, err := r.Execute(ctx, req)
					elapsed := time.Since(start)
					cause := context.Cause(ctx)
					cancel(nil)
					mu.Lock()
					counts[m.name]++
					if m.name == "python" {
						took[i] = elapsed
					}
					mu.Unlock()
					if m.name == "cancel" && err != nil && errors.Is(err, cause) && !errors.Is(err, sandbox.ErrUnavailable) {
						continue // before its program had started
					}
					a := answer{res, err}
					if err != nil || res.Status != m.want || res.ExitCode != m.exit || res.StdoutBytes != m.bytes || !strings.HasPrefix(string(res.Stdout), m.stdout) {
						t.Errorf("call %d, %s: %v", i, m.name, a)
					}
				}
			})
		}
		wg.Wait()
		next.Store(end)
		measure()
		if t.Failed() {
			break
		}
	}
	n = int(next.Load()) // fewer where one went wrong
	total := time.Since(begin)
	t.Logf("%d calls in %v, %.1f a second: %v", n, total.Round(time.Second), float64(n)/total.Seconds(), counts)
	first, last := median(took[:len(took)/parts]), median(took[n-len(took)/parts:n])
	t.Logf("latency of print, the last tenth against the first: %.2f (%v, %v)", float64(last)/float64(first), first, last)
	ratio := float64(memory[len(memory)-1]) / float64(memory[0])
	t.Logf("memory of this process, at the end against after a tenth: %.2f (%d MiB); of containerd: %.2f (%d MiB)", ratio, memory[len(memory)-1]>>20,
		float64(daemons[len(daemons)-1])/float64(daemons[0]), daemons[len(daemons)-1]>>20)
	if ratio > 1.5 {
		t.Error("memory grows:", fmt.Sprint(memory))
	}
}

func median(d []time.Duration) time.Duration {
	d = slices.DeleteFunc(slices.Clone(d), func(d time.Duration) bool { return d == 0 })
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[len(d)/2]
}
