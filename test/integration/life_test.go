package integration

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"code-execution-sandbox/image"
	"code-execution-sandbox/internal/runner"
	"code-execution-sandbox/internal/sandbox"
	"code-execution-sandbox/test/harness"
)

// maintained is a runner whose pool is kept full.
func maintained(t *testing.T, opts runner.Options) *runner.Runner {
	t.Helper()
	r := harness.Runner(t, opts)
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() { r.Maintain(ctx) })
	t.Cleanup(func() { // before the runner is closed
		cancel(errors.New("the test ended"))
		wg.Wait()
	})
	return r
}

// eventually waits for something that happens in the background.
func eventually(t *testing.T, what string, happened func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !happened(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never happened: " + what)
		}
	}
}

func TestSelfTest(t *testing.T) {
	opts := harness.Options(t)
	opts.SelfTest = true
	harness.Runner(t, opts) // fails unless the self-test passes

	t.Run("goes red without a user namespace range", func(t *testing.T) {
		// The program believes that ids are mapped, and finds that they are not.
		opts := harness.Options(t)
		r := harness.Runner(t, opts)
		code, err := runner.SelfTestCode(opts)
		if err != nil {
			t.Fatal(err)
		}
		if res := harness.Run(t, r, harness.Python(code)); string(res.Stdout) != runner.SelfTestProven+"\n" || res.ExitCode != 0 {
			t.Errorf("with everything in place: %s%s", res.Stdout, res.Stderr)
		}
		opts = harness.Options(t)
		opts.UIDBase = 0
		r = harness.Runner(t, opts)
		if res := harness.Run(t, r, harness.Python(code)); string(res.Stdout) != "user ids are not the host's\n"+runner.SelfTestProven+"\n" {
			t.Errorf("without a user namespace: %q", res.Stdout)
		}
	})
}

func TestPoolIsUsedOnceAndRefilled(t *testing.T) {
	opts := harness.Options(t)
	opts.Pool = map[sandbox.Language]int{sandbox.Python: 2, sandbox.Bash: 1}
	r := maintained(t, opts)
	full := func() bool {
		l := r.Load()
		return l.Prepared[sandbox.Python] == 2 && l.Prepared[sandbox.Bash] == 1
	}
	eventually(t, "the pool fills", full)
	for range 3 {
		res := harness.Run(t, r, harness.Python("import os\nprint(os.listdir('/tmp'))\nopen('/tmp/mark','w')"))
		check(t, res, exit(0))
		if string(res.Stdout) != "['main.py']\n" {
			t.Errorf("not a fresh sandbox: %s", res.Stdout)
		}
	}
	eventually(t, "the pool fills again", full)
}

func TestDeadMembersAreNotHandedOut(t *testing.T) {
	opts := harness.Options(t)
	opts.Pool = map[sandbox.Language]int{sandbox.Bash: 2}
	r := maintained(t, opts)
	eventually(t, "the pool fills", func() bool { return r.Load().Prepared[sandbox.Bash] == 2 })
	names, err := opts.Cgroups.Children(opts.CgroupParent)
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		if err := opts.Cgroups.Group(opts.CgroupParent + "/" + name).Kill(); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		eventually(t, "they are dead", func() bool {
			pids, err := opts.Cgroups.Group(opts.CgroupParent + "/" + name).Processes()
			return err == nil && len(pids) == 0
		})
	}
	check(t, harness.Run(t, r, harness.Bash("echo ok")), exit(0))
}

func TestCancel(t *testing.T) {
	opts := harness.Options(t)
	r := harness.Runner(t, opts)
	ctx, cancel := context.WithCancelCause(t.Context())
	req := harness.Bash("echo before; sleep 60")
	req.Timeout = 60 * time.Second
	var res *sandbox.Result
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		res, err = r.Execute(ctx, req)
	}()
	eventually(t, "the program runs", func() bool { return len(harness.Asleep(t, opts)) == 1 })
	cancel(errors.New("the client went away"))
	<-done
	if err != nil {
		t.Fatal(err)
	}
	check(t, res, killedAt(sandbox.StatusCanceled))
	if string(res.Stdout) != "before\n" {
		t.Errorf("stdout %q", res.Stdout)
	}
}

