package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/mount"

	"code-execution-sandbox/image"
	"code-execution-sandbox/internal/runner"
	"code-execution-sandbox/internal/sandbox"
	"code-execution-sandbox/test/harness"
)

// BenchmarkImports times the first import of a library in a call against the
// same interpreter and library as a bare process on the host: in a root
// directory with the same tree, with the same environment.
//
//	go test -run '^$' -bench Imports -benchtime 20x ./test/image
func BenchmarkImports(b *testing.B) {
	opts := harness.Options(b)
	opts.Limits.Memory = 1 << 30
	r := harness.Runner(b, opts)
	img, err := image.Find(b.Context(), harness.Client(), harness.ImageName, "overlayfs")
	if err != nil {
		b.Fatal(err)
	}
	store := harness.Client().SnapshotService("overlayfs")
	mounts, err := store.View(b.Context(), "image-bench", img.ChainID)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = store.Remove(b.Context(), "image-bench") }()
	spec, err := runner.Spec(opts, sandbox.Python)
	if err != nil {
		b.Fatal(err)
	}
	err = mount.WithTempMount(b.Context(), mounts, func(root string) error {
		// A home to write to, as in a sandbox.
		if err := syscall.Mount("tmpfs", root+"/tmp", "tmpfs", 0, "mode=1777"); err != nil {
			return err
		}
		defer func() { _ = syscall.Unmount(root+"/tmp", syscall.MNT_DETACH) }()
		for _, module := range []string{"json", "numpy", "pandas", "matplotlib.pyplot", "scipy.stats", "sympy", "sklearn.ensemble"} {
			code := "import time; t = time.perf_counter(); import " + module + "; print(time.perf_counter() - t)"
			b.Run(module, func(b *testing.B) {
				var inside, bare []time.Duration
				for b.Loop() {
					res := harness.Run(b, r, harness.Python(code))
					inside = append(inside, parse(b, string(res.Stdout)))
					cmd := exec.CommandContext(b.Context(), "/usr/bin/python3", "-c", code)
					cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
					cmd.Dir, cmd.Env, cmd.Stderr = "/tmp", spec.Process.Env, os.Stderr
					out, err := cmd.Output()
					if err != nil {
						b.Fatal(err)
					}
					bare = append(bare, parse(b, string(out)))
				}
				slices.Sort(inside)
				slices.Sort(bare)
				in, out := inside[len(inside)/2], bare[len(bare)/2]
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(float64(in.Microseconds())/1000, "sandbox-ms")
				b.ReportMetric(float64(out.Microseconds())/1000, "bare-ms")
				b.ReportMetric(in.Seconds()/out.Seconds(), "ratio")
			})
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkPreload times a whole call that imports a library, in a prepared
// sandbox that has it imported already against one that has not, and tells what
// the sandbox holds beside: memory that no other shares.
//
//	go test -run '^$' -bench Preload -benchtime 20x ./test/image
func BenchmarkPreload(b *testing.B) {
	const own = "import re\nprint(sum(map(int, re.findall(r'Private_\\w+: +(\\d+)', open('/proc/self/smaps_rollup').read()))))\n"
	for _, module := range []string{"numpy", "pandas", "matplotlib.pyplot"} {
		var plain time.Duration
		var plainKB int
		for _, preload := range [][]string{nil, {module}} {
			b.Run(fmt.Sprintf("%s/preloaded=%t", module, preload != nil), func(b *testing.B) {
				opts := harness.Options(b)
				opts.Pool = map[sandbox.Language]int{sandbox.Python: 1}
				opts.Preload = preload
				r := harness.Runner(b, opts)
				maintain(b, r)
				var took []time.Duration
				for b.Loop() {
					awaitPrepared(b, r)
					start := time.Now()
					harness.Run(b, r, harness.Python("import "+module))
					took = append(took, time.Since(start))
				}
				awaitPrepared(b, r)
				kb, err := strconv.Atoi(strings.TrimSpace(string(harness.Run(b, r, harness.Python(own)).Stdout)))
				if err != nil {
					b.Fatal(err)
				}
				slices.Sort(took)
				p50 := took[len(took)/2]
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(float64(p50.Microseconds())/1000, "call-ms")
				if preload == nil {
					plain, plainKB = p50, kb
					return
				}
				b.ReportMetric(p50.Seconds()/plain.Seconds(), "ratio")
				b.ReportMetric(float64(kb-plainKB)/1024, "MB-more")
			})
		}
	}
}

// maintain has a runner keep its pool full until the benchmark ends.
func maintain(b *testing.B, r *runner.Runner) {
	b.Helper()
	ctx, stop := context.WithCancelCause(context.Background())
	done := make(chan struct{})
	go func() {
		r.Maintain(ctx)
		close(done)
	}()
	b.Cleanup(func() {
		stop(errors.New("the benchmark has ended"))
		<-done
	})
}

// awaitPrepared waits until the pool is full and nothing else goes on.
func awaitPrepared(b *testing.B, r *runner.Runner) {
	b.Helper()
	for r.Load().Prepared[sandbox.Python] == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(100 * time.Millisecond)
}

// parse reads what a program printed as seconds.
func parse(b *testing.B, seconds string) time.Duration {
	b.Helper()
	s, err := strconv.ParseFloat(strings.TrimSpace(seconds), 64)
	if err != nil {
		b.Fatal(err)
	}
	return time.Duration(s * float64(time.Second))
}
