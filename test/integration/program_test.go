package integration

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"code-execution-sandbox/internal/runner"
	"code-execution-sandbox/internal/sandbox"
	"code-execution-sandbox/test/harness"
)

// ended is how a run must end.
type ended struct {
	status sandbox.Status
	code   int
	signal int
}

func exit(code int) ended             { return ended{sandbox.StatusExited, code, 0} }
func signaled(sig int) ended          { return ended{sandbox.StatusSignaled, 128 + sig, sig} }
func killedAt(s sandbox.Status) ended { return ended{s, 137, 9} }

func check(t *testing.T, res *sandbox.Result, want ended) {
	t.Helper()
	if got := (ended{res.Status, res.ExitCode, res.Signal}); got != want {
		t.Errorf("ended %+v, want %+v\nstdout: %s\nstderr: %s", got, want, res.Stdout, res.Stderr)
	}
}

// bothWays runs a test with a program's streams straight from the launcher, and
// with the shim between.
func bothWays(t *testing.T, test func(t *testing.T, opts runner.Options)) {
	for name, relay := range map[string]bool{"direct": false, "relayed": true} {
		t.Run(name, func(t *testing.T) {
			opts := harness.Options(t)
			opts.Relay = relay
			test(t, opts)
		})
	}
}

// What a program prints and how it ends, word for word.
func TestPrograms(t *testing.T) { bothWays(t, testPrograms) }

