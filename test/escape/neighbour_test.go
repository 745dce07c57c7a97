package escape

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"code-execution-sandbox/internal/runner"
	"code-execution-sandbox/internal/sandbox"
	"code-execution-sandbox/test/harness"
)

// TestNeighbours calls a small program again and again while a hostile one is
// at full tilt beside it. No call may fail or hang; how much slower they are is
// printed, since it says as much of the machine as of the sandbox.
func TestNeighbours(t *testing.T) {
	opts := harness.Options(t)
	opts.Pool = map[sandbox.Language]int{sandbox.Python: 2}
	x := newExam(t, opts)
	ctx, stop := context.WithCancelCause(t.Context())
	maintained := make(chan struct{})
	go func() {
		defer close(maintained)
		x.r.(*runner.Runner).Maintain(ctx)
	}()
	defer func() {
		stop(errors.New("the test has ended"))
		<-maintained
	}()

	// beside returns the middle of the latencies of some calls.
	beside := func() time.Duration {
		var took []time.Duration
		for range 9 {
			start := time.Now()
			if got := x.python(172, "print(1)"); got != "1" {
				t.Errorf("a call beside: %q", got)
			}
			took = append(took, time.Since(start))
		}
		slices.Sort(took)
		if worst := took[len(took)-1]; worst > harness.Slow(10*time.Second) {
			t.Errorf("a call took %v", worst)
		}
		return took[len(took)/2]
	}
	quiet := beside()
	for _, hostile := range []struct{ name, code string }{
		{"processor", "for i in range(8): os.fork()\nwhile True: pass"},
		{"fork bomb", "while True:\n  try:\n    if os.fork() == 0: os.setsid()\n  except OSError: pass"},
		{"memory", "while True:\n  b = bytearray(HOST['memory'] * 3 // 4); del b"},
		{"out of memory", "while True:\n  child(lambda: bytearray(2 * HOST['memory']) and 0)"},
		{"files in /tmp", "while True:\n  for i in range(5000): open(f'/tmp/{i}', 'w').write('x' * 9000)\n  for i in range(5000): os.unlink(f'/tmp/{i}')"},
		{"pipes and descriptors", "while True:\n  kept = []\n  try:\n    while True: kept.append(os.pipe())\n  except OSError:\n    for p in kept: os.close(p[0]); os.close(p[1])"},
		{"shared memory", "while True:\n  b = bytes(HOST['shm'] // 2)\n  open('/dev/shm/a', 'wb').write(b); os.unlink('/dev/shm/a')"},
		{"watches and timers", "while True:\n  kept = []\n  try:\n    while True: libc.inotify_init1(0); kept.append(os.eventfd(0)); kept.append(select.epoll())\n  except OSError:\n    for k in kept: os.close(k) if isinstance(k, int) else k.close()"},
		{"files of the image", "while True:\n  for top, _, fs in os.walk('/usr'):\n    for f in fs: attempt(read, os.path.join(top, f))"},
		{"paths that do not exist", "n = 0\nwhile True: n += 1; attempt(os.stat, f'/usr/{n:0200d}')"},
		{"output", "while True: os.write(1, bytes(65536))"},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		var done sync.WaitGroup
		done.Go(func() {
			req := harness.Python(x.prelude() + hostile.code)
			req.Timeout = harness.Slow(50 * time.Second)
			if _, err := x.r.Execute(ctx, req); err != nil {
				t.Errorf("%s: %v", hostile.name, err)
			}
		})
		time.Sleep(harness.Slow(500 * time.Millisecond)) // it is at work, or will be during the calls
		loud := beside()
		cancel(errors.New("seen enough"))
		done.Wait()
		fmt.Printf("neighbour: %-24s %.1f times the latency (%v, alone %v)\n", hostile.name+":", float64(loud)/float64(quiet), loud.Round(time.Millisecond), quiet.Round(time.Millisecond))
	}
	for n, faults := range x.faults {
		t.Errorf("row %d: %q", n, faults)
	}
}
