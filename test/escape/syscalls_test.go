package escape

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"time"

	"code-execution-sandbox/test/harness"
)

// everySyscall holds what every system call answers against a snapshot. With
// null arguments a call that is allowed mostly answers EFAULT, EINVAL or EBADF.
func everySyscall(x *exam) {
	res := x.run(x.t.Context(), 98, timed(harness.Python(x.prelude()+`
import random
names = sorted(NR, key=NR.get)
random.Random(98).shuffle(names)
answers = {}
for name in names:
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        me = os.getpid()
        os.dup2(os.open("/dev/null", os.O_RDWR), 0); os.dup2(0, 1); os.dup2(0, 2)
        if w < 16: w = os.dup2(w, 40)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        answer = call(name, 0, 0, 0, 0, 0, 0)
        if os.getpid() == me: os.write(w, answer.encode())
        os._exit(0)
    os.close(w)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    answers[name] = (os.read(r, 100).decode() if select.select([r], [], [], 0)[0] else "") or {0: "ends", -14: "waits"}.get(status, "is killed")
    os.close(r)
for name in sorted(NR, key=NR.get): print(NR[name], name, answers[name])`), 60))
	if res == nil {
		return
	}
	if end := ending(res); end != "exited 0" {
		x.fault(98, "%s: %s", end, excerpt(res.Stderr))
		return
	}
	file := "testdata/syscalls-" + runtime.GOARCH + ".txt"
	if *update {
		if err := os.WriteFile(file, res.Stdout, 0o644); err != nil { //nolint:gosec // a file of the repository
			x.t.Fatal(err)
		}
	}
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		x.fault(98, "no snapshot for %s: run with -update and read it", runtime.GOARCH)
		return
	}
	if err != nil {
		x.t.Fatal(err)
	}
	want := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		f := strings.SplitN(strings.TrimSpace(line), " ", 3)
		want[f[1]] = f[2]
	}
	differ := 0
	for line := range strings.Lines(string(res.Stdout)) {
		f := strings.SplitN(strings.TrimSpace(line), " ", 3)
		// What an older kernel or libseccomp does not know is refused as well. So
		// the snapshot is to be of a host that knows all (libseccomp 2.6: mseal).
		// Since Linux 6.14 no filter is asked about the calls of its own
		// trampolines: they end whoever else makes them.
		if f[1] == "setpriority" && f[2] == "EACCES" {
			continue // the tests themselves run nice, and it asks for less
		}
		// What crun's libseccomp does not know gets the profile's default; runc
		// answers it as a kernel would that does not know it.
		if want[f[1]] == "ENOSYS" && f[2] == "EPERM" && os.Getenv(harness.EnvRuntimeBinary) == "crun" {
			continue
		}
		if got := f[2]; got != want[f[1]] && got != "ENOSYS" && !strings.HasSuffix(f[1], "probe") {
			if differ++; differ <= 20 {
				x.fault(98, "%s answers %s, in the snapshot %s", f[1], got, want[f[1]])
			}
		}
	}
	if differ > 20 {
		x.fault(98, "and %d more", differ-20)
	}
}

// imageSum is a hash over every file of the image, as read in a sandbox.
func (x *exam) imageSum() string {
	res := x.run(x.t.Context(), 173, timed(harness.Python(x.prelude()+`
import hashlib
total = hashlib.sha256(); n = 0
for top, dirs, names in os.walk("/"):
    dirs.sort()
    if top == "/": dirs[:] = [d for d in dirs if d not in ("proc", "tmp", "dev")]
    for f in sorted(names):
        p = os.path.join(top, f)
        data = os.readlink(p).encode() if os.path.islink(p) else read(p)
        total.update(f"{p} {len(data)} ".encode() + hashlib.sha256(data).digest()); n += 1
print(total.hexdigest(), n)`), 60))
	if res == nil || ending(res) != "exited 0" {
		return fmt.Sprintf("no sum at %v", time.Now())
	}
	return strings.TrimSpace(string(res.Stdout))
}
