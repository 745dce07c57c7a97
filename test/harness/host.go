package harness

import (
	"cmp"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"code-execution-sandbox/internal/protection"
	"code-execution-sandbox/internal/runner"
)

// Variables that say where the tests run.
const (
	// EnvSlow is by how much the machine is slower than those on which the
	// bounds of time were set, such as 15 where its processors are emulated.
	EnvSlow = "CES_SLOW"
	// EnvRuntime is containerd.runtime of the configuration: another shim.
	EnvRuntime = "CES_RUNTIME"
	// EnvRuntimeBinary is containerd.runtime_binary: another runtime.
	EnvRuntimeBinary = "CES_RUNTIME_BINARY"
)

// Slow is a bound of time on this machine.
func Slow(d time.Duration) time.Duration {
	if factor, err := strconv.ParseFloat(os.Getenv(EnvSlow), 64); err == nil && factor > 1 {
		return time.Duration(float64(d) * factor)
	}
	return d
}

// suit makes the options those of this host: its runtime, its speed, and the
// profile of the sandboxes where it has AppArmor.
func suit(t testing.TB, opts *runner.Options) {
	t.Helper()
	opts.Runtime = cmp.Or(os.Getenv(EnvRuntime), "io.containerd.runc.v2")
	opts.RuntimeBinary = os.Getenv(EnvRuntimeBinary)
	opts.Arch = runtime.GOARCH
	opts.PrepareTimeout = Slow(30 * time.Second)
	opts.Limits.DefaultTimeout = Slow(opts.Limits.DefaultTimeout)
	opts.Limits.MaxTimeout = Slow(opts.Limits.MaxTimeout)
	if host := (protection.Host{}); host.HasAppArmor() && !runner.SecondKernel(opts.Runtime) {
		const profile = "code-execution-sandbox"
		if lack := host.CheckAppArmor(profile); lack != nil {
			t.Fatal(lack)
		}
		opts.AppArmorProfile = profile
	}
}
