package escape

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"code-execution-sandbox/internal/runner"
	"code-execution-sandbox/internal/sandbox"
	"code-execution-sandbox/test/harness"
)

// timed is a program with a time limit in seconds.
func timed(req sandbox.Request, seconds int) sandbox.Request {
	req.Timeout = harness.Slow(time.Duration(seconds) * time.Second)
	return req
}

func noCoreOnTheHost(x *exam) {
	dir := filepath.Dir(x.host.pattern)
	if !filepath.IsAbs(dir) {
		dir = "" // the program's own directory, which another row looks at
	}
	list := func() int {
		entries, err := os.ReadDir(dir)
		if err != nil && dir != "" {
			x.t.Error(err)
		}
		return len(entries)
	}
	before := list()
	if res := x.run(x.t.Context(), 55, harness.Bash(`ulimit -c; kill -SEGV $$`)); res != nil && (ending(res) != "signaled 11" || string(res.Stdout) != "0\n") {
		x.fault(55, "%s: %s", ending(res), res.Stdout)
	}
	if dir != "" && list() != before {
		x.fault(55, "there is a new file in %s", dir)
	}
}

// setuidProgram and capableProgram bring a program in by a bind mount, since
// the image has none.
func setuidProgram(x *exam) {
	x.with(plantSetuid, func(y *exam) {
		if got := y.bash(79, planted+" -u; "+planted+" -ur"); got != "1000\n1000" {
			y.fault(79, "a setuid id(1) says %q", got)
		}
	})
}

func capableProgram(x *exam) {
	x.with(plantCapable, func(y *exam) {
		// EPERM: none of what the file demands is in the bounding set.
		if got := y.python(80, `
print(attempt(os.execv, "`+planted+`", ["cat", "/proc/self/status"]))`); got != "EPERM" && !strings.Contains(got, "CapEff:\t0000000000000000") {
			y.fault(80, "a program with all capabilities: %s", got)
		}
	})
}

func busy(x *exam) {
	res := x.run(x.t.Context(), 119, timed(harness.Bash("for i in 1 2 3 4; do (while :; do :; done) & done; wait"), 2))
	if res == nil {
		return
	}
	// A period of quota may be begun at each end.
	if most := time.Duration(float64(res.Duration)*x.host.limits.CPUs) + harness.Slow(300*time.Millisecond); ending(res) != "timed_out" || res.CPUTime > most {
		x.fault(119, "%s, %v of processor time in %v", ending(res), res.CPUTime, res.Duration)
	}
}

func asleep(x *exam) {
	res := x.run(x.t.Context(), 120, timed(harness.Bash("sleep 60"), 1))
	if res != nil && (ending(res) != "timed_out" || res.Duration < harness.Slow(time.Second) || res.Duration > harness.Slow(2*time.Second)) {
		x.fault(120, "%s after %v", ending(res), res.Duration)
	}
}

// kernelMemory fills what no limit but the sandbox's memory counts, and looks
// at what the host's kernel holds afterwards.
func kernelMemory(x *exam) {
	before := unreclaimable(x)
	for what, code := range map[string]string{
		"deep directories": `
for i in range(10**6):
    try: os.mkdir("d"); os.chdir("d")
    except OSError as e: print(errno.errorcode[e.errno]); break`,
		"negative dentries": `
end = time.monotonic() + 2
n = 0
while time.monotonic() < end: attempt(os.stat, f"/tmp/{n:0200d}"); n += 1`,
		"attributes":         `open("/tmp/f", "w"); print(until(lambda i=iter(range(10**6)): os.setxattr("/tmp/f", f"user.{next(i)}", bytes(60000)), most=20000))`,
		"links":              `print(until(lambda i=iter(range(10**6)): os.symlink("x" * 4000, f"/tmp/{next(i)}"), most=20000))`,
		"epoll":              "e = select.epoll()\nfor i in range(1000): attempt(lambda: e.register(os.dup(0), 1))",
		"filters":            "p = (ctypes.c_uint64 * 4000)(*[0] * 3999, 0x7fff0000 << 32 | 6); f = (ctypes.c_uint64 * 2)(4000, ctypes.addressof(p))\nprint(until(lambda: raw('seccomp', 1, 0, f), most=200))",
		"timers":             `print(until(lambda: raw("timer_create", 1, 0, ctypes.create_string_buffer(8)), most=10**5))`,
		"messages in flight": "a, b = socket.socketpair(1, 2)\na.setblocking(False)\nprint(until(lambda: socket.send_fds(a, [b'x'], [0] * 200), most=10**4))",
	} {
		res := x.run(x.t.Context(), 129, harness.Python(x.prelude()+code))
		if res == nil {
			continue
		}
		if end := ending(res); end != "exited 0" && end != "out_of_memory" {
			x.fault(129, "%s: %s: %s", what, end, excerpt(res.Stderr))
		}
		if limit := x.host.limits.Memory; res.PeakMemory > limit {
			x.fault(129, "%s: %d bytes of %d", what, res.PeakMemory, limit)
		}
	}
	if grown := unreclaimable(x) - before; grown > x.host.limits.Memory {
		x.fault(129, "the kernel holds %d MiB more than before", grown>>20)
	}
}

