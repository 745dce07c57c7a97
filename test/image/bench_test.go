package image

import (
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

// parse reads what a program printed as seconds.
func parse(b *testing.B, seconds string) time.Duration {
	b.Helper()
	s, err := strconv.ParseFloat(strings.TrimSpace(seconds), 64)
	if err != nil {
		b.Fatal(err)
	}
	return time.Duration(s * float64(time.Second))
}
