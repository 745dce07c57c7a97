package faults

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"code-execution-sandbox/internal/daemon"
	"code-execution-sandbox/internal/sandbox"
	"code-execution-sandbox/test/harness"
)

func TestF5ShimDies(t *testing.T) {
	opts := harness.Options(t)
	t.Run("during a call", func(t *testing.T) {
		r := maintained(t, opts)
		call := start(t, r, opts, bash("sleep 60", 30*time.Second))
		signal(t, syscall.SIGKILL, shims(t, opts)...)
		within(t, 15*time.Second, func() { (<-call).unavailable(t, "") })
		serves(t, r)
		clean(t, opts)
	})
	t.Run("before a call", func(t *testing.T) {
		opts := harness.Options(t)
		opts.Pool = map[sandbox.Language]int{sandbox.Bash: 2}
		r := maintained(t, opts)
		eventually(t, 30*time.Second, "the pool fills", func() bool { return r.Load().Prepared[sandbox.Bash] == 2 })
		signal(t, syscall.SIGKILL, shims(t, opts)...)
		// At once: the news has not come round.
		within(t, 20*time.Second, func() { execute(t, r, bash("echo ok", 5*time.Second)).is(t, sandbox.StatusExited, "ok\n") })
	})
	t.Run("while the sandbox is removed", func(t *testing.T) {
		opts := harness.Options(t)
		r := maintained(t, opts)
		for i := range 40 {
			execute(t, r, bash("echo ok", 5*time.Second)).is(t, sandbox.StatusExited, "ok\n")
			time.Sleep(time.Duration(i) * 2 * time.Millisecond)
			signal(t, syscall.SIGKILL, shims(t, opts)...)
		}
		clean(t, opts)
	})
}

func TestF6ShimIsStopped(t *testing.T) {
	t.Run("during a call", func(t *testing.T) {
		opts := harness.Options(t)
		r := maintained(t, opts)
		// Neither the end of a call nor its limit needs the shim.
		calls := []<-chan answer{start(t, r, opts, bash("sleep 60", 5*time.Second)), start(t, r, opts, bash("sleep 3; echo ok", 10*time.Second))}
		signal(t, syscall.SIGSTOP, shims(t, opts)...)
		within(t, 15*time.Second, func() {
			(<-calls[0]).is(t, sandbox.StatusTimedOut, "")
			(<-calls[1]).is(t, sandbox.StatusExited, "ok\n")
		})
		serves(t, r)
		clean(t, opts) // the shims, too
	})
	t.Run("during a call whose streams it relays", func(t *testing.T) {
		opts := harness.Options(t)
		opts.Relay = true
		r := maintained(t, opts)
		// It may have ended long ago or not: nobody can tell, so no status.
		call := start(t, r, opts, bash("sleep 60", 3*time.Second))
		signal(t, syscall.SIGSTOP, shims(t, opts)...)
		within(t, 15*time.Second, func() { (<-call).unavailable(t, "") })
		serves(t, r)
		clean(t, opts)
	})
	t.Run("for a moment", func(t *testing.T) {
		opts := harness.Options(t)
		opts.Relay = true
		r := maintained(t, opts)
		call := start(t, r, opts, bash("sleep 2; echo ok", 20*time.Second))
		pids := shims(t, opts)
		signal(t, syscall.SIGSTOP, pids...)
		time.Sleep(4 * time.Second)
		signal(t, syscall.SIGCONT, pids...)
		within(t, 10*time.Second, func() { (<-call).is(t, sandbox.StatusExited, "ok\n") })
	})
	t.Run("before a call", func(t *testing.T) {
		opts := harness.Options(t)
		opts.Pool = map[sandbox.Language]int{sandbox.Bash: 2}
		r := maintained(t, opts)
		eventually(t, 30*time.Second, "the pool fills", func() bool { return r.Load().Prepared[sandbox.Bash] == 2 })
		signal(t, syscall.SIGSTOP, shims(t, opts)...)
		within(t, 20*time.Second, func() { execute(t, r, bash("echo ok", 5*time.Second)).is(t, sandbox.StatusExited, "ok\n") })
		clean2 := func() bool { return r.Load().Quarantined == 0 && r.Load().Prepared[sandbox.Bash] == 2 }
		eventually(t, 90*time.Second, "the pool fills again", clean2)
	})
	t.Run("after a call, and containerd restarts", func(t *testing.T) {
		opts, d := own(t, daemon.Options{})
		r := maintained(t, opts)
		call := start(t, r, opts, bash("sleep 60", 2*time.Second))
		signal(t, syscall.SIGSTOP, shims(t, opts)...)
		within(t, 15*time.Second, func() { (<-call).is(t, sandbox.StatusTimedOut, "") })
		signal(t, syscall.SIGKILL, d.PID())
		serves(t, r)
		clean(t, opts)
	})
}