// unreclaimable is the kernel's own memory that it cannot give back, in bytes.
func unreclaimable(x *exam) int64 {
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		x.t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); f[0] == "SUnreclaim:" {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n << 10
		}
	}
	x.t.Fatal("no SUnreclaim")
	return 0
}

func exitCodes(x *exam) {
	for code, want := range map[int]int{0: 0, 1: 1, 255: 255, 256: 0, -1: 255, 300: 44} {
		for _, req := range []sandbox.Request{
			harness.Bash(fmt.Sprintf("exit %d", code)),
			harness.Python(fmt.Sprintf("raise SystemExit(%d)", code)),
		} {
			if res := x.run(x.t.Context(), 135, req); res != nil && ending(res) != fmt.Sprintf("exited %d", want) {
				x.fault(135, "%s %d: %s", req.Language, code, ending(res))
			}
		}
	}
}

// daemonEnds: the answer does not wait for what the program has left behind.
func daemonEnds(x *exam) {
	res := x.run(x.t.Context(), 138, harness.Python(`
import os, time
print("main", flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(60)
    os._exit(0)
`))
	if res != nil && (ending(res) != "exited 0" || string(res.Stdout) != "main\n" || res.Duration > harness.Slow(5*time.Second)) {
		x.fault(138, "%s after %v: %s", ending(res), res.Duration, res.Stdout)
	}
	x.await(138, "the daemon's end", func() bool { return x.processes() == 0 })
}

// forksAgainstKills ends programs that do nothing but fork and run away.
func forksAgainstKills(x *exam) {
	for i := range 20 {
		ctx, cancel := context.WithCancelCause(x.t.Context())
		req := harness.Python("import os, time\nwhile True:\n  try:\n    if os.fork() == 0: os.setsid()\n  except OSError: time.sleep(0)\n")
		req.Started = func() {
			time.AfterFunc(time.Duration(200+10*i)*time.Millisecond, func() { cancel(errors.New("enough")) })
		}
		if res, err := x.r.Execute(ctx, req); err == nil {
			if end := ending(res); end != "canceled" && end != "out_of_memory" {
				x.fault(141, "%s", end)
			}
		} else if ctx.Err() == nil {
			x.fault(141, errNoVerdict+"%v", err)
		}
		cancel(nil)
	}
	x.await(141, "the end of all that was forked", func() bool { return x.processes() == 0 })
}

// launcherDies: the one row that must be an error, since the program cannot
// cause it.
func launcherDies(x *exam) {
	// The launcher is the sandbox's first process.
	first := 0
	kill := func() bool {
		names, _ := x.opts.Cgroups.Children(x.opts.CgroupParent)
		for _, name := range names {
			if pids, _ := x.opts.Cgroups.Group(filepath.Join(x.opts.CgroupParent, name)).Processes(); len(pids) > 10 {
				first = slices.Min(pids)
				return true
			}
		}
		return false
	}
	done := make(chan error, 1)
	go func() {
		_, err := x.r.Execute(x.t.Context(), harness.Python(x.prelude()+"flag(); time.sleep(60)"))
		done <- err
	}()
	x.await(147, "the program's start", kill)
	if first == 0 {
		return
	}
	if p, err := os.FindProcess(first); err != nil || p.Kill() != nil {
		x.fault(147, "kill %d: %v", first, err)
	}
	if err := <-done; !errors.Is(err, sandbox.ErrUnavailable) {
		x.fault(147, "the caller is told: %v", err)
	}
}