// A cancellation at any moment leaves nothing; the check is in Runner.
func TestCancelAtAnyMoment(t *testing.T) {
	r := harness.Runner(t, harness.Options(t))
	for delay := time.Duration(0); delay < 150*time.Millisecond; delay += 5 * time.Millisecond {
		ctx, cancel := context.WithTimeoutCause(t.Context(), delay, errors.New("gone"))
		res, err := r.Execute(ctx, harness.Bash("sleep 60"))
		cancel()
		if err == nil && res.Status != sandbox.StatusCanceled {
			t.Errorf("after %v: %s", delay, res.Status)
		}
		for _, kind := range []error{sandbox.ErrInternal, sandbox.ErrUnavailable, sandbox.ErrBusy} {
			if errors.Is(err, kind) {
				t.Errorf("after %v: the caller's leaving became %v", delay, err)
			}
		}
	}
}

func TestQueue(t *testing.T) {
	opts := harness.Options(t)
	opts.Slots, opts.MaxWaiting, opts.MaxWait = 1, 1, 500*time.Millisecond
	r := harness.Runner(t, opts)
	started := make(chan struct{})
	long := harness.Bash("sleep 2")
	long.Started = func() { close(started) }
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = r.Execute(t.Context(), long) })
	<-started
	results := make(chan error, 2)
	for range 2 {
		wg.Go(func() {
			_, err := r.Execute(t.Context(), harness.Bash("echo"))
			results <- err
		})
	}
	for range 2 {
		var busy *sandbox.BusyError
		if err := <-results; !errors.As(err, &busy) || busy.Running != 1 {
			t.Errorf("with a full queue: %v", err)
		}
	}
	wg.Wait()
	if res := harness.Run(t, r, harness.Bash("echo ok")); string(res.Stdout) != "ok\n" {
		t.Errorf("afterwards: %q", res.Stdout)
	}
}

// Two calls at once see nothing of each other.
func TestNeighbours(t *testing.T) {
	r := harness.Runner(t, harness.Options(t))
	var wg sync.WaitGroup
	maps := make(chan string, 4)
	for range 4 {
		wg.Go(func() {
			res, err := r.Execute(t.Context(), harness.Bash(`sleep 0.5; cat /proc/self/uid_map; ls /proc | grep -c '^[0-9]'; ls /tmp`))
			if err != nil {
				t.Error(err)
				return
			}
			maps <- string(res.Stdout)
		})
	}
	wg.Wait()
	close(maps)
	seen := map[string]bool{}
	for m := range maps {
		if seen[m] {
			t.Errorf("two sandboxes at once with the same ids: %s", m)
		}
		seen[m] = true
	}
}

func TestCallsAfterClose(t *testing.T) {
	opts := harness.Options(t)
	r := harness.Runner(t, opts)
	check(t, harness.Run(t, r, harness.Bash("true")), exit(0))
	parent := opts.Cgroups.Group(opts.CgroupParent)
	if !parent.Exists() {
		t.Fatal("the sandbox had no cgroup below the parent")
	}
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if parent.Exists() {
		t.Error("the parent cgroup is left")
	}
	_, err := r.Execute(t.Context(), harness.Bash("echo"))
	var notReady *sandbox.NotReadyError
	if !errors.As(err, &notReady) || notReady.Check != "shutdown" {
		t.Error(err)
	}
}

// An image is verified while a server sweeps, as it does at every upgrade.
func TestImportBesideSweep(t *testing.T) {
	opts := harness.Options(t)
	r := harness.Runner(t, opts)
	images := opts.Client.ImageService()
	ctx, cancel := context.WithCancelCause(t.Context())
	var sweeping sync.WaitGroup
	sweeping.Go(func() {
		for ctx.Err() == nil {
			if swept, err := r.Sweep(ctx); ctx.Err() == nil && (err != nil || swept.Any()) {
				t.Errorf("swept %+v, %v", swept, err)
			}
		}
	})
	defer sweeping.Wait()
	defer cancel(errors.New("the test ends"))
	for range 3 {
		record, err := images.Get(t.Context(), harness.ImageName)
		if err != nil {
			t.Fatal(err)
		}
		record.Labels["code-execution-sandbox/image.verified"] = ""
		if _, err := images.Update(t.Context(), record, "labels"); err != nil {
			t.Fatal(err)
		}
		_, outcome, err := image.Import(t.Context(), opts.Client, image.Options{Name: harness.ImageName}, image.Docker(""))
		if err != nil || outcome != image.Repaired {
			t.Fatalf("%s: %v", outcome, err)
		}
	}
}