func testPrograms(t *testing.T, opts runner.Options) {
	r := harness.Runner(t, opts)
	python, bash := sandbox.Python, sandbox.Bash
	for _, c := range []struct {
		name           string
		language       sandbox.Language
		code, stdin    string
		want           ended
		stdout, stderr string
	}{
		{"print", python, `print(6*7)`, "", exit(0), "42\n", ""},
		{"echo", bash, `echo hi; echo there >&2`, "", exit(0), "hi\n", "there\n"},
		{"exit code", bash, `exit 3`, "", exit(3), "", ""},
		{"exit code of python", python, `raise SystemExit(255)`, "", exit(255), "", ""},
		{"exit code wraps", bash, `exit 256`, "", exit(0), "", ""},
		{"a death by SIGTERM", bash, `kill -TERM $$`, "", signaled(15), "", ""},
		{"an exit code that looks like one", bash, `exit 143`, "", exit(143), "", ""},
		{"an exit code that looks like our kill", python, `raise SystemExit(137)`, "", exit(137), "", ""},
		{"kill -9 itself", bash, `kill -9 $$`, "", signaled(9), "", ""},
		{"kill everything else", bash, `exec 2>/dev/null; sleep 60 & kill -9 -1; wait $!; echo $?`, "", exit(0), "137\n", ""},
		{"abort", python, `import os; os.abort()`, "", signaled(6), "", ""},
		{"segmentation fault", python, `import ctypes; ctypes.string_at(0)`, "", signaled(11), "", ""},
		{"alarm", python, "import signal, time\nsignal.alarm(1)\ntime.sleep(5)", "", signaled(14), "", ""},
		{"broken pipe is fatal", bash, `yes | head -1; echo ${PIPESTATUS[0]}`, "", exit(0), "y\n141\n", ""},
		{"the init cannot be killed", bash, `for s in $(seq 1 31); do kill -$s 1; done; echo alive`, "", exit(0), "alive\n", ""},
		{"set -e", bash, "set -e\nfalse\necho no", "", exit(1), "", ""},
		{"trap", bash, `trap 'echo bye' EXIT; exit 7`, "", exit(7), "bye\n", ""},
		{"line number", bash, "\n\necho $LINENO $0 $#", "", exit(0), "3 /tmp/main.sh 0\n", ""},
		{"a shell that has just started", bash, "echo $_ ${BASH_ENV-unset} ${REPLY-unset} $SHLVL $-\nbash -c 'echo ${BASH_ENV-unset} $SHLVL'; ls /proc/$$/fd", "", exit(0), "bash unset unset 1 hB\nunset 2\n0\n1\n2\n255\n", ""},
		{"unset variable", bash, "set -u\necho $nope", "", exit(1), "", "/tmp/main.sh: line 2: nope: unbound variable\n"},
		{"no final newline", bash, `echo a`, "", exit(0), "a\n", ""},

		{"traceback", python, "def f():\n    return 1/0\nf()\n", "", exit(1), "", `Traceback (most recent call last):
  File "/tmp/main.py", line 3, in <module>
    f()
    ~^^
  File "/tmp/main.py", line 2, in f
    return 1/0
           ~^~
ZeroDivisionError: division by zero
`},
		{"syntax error", python, "print(1\n", "", exit(1), "", `  File "/tmp/main.py", line 1
    print(1
         ^
SyntaxError: '(' was never closed
`},
		{"no frame below the program", python, "import sys, traceback\nprint(sys._getframe().f_back)\ntraceback.print_stack(file=sys.stdout)", "", exit(0),
			"None\n  File \"/tmp/main.py\", line 3, in <module>\n    traceback.print_stack(file=sys.stdout)\n", ""},
		{"the main script", python, "import sys\nprint(__name__, sys.argv, __file__, 'launcher' in sys._xoptions)", "", exit(0), "__main__ ['/tmp/main.py'] /tmp/main.py False\n", ""},
		{"processors", python, "import os\nprint(os.cpu_count(), os.process_cpu_count())", "", exit(0), "1 1\n", ""},
		{"source", python, "import inspect\ndef f(): pass\nprint(inspect.getsource(f))", "", exit(0), "def f(): pass\n\n", ""},
		{"pickle", python, "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))).__name__)", "", exit(0), "A\n", ""},
		{"working directory", bash, `pwd; echo ~; id -un`, "", exit(0), "/tmp\n/tmp\nsandbox\n", ""},
		{"open files", python, "import os\nprint(sorted(int(f) for f in os.listdir('/proc/self/fd'))[:-1])", "", exit(0), "[0, 1, 2]\n", ""},
		{"processes", bash, `cd /proc; set -- [0-9]*; echo $# $1`, "", exit(0), "2 1\n", ""},
		{"a module of its own", python, "open('helper.py','w').write('x=5')\nimport helper\nprint(helper.x)", "", exit(0), "5\n", ""},
		{"no shadowing of the library", python, "open('json.py','w').write('raise SystemExit(9)')\nimport json\nprint(json.dumps(1))", "", exit(0), "1\n", ""},
		{"unicode", python, "import sys\nprint('↗ é 日本', sys.stdout.encoding)", "", exit(0), "↗ é 日本 utf-8\n", ""},
		{"wide characters in bash", bash, `printf é | wc -m`, "", exit(0), "1\n", ""},
		{"user", python, "import getpass,os,pwd\nprint(getpass.getuser(), os.path.expanduser('~'), pwd.getpwuid(os.getuid()).pw_name)", "", exit(0), "sandbox /tmp sandbox\n", ""},
		{"fork", python, "from multiprocessing import get_context\nif __name__ == '__main__':\n  for m in 'fork', 'spawn', 'forkserver':\n    with get_context(m).Pool(2) as p: print(p.map(abs, [-1, -2]))", "", exit(0), "[1, 2]\n[1, 2]\n[1, 2]\n", ""},
		{"asyncio subprocess", python, "import asyncio\nasync def m():\n  p = await asyncio.create_subprocess_exec('echo','x',stdout=-1)\n  print(await p.communicate())\nasyncio.run(m())", "", exit(0), "(b'x\\n', None)\n", ""},
		{"process substitution", bash, `diff <(echo a) <(echo a) && cat /dev/stdin <<< x && echo y > /dev/stdout`, "", exit(0), "x\ny\n", ""},
		{"unflushed output is lost, as it should", python, "import os, sys\nsys.stdout.write('seen')\nos._exit(4)", "", exit(4), "seen", ""},
		{"atexit", python, "import atexit\natexit.register(print, 'last')\nclass A:\n  def __del__(self): print('finalized')\na = A()", "", exit(0), "last\nfinalized\n", ""},
		{"finalizers of what hangs together", python, "import builtins\nclass A:\n  def __init__(self, name): self.name, self.me = name, self\n  def __del__(self): print(self.name)\na: A = A('variable')\nA.of = A('class')\nbuiltins.b = A('builtins')\ndef f(): pass\nf.of = A('function')", "", exit(0), "builtins\nvariable\nclass\nfunction\n", ""},
		{"NUL in the code", python, "print(1)\x00", "", exit(1), "", "  File \"/tmp/main.py\", line 1\n    print(1)\nSyntaxError: source code cannot contain null bytes\n"},
		{"files of an earlier call", bash, `ls /tmp; ls -A /dev/shm; touch /tmp/x /dev/shm/x`, "", exit(0), "main.sh\n", ""},
		{"files of an earlier call again", bash, `ls /tmp; ls -A /dev/shm`, "", exit(0), "main.sh\n", ""},

		{"no stdin", python, `input()`, "", exit(1), "", "Traceback (most recent call last):\n  File \"/tmp/main.py\", line 1, in <module>\n    input()\n    ~~~~~^^\nEOFError: EOF when reading a line\n"},
		{"no stdin in bash", bash, `read x; echo $? "[$x]"; cat`, "", exit(0), "1 []\n", ""},
		{"stdin", python, `print(input()[::-1])`, "hello\n", exit(0), "olleh\n", ""},
		{"stdin is not the source", bash, "cat\necho done", "one\ntwo", exit(0), "one\ntwodone\n", ""},
		{"no bytecode is written", bash, `echo 'x=1' > m.py; python3 -c 'import sys; sys.path.insert(0, "."); import m'; ls`, "", exit(0), "m.py\nmain.sh\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			res := harness.Run(t, r, sandbox.Request{ID: "test", Language: c.language, Code: c.code, Stdin: []byte(c.stdin)})
			check(t, res, c.want)
			if string(res.Stdout) != c.stdout {
				t.Errorf("stdout %q, want %q", res.Stdout, c.stdout)
			}
			if string(res.Stderr) != c.stderr {
				t.Errorf("stderr %q, want %q", res.Stderr, c.stderr)
			}
		})
	}
}

