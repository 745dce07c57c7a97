package faults

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"code-execution-sandbox/internal/daemon"
	"code-execution-sandbox/internal/sandbox"
)

// A program outlives a containerd that ends and comes back, and its answer is
// as if nothing had been.
func TestF1ContainerdRestartsDuringACall(t *testing.T) {
	for name, sig := range map[string]syscall.Signal{"SIGTERM": syscall.SIGTERM, "SIGKILL": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts, d := own(t, daemon.Options{})
			r := maintained(t, opts)
			req := bash("sleep 3; cat; echo out; exit 3", 20*time.Second)
			req.Stdin = []byte("in\n")
			call := start(t, r, opts, req)
			signal(t, sig, d.PID())
			a := <-call
			a.is(t, sandbox.StatusExited, "in\nout\n")
			if a.err == nil && a.res.ExitCode != 3 {
				t.Error(a)
			}
			serves(t, r)
		})
	}
}

// A call that has its sandbox needs no containerd: it is answered as ever, its
// input ended, with containerd stopped from before its delivery on. Where the
// shim relays the streams, containerd has to pass the end of the input on: it
// then is late, never lost.
func TestF1ContainerdIsAwayDuringACall(t *testing.T) {
	t.Parallel()
	for name, relay := range map[string]bool{"direct": false, "relayed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts, d := own(t, daemon.Options{})
			opts.Relay = relay
			opts.Pool = map[sandbox.Language]int{sandbox.Bash: 1}
			r := maintained(t, opts)
			full := func() bool { return r.Load().Prepared[sandbox.Bash] == 1 }
			eventually(t, 30*time.Second, "the pool fills", full)
			signal(t, syscall.SIGSTOP, d.PID())
			call := make(chan answer, 1)
			req := bash("cat; echo end", 30*time.Second)
			req.Stdin = []byte("in\n")
			go func() { call <- execute(t, r, req) }()
			if relay {
				time.Sleep(time.Second)
				signal(t, syscall.SIGKILL, d.PID())
			}
			(<-call).is(t, sandbox.StatusExited, "in\nend\n")
			if !relay {
				signal(t, syscall.SIGKILL, d.PID())
			}
			serves(t, r)

			eventually(t, 30*time.Second, "the pool fills", full)
			pid := d.PID()
			signal(t, syscall.SIGSTOP, pid)
			within(t, 10*time.Second, func() {
				a := execute(t, r, bash("cat; echo end", 2*time.Second))
				if relay {
					// The limit passes because of us: that is no time-out.
					a.unavailable(t, "")
				} else {
					a.is(t, sandbox.StatusExited, "end\n")
				}
			})
			signal(t, syscall.SIGCONT, pid)
			serves(t, r)
		})
	}
}

// containerd dies at random moments of preparations: no shim is left that
// nobody knows.
func TestF2ContainerdDiesWhileItCreates(t *testing.T) {
	t.Parallel()
	opts, d := own(t, daemon.Options{})
	r := maintained(t, opts)
	for range 5 {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				a := execute(t, r, bash("echo ok", 10*time.Second))
				if a.err == nil {
					a.is(t, sandbox.StatusExited, "ok\n")
					return
				}
				a.unavailable(t, "")
			})
		}
		time.Sleep(time.Duration(rand.IntN(150)) * time.Millisecond)
		signal(t, syscall.SIGKILL, d.PID())
		within(t, 40*time.Second, wg.Wait)
		serves(t, r)
	}
	clean(t, opts)
}

// The program ends while containerd cannot see it, which then dies.
func TestF3ContainerdIsAwayAtTheEnd(t *testing.T) {
	t.Parallel()
	opts, d := own(t, daemon.Options{})
	r := maintained(t, opts)
	call := start(t, r, opts, bash("sleep 2; echo out", 20*time.Second))
	pid := d.PID()
	signal(t, syscall.SIGSTOP, pid)
	// The answer needs no containerd.
	within(t, 10*time.Second, func() { (<-call).is(t, sandbox.StatusExited, "out\n") })
	time.Sleep(3 * time.Second) // the removal has begun, and waits
	signal(t, syscall.SIGKILL, pid)
	serves(t, r)
	clean(t, opts)
}

