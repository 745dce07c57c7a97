package integration

import (
	"errors"
	"strings"
	"testing"
	"time"

	"code-execution-sandbox/internal/sandbox"
	"code-execution-sandbox/test/harness"
)

// Modules are there before the program, of which it is told nothing else.
func TestPreload(t *testing.T) {
	const names = "print(dir())\n"
	var without string
	t.Run("without", func(t *testing.T) {
		without = string(harness.Run(t, harness.Runner(t, harness.Options(t)), harness.Python(names)).Stdout)
	})
	opts := harness.Options(t)
	opts.SelfTest = true
	opts.Preload = []string{"decimal", "xml.dom.minidom", "this"} // the last one prints a poem
	r := harness.Runner(t, opts)
	res := harness.Run(t, r, harness.Python(names+"import sys\nfor m in 'decimal', 'xml.dom.minidom', 'csv': print(m, m in sys.modules)\nprint(sys.argv, sys._xoptions.get('launcher'))"))
	check(t, res, exit(0))
	want := without + "decimal True\nxml.dom.minidom True\ncsv False\n['/tmp/main.py'] None\n"
	if got := string(res.Stdout); got != want || len(res.Stderr) > 0 {
		t.Errorf("stdout: %s, want %s\nstderr: %s", got, want, res.Stderr)
	}
	check(t, harness.Run(t, r, harness.Bash("exit 3")), exit(3))
}

// The collector leaves alone what the interpreter made for itself and its
// modules, which costs each call time at its end, and nothing of the program.
func TestCollectorSparesTheInterpreter(t *testing.T) {
	res := harness.Run(t, harness.Runner(t, harness.Options(t)), harness.Python(`import gc, weakref
class Ring: pass
ring = Ring(); ring.itself = ring
of = weakref.ref(ring); del ring; gc.collect()
print(gc.get_freeze_count() > 1000, len(gc.get_objects()) < 1000, gc.isenabled(), of())`))
	check(t, res, exit(0))
	if got, want := string(res.Stdout), "True True True None\n"; got != want || len(res.Stderr) > 0 {
		t.Errorf("stdout: %s, want %s\nstderr: %s", got, want, res.Stderr)
	}
}

// What a program finds of itself is what any script finds.
func TestProgramIsAnyScript(t *testing.T) {
	const code = `import sys, gc
m = sys.modules["__main__"]
print([(k, type(v).__name__) for k, v in vars(m).items()], vars(m) is globals(), __annotations__, __builtins__ is sys.modules["builtins"])
print(type(m), __spec__, __package__, __doc__, sys._getframe().f_back)
import __main__; print(__main__ is m, [o for o in gc.get_objects() if type(o) is type(sys) and o.__name__ == "__main__"] == [m])`
	r := harness.Runner(t, harness.Options(t))
	called := harness.Run(t, r, harness.Python(code))
	run := harness.Run(t, r, harness.Bash("cat >/tmp/main.py <<'END'\n"+code+"\nEND\npython3 -I -B -u /tmp/main.py"))
	check(t, called, exit(0))
	check(t, run, exit(0))
	if got, want := string(called.Stdout), string(run.Stdout); got != want || !strings.Contains(got, "True True\n") {
		t.Errorf("as a call: %s\nas a script: %s", got, want)
	}
}

// A module that cannot be imported is told of at once, by its name.
func TestPreloadUnknown(t *testing.T) {
	opts := harness.Options(t)
	opts.Preload = []string{"decimal", "nonesuch"}
	r := harness.Runner(t, opts)
	start := time.Now()
	_, err := r.Execute(t.Context(), harness.Python("print(1)"))
	if !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), "pool.preload: nonesuch: ModuleNotFoundError") {
		t.Errorf("error: %v", err)
	}
	if took := time.Since(start); took > opts.MaxWait/2 {
		t.Errorf("known after %v", took)
	}
}