func floods(x *exam) {
	before := resident(x)
	for _, c := range []struct{ code, which string }{{"yes", "o"}, {"yes >&2", "e"}, {"yes & yes >&2", "oe"}} {
		res := x.run(x.t.Context(), 148, timed(harness.Bash(c.code), 2))
		if res == nil {
			continue
		}
		limit := x.host.limits.MaxOutputBytes
		for s, got := range map[string]int{"o": len(res.Stdout), "e": len(res.Stderr)} {
			if want := map[bool]int{true: limit, false: 0}[strings.Contains(c.which, s)]; got != want {
				x.fault(148, "%s: %d bytes kept, want %d", c.code, got, want)
			}
		}
		if ending(res) != "timed_out" || !res.Truncated() || res.StdoutBytes+res.StderrBytes < 50<<20 {
			x.fault(148, "%s: %s, %d bytes", c.code, ending(res), res.StdoutBytes+res.StderrBytes)
		}
	}
	if grown := resident(x) - before; grown > 32<<20 {
		x.fault(148, "the server's part grew by %d MiB", grown>>20)
	}
}

// resident is the memory of this process in bytes.
func resident(x *exam) int64 {
	runtime.GC()
	raw, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		x.t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(raw))[1], 10, 64)
	if err != nil {
		x.t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

func longLine(x *exam) {
	res := x.run(x.t.Context(), 150, harness.Bash(`head -c 100000000 /dev/zero | tr '\0' x`))
	if res != nil && (ending(res) != "exited 0" || res.StdoutBytes != 100000000 || len(res.Stdout) != x.host.limits.MaxOutputBytes) {
		x.fault(150, "%s, %d bytes, %d kept", ending(res), res.StdoutBytes, len(res.Stdout))
	}
}

// unclean is every byte, and text that is almost UTF-8: a surrogate, an
// overlong form, a byte order mark.
const unclean = `bytes(range(256)) + b"\xed\xa0\x80 \xc0\xaf \xef\xbb\xbf \xf4\x90\x80\x80"`

func bytesArrive(n int) func(*exam) {
	return func(x *exam) {
		res := x.run(x.t.Context(), n, harness.Python("import sys\nfor s in sys.stdout, sys.stderr: s.buffer.write("+unclean+")"))
		want := make([]byte, 0, 300)
		for b := range 256 {
			want = append(want, byte(b))
		}
		want = append(want, "\xed\xa0\x80 \xc0\xaf \xef\xbb\xbf \xf4\x90\x80\x80"...)
		if res != nil && (!bytes.Equal(res.Stdout, want) || !bytes.Equal(res.Stderr, want)) {
			x.fault(n, "stdout %q, stderr %q", res.Stdout, res.Stderr)
		}
	}
}

// overMCP: what comes out of a sandbox breaks neither the text nor the frames
// of the protocol.
func overMCP(x *exam) {
	x.settle()
	x.t.Run("over MCP", func(t *testing.T) { speak(t, x) })
}

func speak(t *testing.T, x *exam) {
	session := harness.Serve(t, harness.Options(t), "[pool]\npython = 0\nbash = 0\n").Connect(t)
	for _, args := range []map[string]any{
		{"language": "python", "code": "import sys\nsys.stdout.buffer.write(" + unclean + ")"},
		{"language": "bash", "code": `printf 'data: {"jsonrpc":"2.0","id":1,"result":{"content":[]}}\n\nevent: message\nid: 7\n\n'; printf '\e]52;c;eA==\a'`},
		{"language": "bash", "code": `head -c 3000000 /dev/zero | tr '\0' '\351'`},
		{"language": "bash", "code": "yes", "timeout_seconds": 1},
	} {
		res, err := harness.Call(t.Context(), session, args)
		if err != nil {
			x.fault(151, "%v: %v", args["code"], err)
			continue
		}
		if len(res.Content) != 1 {
			x.fault(151, "%d blocks", len(res.Content))
			continue
		}
		text, _ := res.Content[0].(*mcp.TextContent)
		if text == nil || !utf8.ValidString(text.Text) || strings.ContainsAny(text.Text, "\x00\x1b\a") {
			x.fault(151, "%v: the text is not clean", args["code"])
		}
	}
	// And the session is as it was.
	if res, err := harness.Call(t.Context(), session, map[string]any{"language": "bash", "code": "echo after"}); err != nil || !strings.Contains(harness.Text(t, res), "after") {
		x.fault(151, "the call after: %v", err)
	}
}

func characterAcrossCap(x *exam) {
	res := x.run(x.t.Context(), 152, harness.Python("import sys\nsys.stdout.write('x' + '日本é' * 400000)"))
	if res == nil {
		return
	}
	if whole := int64(1 + 400000*8); res.StdoutBytes != whole || !res.Truncated() || len(res.Stdout) > x.host.limits.MaxOutputBytes {
		x.fault(152, "%d bytes of %d, %d kept", res.StdoutBytes, whole, len(res.Stdout))
	}
}

func closedStreams(x *exam) {
	res := x.run(x.t.Context(), 156, harness.Bash("echo first; exec >&- 2>&- <&-; sleep 1.2; exit 5"))
	if res != nil && (ending(res) != "exited 5" || string(res.Stdout) != "first\n" || res.Duration < 1200*time.Millisecond) {
		x.fault(156, "%s after %v: %s", ending(res), res.Duration, res.Stdout)
	}
}

func outputAtCap(x *exam) {
	for _, more := range []int{-1, 0, 1} {
		n := x.host.limits.MaxOutputBytes + more
		res := x.run(x.t.Context(), 161, harness.Bash(fmt.Sprintf("head -c %d /dev/zero", n)))
		if res != nil && (res.StdoutBytes != int64(n) || res.Truncated() != (more > 0)) {
			x.fault(161, "%d bytes: %d counted, truncated %v", n, res.StdoutBytes, res.Truncated())
		}
	}
}

// lastBytes: another test has a thousand such calls.
func lastBytes(x *exam) {
	for i := range 20 {
		if got := x.bash(162, fmt.Sprintf("printf 'x%%.0s' {1..5000}; echo END%d", i)); !strings.HasSuffix(got, fmt.Sprintf("xEND%d", i)) {
			x.fault(162, "the end is lost: %q", got[max(0, len(got)-20):])
		}
	}
}

func timeLimits(x *exam) {
	for _, limit := range []time.Duration{-1, -time.Second, 1, time.Second - 1, x.host.limits.MaxTimeout + 1, 1<<63 - 1} {
		req := harness.Bash("true")
		req.Timeout = limit
		if _, err := x.r.Execute(x.t.Context(), req); !errors.Is(err, sandbox.ErrInvalid) {
			x.fault(167, "%v: %v", limit, err)
		}
	}
}

func tooLong(x *exam) {
	_, err := x.r.Execute(x.t.Context(), harness.Bash(strings.Repeat("#", 10<<20)))
	if !errors.Is(err, sandbox.ErrInvalid) {
		x.fault(211, "a program of 10 MB: %v", err)
	}
	if got := x.bash(211, strings.Repeat("#", x.host.limits.MaxCodeBytes-8)+"\necho ok"); got != "ok" {
		x.fault(211, "the longest program: %q", got)
	}
}

func ulimits(x *exam) {
	spec, err := runner.Spec(x.opts, sandbox.Bash)
	if err != nil {
		x.t.Fatal(err)
	}
	want := map[string][]uint64{}
	for _, l := range spec.Process.Rlimits {
		want[l.Type] = []uint64{l.Soft, l.Hard}
	}
	got := map[string][]uint64{}
	list, _ := json.Marshal(slices.Sorted(maps.Keys(want)))
	text := x.python(212, `print(json.dumps({l: resource.getrlimit(getattr(resource, l)) for l in `+string(list)+`}))`)
	if err := json.Unmarshal([]byte(text), &got); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		x.fault(212, "%v, want %v", text, want)
	}
	if len(want) < 8 {
		x.fault(212, "only %d limits are set", len(want))
	}
}

