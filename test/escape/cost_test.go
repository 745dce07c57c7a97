package escape

import (
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"code-execution-sandbox/internal/runner"
	"code-execution-sandbox/internal/sandbox"
	"code-execution-sandbox/test/harness"
)

var cost = flag.Int("cost", 0, "measure what the protections cost, with so many calls each")

// TestCost prints what a protection costs: the time to prepare a sandbox and to
// run print(1) in it, all protections in place, as
// ratios to the same without one of them. All take turns, through the same
// wrapper of the runtime.
func TestCost(t *testing.T) {
	if *cost == 0 {
		t.Skip("only with -cost N")
	}
	type contender struct {
		name         string
		r            *runner.Runner
		mu           sync.Mutex
		prepare, run []time.Duration // guarded by mu
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
		c.r = harness.Runner(t, opts)
		all = append(all, c)
	}
	for range *cost {
		for _, c := range all {
			res := harness.Run(t, c.r, harness.Python("print(1)"))
			if res.Status != sandbox.StatusExited {
				t.Fatalf("%s: %+v", c.name, res)
			}
		}
	}
	base := all[0]
	for _, c := range all[1:] {
		fmt.Printf("cost: with all protections against %-20s prepare %.2f, run %.2f times\n", c.name+":",
			ratio(base.prepare, c.prepare), ratio(base.run, c.run))
	}
}

// ratio compares the middles of two series.
func ratio(a, b []time.Duration) float64 {
	slices.Sort(a)
	slices.Sort(b)
	return float64(a[len(a)/2]) / float64(b[len(b)/2])
}
