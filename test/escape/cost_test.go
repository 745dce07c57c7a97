package escape

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"code-execution-sandbox/internal/runner"
	"code-execution-sandbox/internal/sandbox"
	"code-execution-sandbox/test/harness"
)

var cost = flag.Int("cost", 0, "measure what the protections cost, with so many calls each")

// TestCost prints what a protection costs: the time to prepare a sandbox and to
// run print(1) in it, and the memory that one holds whose program has just begun,
// all protections in place, as ratios to the same without one of them. All take
// turns, through the same wrapper of the runtime.
func TestCost(t *testing.T) {
	if *cost == 0 {
		t.Skip("only with -cost N")
	}
	type contender struct {
		name         string
		r            *runner.Runner
		opts         runner.Options
		mu           sync.Mutex
		prepare, run []time.Duration // guarded by mu
		memory       []int64         // bytes
	}
	var all []*contender
	for _, name := range []string{mutationNone, "no seccomp", "no user namespace", "no AppArmor"} {
		c := &contender{name: name}
		opts := harness.Options(t)
		if name == "no AppArmor" {
			if opts.AppArmorProfile == "" {
				continue // nothing to do without
			}
			opts.AppArmorProfile, name = "", mutationNone
		}
		opts.RuntimeBinary = wrapper(t, name, nil)
		opts.Stage = func(stage string, took time.Duration) {
			c.mu.Lock()
			defer c.mu.Unlock()
			switch stage {
			case runner.StagePrepare:
				c.prepare = append(c.prepare, took)
			case runner.StageRun:
				c.run = append(c.run, took)
			}
		}
		c.r, c.opts = harness.Runner(t, opts), opts
		all = append(all, c)
	}
	for range *cost {
		for _, c := range all {
			res := harness.Run(t, c.r, harness.Python("print(1)"))
			if res.Status != sandbox.StatusExited {
				t.Fatalf("%s: %+v", c.name, res)
			}
			c.memory = append(c.memory, held(t, c.r, c.opts))
		}
	}
	base := all[0]
	for _, c := range all[1:] {
		fmt.Printf("cost: with all protections against %-20s prepare %.2f, run %.2f times; memory %.2f times (%d KiB)\n", c.name+":",
			ratio(base.prepare, c.prepare), ratio(base.run, c.run), ratio(base.memory, c.memory), c.memory[len(c.memory)/2]>>10)
	}
}

// held is the memory, in bytes, that the cgroup of a sandbox is charged with while
// its program waits for a sleep.
func held(t *testing.T, r *runner.Runner, opts runner.Options) (bytes int64) {
	t.Helper()
	var running sync.WaitGroup
	running.Go(func() { harness.Run(t, r, harness.Python("import subprocess; subprocess.run([\"sleep\", \"0.3\"])")) })
	defer running.Wait()
	for deadline := time.Now().Add(harness.Slow(10 * time.Second)); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		asleep := harness.Asleep(t, opts)
		if len(asleep) == 0 {
			continue
		}
		file := "/sys/fs/cgroup/memory" + filepath.Join(opts.CgroupParent, asleep[0], "memory.usage_in_bytes")
		if opts.Cgroups.Version == 2 {
			file = "/sys/fs/cgroup" + filepath.Join(opts.CgroupParent, asleep[0], "memory.current")
		}
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if bytes, err = strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64); err != nil {
			t.Fatal(err)
		}
		return bytes
	}
	t.Fatal("the program does not begin")
	return 0
}

// ratio compares the middles of two series.
func ratio[N ~int64](a, b []N) float64 {
	slices.Sort(a)
	slices.Sort(b)
	return float64(a[len(a)/2]) / float64(b[len(b)/2])
}