// pair runs two calls one after the other, as different callers would.
func (x *exam) pair(n int, first, second string) (a, b string) {
	return x.python(n, first), x.python(n, second)
}

func filesOfAnEarlierCall(x *exam) {
	_, found := x.pair(168, `
for top, dirs, files in os.walk("/"):
    if top == "/": dirs[:] = [d for d in dirs if d != "proc"]
    attempt(os.open, top + "/left-behind", os.O_CREAT | os.O_WRONLY)
    attempt(os.setxattr, top, "user.left-behind", b"x")`, `
for top, dirs, files in os.walk("/"):
    if top == "/": dirs[:] = [d for d in dirs if d != "proc"]
    if "left-behind" in files or any("left" in a for a in os.listxattr(top)): print(top)
print(sorted(os.listdir("/tmp")), os.listdir("/dev/shm"))`)
	if found != "['main.py'] []" {
		x.fault(168, "found: %s", found)
	}
}

// keysOfAnEarlierCall: to store is refused in the first place; where it is not,
// the second call must find nothing.
func keysOfAnEarlierCall(x *exam) {
	_, found := x.pair(169, `
for ring in -1, -2, -3, -4, -5: call("add_key", "user", "left-behind", b"x", 1, ring)
call("keyctl", 5, -4, 0x3f3f3f3f)`, `
out = set()
for ring in -3, -4, -5: out.add(call("keyctl", 10, ring, "user", "left-behind", 0))
out.add(call("request_key", "user", "left-behind", 0, 0))
print(*sorted(out))`)
	if found != "ENOSYS" {
		x.fault(169, "the search says: %s", found)
	}
}