// A containerd that answers nobody: running calls get their answer, new ones
// an error, soon and not at the end of a long wait.
func TestF6ContainerdIsStopped(t *testing.T) {
	t.Parallel()
	opts, d := own(t, daemon.Options{})
	r := maintained(t, opts)
	long := start(t, r, opts, bash("sleep 60", 5*time.Second))
	pid := d.PID()
	signal(t, syscall.SIGSTOP, pid)
	within(t, 15*time.Second, func() {
		execute(t, r, bash("echo", time.Second)).unavailable(t, "containerd")
	})
	within(t, 10*time.Second, func() { (<-long).is(t, sandbox.StatusTimedOut, "") })
	var notReady *sandbox.NotReadyError
	if err := r.Health(t.Context()); !errors.As(err, &notReady) || notReady.Check != "containerd" {
		t.Error("health:", err)
	}
	// By now it is known: no new call waits for it.
	begin := time.Now()
	for range 20 {
		execute(t, r, bash("echo", time.Second)).unavailable(t, "containerd")
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("20 calls waited %v for a containerd that is known to be away", took)
	}
	eventually(t, 90*time.Second, "what could not be removed is told of", func() bool { return r.Load().Quarantined > 0 })
	signal(t, syscall.SIGCONT, pid)
	serves(t, r)
	clean(t, opts)
	eventually(t, 60*time.Second, "the rooms are free again", func() bool { return r.Load().Quarantined == 0 })
}

// A runner is closed while containerd answers nobody: it does not wait longer
// than it was told to, and the next one finds what it left.
func TestF16CloseIsBounded(t *testing.T) {
	t.Parallel()
	opts, d := own(t, daemon.Options{})
	opts.Pool = map[sandbox.Language]int{sandbox.Bash: 2}
	k := newMaintained(t, opts)
	eventually(t, 30*time.Second, "the pool fills", func() bool { return k.Load().Prepared[sandbox.Bash] == 2 })
	pid := d.PID()
	signal(t, syscall.SIGSTOP, pid)
	within(t, 15*time.Second, func() {
		k.stop()
		ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Second, errors.New("closing took too long"))
		defer cancel()
		if err := k.Close(ctx); err == nil {
			t.Error("nothing is said of what is left")
		}
	})
	signal(t, syscall.SIGCONT, pid)
	serves(t, maintained(t, opts))
	// The removals of the one that was closed go on, in this process, beside
	// the sweep of the next: whoever comes second, in the end nothing is left.
	eventually(t, 90*time.Second, "the first one's directory is gone", func() bool {
		entries, err := os.ReadDir(opts.RunDir)
		return err == nil && len(entries) == 2 // the other's, and its lock
	})
}

// Calls come while containerd is away: all fail soon, and soon after it is back
// all are served.
func TestF31NoThunderingHerd(t *testing.T) {
	t.Parallel()
	opts, d := own(t, daemon.Options{})
	opts.Pool = map[sandbox.Language]int{sandbox.Python: 2, sandbox.Bash: 2}
	r := maintained(t, opts)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				a := execute(t, r, bash("echo ok", 10*time.Second))
				switch {
				case a.err == nil:
					a.is(t, sandbox.StatusExited, "ok\n")
				case errors.Is(a.err, sandbox.ErrBusy):
				default:
					a.unavailable(t, "")
					time.Sleep(50 * time.Millisecond)
				}
			}
		})
	}
	for range 4 {
		time.Sleep(time.Second)
		signal(t, syscall.SIGKILL, d.PID())
		eventually(t, 20*time.Second, "containerd is back", func() bool { return d.PID() != 0 })
	}
	time.Sleep(3 * time.Second)
	close(stop)
	within(t, time.Minute, wg.Wait)
	serves(t, r)
}

// A restarted containerd has to prove itself again.
func TestF33ProofAfterARestart(t *testing.T) {
	t.Parallel()
	opts, d := own(t, daemon.Options{})
	var runtime = runtimeOf(t, &opts)
	opts.SelfTest = true
	r := maintained(t, opts)
	serves(t, r)
	// The new daemon comes with a runtime that does not work.
	runtime.becomes(t, "exit 1")
	signal(t, syscall.SIGKILL, d.PID())
	var notReady *sandbox.NotReadyError
	eventually(t, 30*time.Second, "the proof fails", func() bool {
		return errors.As(r.Health(t.Context()), &notReady) && notReady.Check == "selftest"
	})
	runtime.becomes(t, "")
	eventually(t, 60*time.Second, "the proof holds again", func() bool { return r.Health(t.Context()) == nil })
	serves(t, r)
}