// The launcher of a prepared sandbox is killed about when a program is given to
// it. Whatever it has not read has not run, and goes into another sandbox; a
// program that may have run is not run again.
func TestF5LauncherDiesAtDelivery(t *testing.T) {
	opts := harness.Options(t)
	opts.Pool = map[sandbox.Language]int{sandbox.Bash: 1}
	r := maintained(t, opts)
	const rounds = 40
	served := 0
	for range rounds {
		eventually(t, 60*time.Second, "a sandbox is prepared and no other there", func() bool {
			return r.Load().Prepared[sandbox.Bash] == 1 && len(sandboxes(t, opts)) == 1
		})
		pids, err := opts.Cgroups.Group(filepath.Join(opts.CgroupParent, sandboxes(t, opts)[0])).Processes()
		if err != nil || len(pids) == 0 {
			t.Fatal(pids, err)
		}
		var killer sync.WaitGroup
		delay := time.Duration(rand.IntN(1500)) * time.Microsecond
		killer.Go(func() {
			time.Sleep(delay)
			_ = syscall.Kill(slices.Min(pids), syscall.SIGKILL) // the launcher came first
		})
		a := execute(t, r, bash("echo ok", 10*time.Second))
		killer.Wait()
		if a.err != nil {
			a.unavailable(t, "")
			continue
		}
		a.is(t, sandbox.StatusExited, "ok\n")
		served++
	}
	t.Logf("of %d calls %d were served", rounds, served)
	if served == 0 {
		t.Error("none was served")
	}
}

// The launcher of a prepared sandbox is dead or stopped.
func TestF5LauncherDiesOrStops(t *testing.T) {
	for name, sig := range map[string]syscall.Signal{"dies": syscall.SIGKILL, "stops": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			opts := harness.Options(t)
			opts.Pool = map[sandbox.Language]int{sandbox.Python: 2}
			r := maintained(t, opts)
			eventually(t, 30*time.Second, "the pool fills", func() bool { return r.Load().Prepared[sandbox.Python] == 2 })
			for _, id := range sandboxes(t, opts) {
				pids, err := opts.Cgroups.Group(filepath.Join(opts.CgroupParent, id)).Processes()
				if err != nil || len(pids) == 0 {
					t.Fatal(pids, err)
				}
				signal(t, sig, pids...)
			}
			within(t, 20*time.Second, func() { execute(t, r, harness.Python("print(1)")).is(t, sandbox.StatusExited, "1\n") })
		})
	}
}

// The interpreter of a prepared sandbox dies, its launcher does not: no program
// may be told that it ended so.
func TestF5InterpreterDies(t *testing.T) {
	opts := harness.Options(t)
	opts.Pool = map[sandbox.Language]int{sandbox.Python: 2, sandbox.Bash: 1}
	r := maintained(t, opts)
	full := func() bool {
		return r.Load().Prepared[sandbox.Python] == 2 && r.Load().Prepared[sandbox.Bash] == 1
	}
	eventually(t, 30*time.Second, "the pool fills", full)
	for _, id := range sandboxes(t, opts) {
		pids, err := opts.Cgroups.Group(filepath.Join(opts.CgroupParent, id)).Processes()
		if err != nil || len(pids) < 2 {
			t.Fatal(pids, err)
		}
		signal(t, syscall.SIGKILL, slices.Max(pids)) // the launcher came first
	}
	within(t, 20*time.Second, func() {
		execute(t, r, harness.Python("print(1)")).is(t, sandbox.StatusExited, "1\n")
		execute(t, r, bash("echo ok", 10*time.Second)).is(t, sandbox.StatusExited, "ok\n")
	})
	eventually(t, 60*time.Second, "the pool fills again", full)
}

// Somebody outside holds a stream open: the end of the task is the end.
func TestF22StreamHeldFromOutside(t *testing.T) {
	opts := harness.Options(t)
	r := maintained(t, opts)
	call := start(t, r, opts, bash("echo ok; sleep 2", 20*time.Second))
	ids := sandboxes(t, opts)
	if len(ids) != 1 {
		t.Fatal(ids)
	}
	pids, err := opts.Cgroups.Group(filepath.Join(opts.CgroupParent, ids[0])).Processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, stream := range []string{"1", "2"} {
		// Not the launcher, which is the first.
		f, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/%s", slices.Max(pids), stream), os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
	}
	within(t, 10*time.Second, func() { (<-call).is(t, sandbox.StatusExited, "ok\n") })
}