func objectsOfAnEarlierCall(x *exam) {
	// The first is still alive: objects of living processes are the harder case.
	found := ""
	x.beside(170, `
s = socket.socket(1); s.bind(b"\0left-behind"); s.listen()
open("/dev/shm/left-behind", "w").write("x")
call("shmget", 4711, 4096, 0o1666); call("msgget", 4711, 0o1666); call("mq_open", "left-behind", 0o102, 0o666, 0)`, func() {
		found = x.python(170, `
def connect(): socket.socket(1).connect(b"\0left-behind")
print(attempt(connect), os.listdir("/dev/shm"), call("shmget", 4711, 4096, 0), call("msgget", 4711, 0), call("mq_open", "left-behind", 0, 0, 0))`)
	})
	if found != "ECONNREFUSED [] ENOSYS ENOSYS ENOSYS" {
		x.fault(170, "found: %s", found)
	}
}

func processesOfAnEarlierCall(x *exam) {
	_, found := x.pair(171, `
if os.fork() == 0:
    os.setsid(); time.sleep(60)`, `print([read(f"/proc/{p}/cmdline") for p in os.listdir("/proc") if p.isdigit() and int(p) not in (1, os.getpid())])`)
	if found != "[]" {
		x.fault(171, "found: %s", found)
	}
	x.await(171, "the end of all processes", func() bool { return x.processes() == 0 })
}

// twoCalls tries to see, to signal and to trace a neighbour, whose process ids
// are small numbers like one's own.
func twoCalls(x *exam) {
	answers := ""
	x.beside(172, "", func() {
		answers = x.python(172, `
others = [p for p in range(1, 400) if p not in (1, os.getpid())]
print(len([p for p in os.listdir("/proc") if p.isdigit()]), end=" ")
tally((p, attempt(os.kill, p, 9)) for p in others)
tally((p, call("ptrace", 16, p, 0, 0)) for p in others)`)
	})
	if answers != "2 ESRCH\nEPERM" {
		x.fault(172, "the answers: %s", answers)
	}
}

func rangesOfIDs(x *exam) {
	var mu sync.Mutex
	ranges := map[string]int{}
	var wg sync.WaitGroup
	// All at once: each waits for the others, which it sees in nothing but time.
	for range x.opts.Slots {
		wg.Go(func() {
			got := x.python(174, `print(read("/proc/self/uid_map").split()[1].decode()); time.sleep(2)`)
			mu.Lock()
			ranges[got]++
			mu.Unlock()
		})
	}
	wg.Wait()
	if len(ranges) != x.opts.Slots {
		x.fault(174, "%d calls at once have the ranges %v", x.opts.Slots, ranges)
	}
}