// A call ends with its program, not with what the program leaves behind.
func TestBackgroundProcessesEndWithTheProgram(t *testing.T) {
	r := harness.Runner(t, harness.Options(t))
	for name, code := range map[string]string{
		"background": `sleep 20 & echo ok`,
		"daemon":     `(setsid sh -c 'sleep 20' </dev/null & ) ; echo ok`,
		"nohup":      `nohup sleep 20 >/dev/stdout 2>&1 & disown; echo ok`,
		"late":       `(sleep 2; echo late) & echo ok`,
	} {
		t.Run(name, func(t *testing.T) {
			res := harness.Run(t, r, harness.Bash(code))
			check(t, res, exit(0))
			if string(res.Stdout) != "ok\n" || res.Duration > 5*time.Second {
				t.Errorf("%q after %v", res.Stdout, res.Duration)
			}
		})
	}
}

func TestOrphansAreReaped(t *testing.T) {
	r := harness.Runner(t, harness.Options(t))
	res := harness.Run(t, r, harness.Bash(`for i in $(seq 60); do ( (sleep 0.1) & ); done; sleep 1; cat /proc/[0-9]*/stat 2>/dev/null | grep -c ' Z '`))
	if string(res.Stdout) != "0\n" {
		t.Errorf("%s zombies", res.Stdout)
	}
}

func TestCodeArrivesUnchanged(t *testing.T) { bothWays(t, testCodeArrivesUnchanged) }

func testCodeArrivesUnchanged(t *testing.T, opts runner.Options) {
	r := harness.Runner(t, opts)
	head, tail := "import hashlib\nprint(hashlib.sha256(open(__file__,'rb').read()).hexdigest())\n#", "é\n"
	code := head + strings.Repeat("é", (64<<10-len(head)-len(tail))/2) + tail
	res := harness.Run(t, r, harness.Python(code))
	if want := hashOf(code); strings.TrimSpace(string(res.Stdout)) != want {
		t.Errorf("%d bytes arrive as %s, want %s: %s", len(code), res.Stdout, want, res.Stderr)
	}
}

func TestStdinArrivesUnchanged(t *testing.T) { bothWays(t, testStdinArrivesUnchanged) }