func names(x *exam) {
	code := `
import re
print(os.uname().nodename, re.search(r"task/[^/]+/([0-9a-z-]+)/", read("/proc/self/mountinfo").decode()).group(1) if "task/" in read("/proc/self/mountinfo").decode() else "")`
	a, b := x.pair(175, code, code)
	if !strings.HasPrefix(a, "sandbox") || a == b && len(strings.Fields(a)) > 1 {
		x.fault(175, "%s, then %s", a, b)
	}
	// From outside, since mountinfo need not tell.
	seen := map[string]bool{}
	for range 3 {
		x.beside(175, "", func() {
			list, err := x.opts.Cgroups.Children(x.opts.CgroupParent)
			if err != nil {
				x.t.Error(err)
			}
			for _, name := range list {
				_, random, _ := strings.Cut(name, "-")
				if len(random) < 32 {
					x.fault(175, "the id %s has fewer than 128 random bits", name)
				}
				seen[name] = true
			}
		})
	}
	if len(seen) < 3 {
		x.fault(175, "the ids of three calls: %v", seen)
	}
}

func nothingLeft(x *exam) {
	x.python(176, `open("/tmp/f", "wb").write(bytes(50 << 20)); os.fork()`)
	x.await(176, "the end of the sandbox", func() bool {
		names, err := x.opts.Cgroups.Children(x.opts.CgroupParent)
		return err == nil && len(names) == 0
	})
}

func crashesOfAnEarlierCall(x *exam) {
	for _, code := range []string{"kill -SEGV $$", "ulimit -c unlimited; kill -ABRT $$", "python3 -c 'bytearray(1 << 30)'"} {
		x.run(x.t.Context(), 180, harness.Bash(code))
	}
	if got := x.bash(180, `ls -A /tmp /dev/shm /var/crash /var/lib/systemd/coredump /var/lib/apport 2>/dev/null; dmesg 2>/dev/null; true`); got != "/dev/shm:\n\n/tmp:\nmain.sh" {
		x.fault(180, "found: %s", got)
	}
}

func locksOnTheImage(x *exam) {
	lock := `
import fcntl
fd = os.open("/usr/bin/env", os.O_RDONLY)
print(attempt(fcntl.flock, fd, fcntl.LOCK_EX | fcntl.LOCK_NB))`
	second := ""
	first := x.beside(19, lock, func() { second = x.python(19, lock) })
	// AppArmor lets nobody hold for himself what he cannot write.
	if first != second || !matches("ok|EACCES", first) {
		x.fault(19, "both lock a file of the image: %s, %s", first, second)
	}
}

func neighbourAbstract(x *exam) {
	answer := ""
	bound := x.beside(64, `
s = socket.socket(1); s.bind(b"\0neighbour"); s.listen(); print("bound")`, func() {
		answer = x.python(64, `
def connect(): socket.socket(1).connect(b"\0neighbour")
print(attempt(connect), len(read("/proc/self/net/unix").splitlines()) - 1)`)
	})
	if bound != "bound" || answer != "ECONNREFUSED 0" {
		x.fault(64, "%s, %s", bound, answer)
	}
}

// neighbourPipes: the memory in pipes is counted per user id of the host.
func neighbourPipes(x *exam) {
	answer := ""
	x.beside(115, `
import fcntl
def hog(): r, w = os.pipe(); fcntl.fcntl(w, 1031, 1 << 20); return r, w
kept = []
try:
    while True: kept.append(hog())
except OSError: pass`, func() {
		answer = x.python(115, `
import fcntl
r, w = os.pipe()
print(fcntl.fcntl(w, 1032), attempt(fcntl.fcntl, w, 1031, 1 << 20))`)
	})
	if answer != "65536 ok" {
		x.fault(115, "beside a hog: %s", answer)
	}
}

// neighbourInotify: instances are counted per user id of the host, and, in a
// user namespace, for whoever made it as well.
func neighbourInotify(x *exam) {
	second := ""
	first := x.beside(116, `print(*until(lambda: raw("inotify_init1", 0), most=2000))`, func() {
		second = x.python(116, `print(*until(lambda: raw("inotify_init1", 0), most=8))`)
	})
	if second != "8 ok" && second != "0 ENOSYS" {
		x.fault(116, "beside one with %s: %s", first, second)
	}
}