func testStdinArrivesUnchanged(t *testing.T, opts runner.Options) {
	r := harness.Runner(t, opts)
	in := make([]byte, 1<<20)
	_, _ = rand.Read(in)
	req := harness.Bash(`cat`)
	req.Stdin = in
	if res := harness.Run(t, r, req); !bytes.Equal(res.Stdout, in) {
		t.Errorf("%d bytes of stdin come back as %d", len(in), len(res.Stdout))
	}
	req = harness.Bash(`echo unread`)
	req.Stdin = in
	if res := harness.Run(t, r, req); string(res.Stdout) != "unread\n" {
		t.Errorf("stdin that nobody reads: %q", res.Stdout)
	}
}

func TestInvalidRequests(t *testing.T) {
	r := harness.Runner(t, harness.Options(t))
	for name, req := range map[string]sandbox.Request{
		"language":        {Language: "ruby", Code: "x"},
		"code":            {Language: sandbox.Bash},
		"timeout_seconds": {Language: sandbox.Bash, Code: "x", Timeout: time.Hour},
		"stdin":           {Language: sandbox.Bash, Code: "x", Stdin: make([]byte, 2<<20)},
	} {
		_, err := r.Execute(t.Context(), req)
		var invalid *sandbox.InvalidError
		if !errors.As(err, &invalid) || invalid.Argument != name {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The report of the launcher cannot be written by the program.
func TestReportCannotBeForged(t *testing.T) {
	r := harness.Runner(t, harness.Options(t))
	zeros := strings.Repeat("\\0", 40)
	res := harness.Run(t, r, harness.Bash(fmt.Sprintf(`printf '%s' >&2; exit 9`, zeros)))
	check(t, res, exit(9))
	if len(res.Stderr) != 40 {
		t.Errorf("%d bytes of stderr, want 40", len(res.Stderr))
	}
	// The nonce is in the launcher's memory only.
	res = harness.Run(t, r, harness.Bash(`cat /proc/1/mem /proc/1/environ /proc/1/maps; ls /proc/1/fd; exit 5`))
	check(t, res, exit(5))
	if res.StdoutBytes > 0 {
		t.Errorf("the launcher can be read: %s", hex.EncodeToString(res.Stdout))
	}
}

// A program can read its own standard output before we do. What it takes is its
// own loss: neither its later output nor the truth of its end.
func TestStartCannotBeTaken(t *testing.T) { bothWays(t, testStartCannotBeTaken) }

func testStartCannotBeTaken(t *testing.T, opts runner.Options) {
	opts.Slots = 8
	r := harness.Runner(t, opts)
	code := `
import os, time
f = os.open("/proc/self/fd/1", os.O_RDONLY | os.O_NONBLOCK)
end = time.time() + 0.01
while time.time() < end:
    try: os.read(f, 10)
    except BlockingIOError: pass
os.close(f)
os.write(1, b"Hello")
`
	var wg sync.WaitGroup
	for range opts.Slots {
		wg.Go(func() {
			for range 5 {
				res := harness.Run(t, r, harness.Python(code))
				check(t, res, exit(0))
				if string(res.Stdout) != "Hello" {
					t.Errorf("%q, want what was written last", res.Stdout)
				}
			}
			late := harness.Python(code + "time.sleep(10)")
			late.Timeout = time.Second
			res := harness.Run(t, r, late)
			if res.Status != sandbox.StatusTimedOut || string(res.Stdout) != "Hello" {
				t.Errorf("%s: %q, want a time-out after Hello", res.Status, res.Stdout)
			}
		})
	}
	wg.Wait()
}

// A program that makes the shared pipe non-blocking and fills it cannot keep
// the launcher from reporting.
func TestNonBlockingPipes(t *testing.T) { bothWays(t, testNonBlockingPipes) }

func testNonBlockingPipes(t *testing.T, opts runner.Options) {
	r := harness.Runner(t, opts)
	res := harness.Run(t, r, harness.Python(`
import os
os.set_blocking(2, False)
for _ in range(200):
    try: os.write(2, b"x" * 65536)
    except BlockingIOError: pass
os._exit(6)`))
	check(t, res, exit(6))
}

func hashOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}
