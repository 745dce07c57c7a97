package escape

import (
	"fmt"
	"strings"
)

// Reasons for which a row says nothing.
func amd64Only(h *host) string {
	if h.arch != "amd64" {
		return "of the processor architecture amd64"
	}
	return ""
}

// cgroupOnly is for rows whose outcome depends on the version of the cgroups.
func cgroupOnly(version int) func(*host) string {
	return func(h *host) string {
		if h.cgroup != version {
			return fmt.Sprintf("of cgroup v%d", version)
		}
		return ""
	}
}

// interruptOnly is for rows whose outcome depends on whether the processor has
// the interrupt of 32-bit system calls; some virtual ones do not.
func interruptOnly(has bool) func(*host) string {
	return func(h *host) string {
		switch {
		case h.arch != "amd64":
			return amd64Only(h)
		case h.interrupt != has:
			return "of a processor with another 32-bit interrupt"
		}
		return ""
	}
}

// resourceOnly is for rows whose outcome depends on whether the runtime has
// CAP_SYS_RESOURCE, as it has on most hosts but not in most containers: what it
// sets oom_score_adj to is then the least that a program can lower it to.
func resourceOnly(has bool) func(*host) string {
	return func(h *host) string {
		if h.resource != has {
			return "of a host that gives the runtime other capabilities"
		}
		return ""
	}
}

const (
	by32Bit = `
print("before", flush=True)
print(machine(bytes.fromhex("b814000000cd80c3"))())  # mov eax, 20 (getpid); int 0x80; ret`
	every32Bit = `
def i386(n): return lambda: machine(b"\xb8" + n.to_bytes(4, "little") + bytes.fromhex("cd80c3"))() and 0
tally((n, child(i386(n))) for n in (1, 5, 102, 117, 120, 359))`
)

func never(why string) func(*host) string { return func(*host) string { return why } }

// files: what can be written, read and linked.
var files = []row{
	{n: 1, what: "create in the directories of the image", out: "EROFS", probe: `
tally((d, attempt(os.open, d + "/x", os.O_CREAT | os.O_WRONLY)) for d in
      "/ /usr /usr/bin /usr/lib /etc /root /home /var /var/tmp /run /run/lock /mnt /opt /srv /sys /boot /media".split())`},
	{n: 2, what: "change existing files", out: "EROFS", probe: `
def change(f):
    yield from {"open": attempt(os.open, f, os.O_WRONLY), "append": attempt(os.open, f, os.O_RDWR | os.O_APPEND), "truncate": attempt(os.truncate, f, 0),
        "O_TRUNC": attempt(os.open, f, os.O_RDONLY | os.O_TRUNC), "chmod": attempt(os.chmod, f, 0o777), "chown": attempt(os.chown, f, 1000, 1000),
        "unlink": attempt(os.unlink, f), "rename": attempt(os.rename, f, f + "x"), "setxattr": attempt(os.setxattr, f, "user.x", b"x"),
        "utime": attempt(os.utime, f, (0, 0))}.items()
tally(a for f in ("/etc/passwd", "/usr/bin/bash", "/usr/lib/code-execution-sandbox/launcher") for a in change(f))`},
	{n: 3, what: "create in /dev", out: "EROFS", probe: `
tally((p, attempt(os.open, p, os.O_CREAT | os.O_WRONLY)) for p in ("/dev/x", "/dev/shm/../x"))`},
	{n: 4, what: "create in /proc", out: "ENOENT", probe: `
tally((p, attempt(os.open, p, os.O_CREAT | os.O_WRONLY)) for p in ("/proc/x", "/proc/self/x", "/proc/self/task/x", "/proc/1/x"))`},
	{n: 5, what: "use /tmp", out: "fine", probe: `
os.makedirs("a/b"); open("a/b/f", "w").write("x"); os.rename("a/b/f", "a/g"); os.symlink("a/g", "l"); os.mkfifo("p"); os.link("a/g", "h")
s = socket.socket(socket.AF_UNIX); s.bind("s"); s.listen()
c = socket.socket(socket.AF_UNIX); c.connect("s"); c.send(b"y")
print("fine" if open("l").read() == "x" and s.accept()[0].recv(1) == b"y" else "broken")`},
	{n: 6, what: "mode and owner of /tmp", out: "0o1777 0:0\n0o1777 0:0", probe: `
for d in "/tmp", "/dev/shm": s = os.stat(d); print(oct(stat.S_IMODE(s.st_mode)), f"{s.st_uid}:{s.st_gid}")`},
	{n: 7, what: "hard link out of the image", out: "EXDEV", probe: `tally((d, attempt(os.link, "/usr/bin/env", d)) for d in ("x", "/dev/shm/x"))`},
	{n: 8, what: "links out of /tmp show the same view", out: "ENOENT ENOENT EACCES True True", probe: `
os.symlink("/etc/shadow", "a"); os.symlink("/proc/1/root", "b"); os.symlink("../" * 30, "c"); os.symlink("/proc/self/root", "d")
print(attempt(os.open, "a", 0), attempt(os.open, "/etc/shadow", 0), attempt(os.listdir, "b"), os.listdir("c") == os.listdir("/"), os.listdir("d/../..") == os.listdir("/"))`},
	{n: 10, what: "open files at the start of Python", out: `0 pipe\n1 pipe\n2 pipe`, python: `
fd = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY)
for name in sorted(os.listdir(fd), key=int):
    if int(name) not in (fd, fd + 1):
        print(name, os.readlink(f"/proc/self/fd/{name}").split(":")[0])`},
	{n: 10, what: "open files at the start of bash", out: `pipe\npipe\npipe\n/tmp/main.sh`, bash: `readlink /proc/$$/fd/* > /tmp/l; cut -d: -f1 /tmp/l`},
	{n: 11, what: "make device nodes", out: "EPERM", probe: `
tally((f"{m:o}", attempt(os.mknod, "n", m | 0o666, os.makedev(1, 5))) for m in (stat.S_IFCHR, stat.S_IFBLK))
`},
	{n: 12, what: "open devices", out: "ENOENT: .*; ENXIO: tty", probe: `
tally((d, attempt(os.open, "/dev/" + d, os.O_RDWR)) for d in
      "tty ptmx pts/0 pts/ptmx console tty0 mem kmem port kmsg fuse kvm vsock vhost-vsock vhost-net userfaultfd net/tun loop-control loop0 "
      "mapper/control rtc hwrng mqueue sda vda nvme0n1 dri/card0 snd input/event0 uinput btrfs-control autofs cpu/0/msr".split())`},
	{n: 13, what: "listing of /dev", out: "(core )?fd full null ptmx random shm stderr stdin stdout tty urandom zero", probe: `print(*sorted(os.listdir("/dev")))`},
	{n: 14, what: "mount", out: "EPERM", probe: `
tally({"tmpfs": call("mount", "x", "/mnt", "tmpfs", 0, 0), "bind": call("mount", "/etc", "/tmp", 0, 4096, 0), "rw": call("mount", 0, "/", 0, 32 | 4096, 0),
    "proc": call("mount", "proc", "/proc", "proc", 0, 0), "exec": call("mount", 0, "/tmp", 0, 32 | 4096, 0), "private": call("mount", 0, "/", 0, 1 << 18, 0),
    "fsopen": call("fsopen", "tmpfs", 0), "open_tree": call("open_tree", -100, "/", 1), "fspick": call("fspick", -100, "/", 0), "fsmount": call("fsmount", 0, 0, 0),
    "fsconfig": call("fsconfig", 0, 0, 0, 0, 0), "move_mount": call("move_mount", -100, "/", -100, "/", 0), "mount_setattr": call("mount_setattr", -100, "/", 0, 0, 0),
    "pivot_root": call("pivot_root", "/", "/"), "chroot": call("chroot", "/tmp")}.items())`},
	{n: 15, what: "unmount", out: "EPERM", probe: `tally((d, call("umount2", d, f)) for d in ("/proc", "/tmp", "/dev/shm", "/dev", "/") for f in (0, 2))`},
	{n: 16, what: "files by handle", out: "EPERM", probe: `
tally({"name": call("name_to_handle_at", -100, "/", ctypes.create_string_buffer(200), ctypes.create_string_buffer(8), 0),
    "open": call("open_by_handle_at", -100, ctypes.create_string_buffer(200), 0)}.items())`},
	{n: 17, what: "secrets in the image", seconds: 60, out: `\d{4,} files`, python: `
import re
bad = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\r?\n(?:[A-Za-z0-9+/=]{60,76}\r?\n){4}|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36}\b|\bxox[abpr]-[0-9]{8,}|\beyJhbGciOi[A-Za-z0-9_-]{10,}|Acquire::https?::Proxy|/var/run/docker\.sock")
words = b"PRIVATE KEY-----", b"AKIA", b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"xox", b"eyJhbGciOi", b"::Proxy", b"docker.sock"
n = 0
for top, dirs, names in os.walk("/"):
    if top == "/":
        dirs[:] = [d for d in dirs if d not in ("proc", "tmp", "dev")]
    for d in dirs + names:
        if d in (".git", ".ssh", ".aws", ".netrc", ".npmrc", ".docker", ".gnupg", "id_rsa", ".bash_history", ".dockerenv", "machine-id", "sources.list"):
            print(top, d)
    for f in names:
        p = os.path.join(top, f)
        if os.path.islink(p):
            continue
        n += 1
        data = read(p)
        # Programs that look for such things have the words in them.
        if any(word in data for word in words) and (m := bad.search(data)) and not p.startswith(("/usr/bin/", "/usr/lib/x86_64-linux-gnu/", "/usr/lib/aarch64-linux-gnu/")):
            print(p, m.group()[:40])
print(n, "files")`},
	{n: 18, what: "setuid, setgid, capabilities, devices, world-writable", seconds: 60, out: "", python: `
for top, dirs, names in os.walk("/"):
    if top == "/":
        dirs[:] = [d for d in dirs if d not in ("proc", "tmp", "dev")]
    for f in dirs + names:
        p = os.path.join(top, f)
        s = os.lstat(p)
        if stat.S_ISLNK(s.st_mode):
            continue
        if s.st_mode & 0o6002 or not (stat.S_ISREG(s.st_mode) or stat.S_ISDIR(s.st_mode)):
            print(p, oct(s.st_mode))
        if "security.capability" in os.listxattr(p):
            print(p, "capabilities")`},
	{n: 19, what: "file locks on the image", test: locksOnTheImage},
	{n: 20, what: "the code file", out: "EACCES\nok\nok", residual: "the program's file is its own, in its own /tmp, and gone with it: only executing it is refused", probe: `
print(attempt(os.execv, "/tmp/main.py", ["x"]))
print(attempt(os.rename, "/tmp/main.py", "/tmp/main"), attempt(os.rename, "/tmp/main", "/tmp/main.py"), sep="\n")`},
	{n: 21, what: "strange names", out: "ENAMETOOLONG ENAMETOOLONG ok ok ok ok 4", probe: `
names = b"a\nb", b"\xff\xfe\x80", b"-rf *", b"\xed\xa0\x80\x1b[31m"
print(attempt(os.open, "/" + "a/" * 2100, 0), attempt(os.open, "a" * 256, os.O_CREAT), *(attempt(os.open, n, os.O_CREAT) for n in names), len(os.listdir(".")))`},
	{n: 21, what: "strange names in the output", bash: `cd /tmp; : > $'a\nb\xff\x80'; ls -b; ls | od -An -c; cat $'no\xffsuch' `, end: "exited 1", out: anything, err: anything},
}

// execution: noexec, memory, other interfaces of the kernel.
var execution = []row{
	{n: 23, what: "run a program in /tmp", out: "EACCES", probe: `
import shutil
for d in "/tmp", "/dev/shm":
    shutil.copy("/bin/true", d + "/true"); os.chmod(d + "/true", 0o777)
fd = os.open("/tmp/true", os.O_RDONLY)
tally({"execve": attempt(os.execv, "/tmp/true", ["true"]), "shm": attempt(os.execv, "/dev/shm/true", ["true"]), "fexecve": attempt(os.execve, fd, ["true"], {}),
    "execveat": call("execveat", fd, "", 0, 0, 0x1000)}.items())
os.unlink("/dev/shm/true")`},
	{n: 24, what: "run it through the dynamic linker", out: `127 True`, probe: `
import shutil
shutil.copy("/bin/true", "true")
p = subprocess.run([LINK, "./true"], capture_output=True, text=True)
print(p.returncode, "failed to map segment" in p.stderr)`},
	{n: 25, what: "a script in /tmp", out: "EACCES yes", residual: "noexec means no new ELF files, not no new code: an interpreter reads its script", probe: `
open("s", "w").write("#!/bin/bash\necho yes\n"); os.chmod("s", 0o777)
print(attempt(os.execv, "./s", ["s"]), subprocess.run(["bash", "./s"], capture_output=True, text=True).stdout.strip())`},
	{n: 26, what: "shared objects in /tmp", out: "True True True", probe: `
import shutil, importlib.machinery, importlib.util, _ctypes
lib = getattr(_ctypes, "__file__", None) or "/usr/lib/python3/dist-packages/x.so"
shutil.copy(lib, "x.so")
said = []
try: ctypes.CDLL("./x.so")
except OSError as e: said.append("failed to map segment" in str(e))
said.append("failed to map segment" in subprocess.run(["/bin/true"], env={"LD_PRELOAD": os.getcwd() + "/x.so"}, capture_output=True, text=True).stderr)
try: importlib.util.module_from_spec(importlib.util.spec_from_file_location("_ctypes", "./x.so"))
except ImportError as e: said.append("failed to map segment" in str(e))
print(*said)`},
	{n: 27, what: "files without a name in memory", out: "ENOSYS", probe: `tally({"memfd_create": call("memfd_create", "x", 0), "memfd_secret": call("memfd_secret", 0)}.items())`},
	{n: 28, what: "memory that can be written and executed", out: "42", unless: amd64Only, residual: "native code in anonymous memory is what just-in-time compilers make; it meets the same filter", probe: `
print(machine(bytes.fromhex("b82a000000c3"))())`},
	{n: 30, what: "32-bit system call", end: "signaled 31", out: "before", unless: interruptOnly(true), python: by32Bit},
	{n: 30, what: "32-bit system call, where the processor has none", end: "signaled 11", out: "before", unless: interruptOnly(false), python: by32Bit},
	{n: 30, what: "x32 system call", end: "signaled 31", out: "before", unless: amd64Only, python: `
print("before", flush=True)
print(libc.syscall(0x40000000 | NR["getpid"]), ctypes.get_errno())`},
	{n: 30, what: "every 32-bit number kills", unless: interruptOnly(true), out: "-31", probe: every32Bit},
	{n: 30, what: "every 32-bit number kills, where the processor has none", unless: interruptOnly(false), out: "-11", probe: every32Bit},
	{n: 30, what: "every x32 number kills", unless: amd64Only, out: "-31", residual: "each such death, as each crash and each end at the memory limit, is a line in the host's log, whose rate the kernel limits", probe: `
def x32(n): return lambda: libc.syscall(0x40000000 | n) and 0
tally((n, child(x32(n))) for n in (1, 41, 59, 512, 520, 547))`},
	{n: 31, what: "userfaultfd", out: "ENOSYS ENOENT", probe: `print(call("userfaultfd", 1), attempt(os.open, "/dev/userfaultfd", 0))`},
	{n: 32, what: "personality", out: "EPERM\n0", probe: `
tally((hex(p), call("personality", p)) for p in (0x0040000, 0x0400000, 8, 0x0200000, 0x8000000, 4))
print(raw("personality", 0xffffffff))`},
}

// information: what can be learned of the host.
var information = []row{
	{n: 33, what: "listing of /proc", out: "self thread-self", probe: `print(*sorted(e for e in os.listdir("/proc") if not e.isdigit()))`},
	{n: 34, what: "the kernel's state", out: "ENOENT", probe: `
tally((f, attempt(os.open, "/proc/" + f, os.O_RDONLY)) for f in
      "cmdline version config.gz kallsyms modules iomem ioports kcore kmsg sched_debug timer_list interrupts softirqs diskstats locks keys key-users "
      "pressure/cpu pressure/memory filesystems partitions devices misc swaps slabinfo zoneinfo buddyinfo pagetypeinfo vmallocinfo mtrr dma cgroups".split())`},
	{n: 35, what: "the host's load and memory", out: "ENOENT", residual: "programs that read them, as free and uptime do, do not work", probe: `
tally((f, attempt(os.open, "/proc/" + f, os.O_RDONLY)) for f in "meminfo cpuinfo stat uptime loadavg vmstat".split())`},
	{n: 36, what: "the kernel's settings", out: "ENOENT", probe: `
tally((f, attempt(os.open, "/proc/sys/" + f, os.O_RDONLY)) for f in "kernel/random/boot_id kernel/random/uuid kernel/ns_last_pid kernel/core_pattern kernel/hostname vm/overcommit_memory fs/file-nr user net".split())`},
	{n: 37, what: "the kernel's switches", out: "ENOENT", probe: `tally((f, attempt(os.open, "/proc/" + f, os.O_WRONLY)) for f in "sysrq-trigger sys/kernel/core_pattern sys/kernel/modprobe acpi/wakeup bus/pci scsi/scsi irq/default_smp_affinity".split())`},
	{n: 38, what: "the first process", out: `/usr/lib/code-execution-sandbox/launcher python( own-pipes)? EACCES`, probe: `
print(*read("/proc/1/cmdline").decode().rstrip("\0").split("\0"), end=" ")
tally((f, attempt(os.open, "/proc/1/" + f, os.O_RDONLY)) for f in "environ mem maps auxv pagemap stack syscall".split() if os.path.exists("/proc/1/" + f))`},
	{n: 38, what: "links of the first process", out: `EACCES`, probe: `tally((f, attempt(os.readlink, "/proc/1/" + f)) for f in "exe cwd root fd/0 ns/net".split())`},
	{n: 38, what: "limits of the first process", out: `EPERM`, probe: `
import resource
tally((r, attempt(resource.prlimit, 1, getattr(resource, r), limits)) for r in ("RLIMIT_CPU", "RLIMIT_NOFILE") for limits in ((0, 0), (1, 1)))`},
	{n: 40, what: "cgroup", out: "/", probe: `tally((n, l.split(":")[2]) for n, l in enumerate(read("/proc/self/cgroup").decode().splitlines()))`},
	{n: 41, what: "credentials", out: `1000 1000 \[\] 0 0 0 0 0 1 2`, probe: `
s = dict(l.split(":\t", 1) for l in read("/proc/self/status").decode().splitlines() if ":\t" in l)
print(*sorted(set(s["Uid"].split())), *sorted(set(s["Gid"].split())), os.getgroups(), *(int(s[c], 16) for c in "CapInh CapPrm CapEff CapBnd CapAmb".split()), s["NoNewPrivs"], s["Seccomp"])`},
	{n: 42, what: "user ids of the host", out: "ours 65536 True", probe: `
inside, outside, size = map(int, read("/proc/self/uid_map").split())
print("ours" if inside == 0 and HOST["uid_base"] <= outside < HOST["uid_base"] + (1 << 24) and (outside - HOST["uid_base"]) % 65536 == 0 else f"{inside} {outside}", size, read("/proc/self/uid_map") == read("/proc/self/gid_map"))`},
	{n: 43, what: "visible processes", out: `1 \d+`, python: `print(*sorted(int(p) for p in os.listdir("/proc") if p.isdigit()))`},
	{n: 44, what: "/sys", out: `\[\] ENOENT`, probe: `
print(os.listdir("/sys"), end=" ")
tally((p, attempt(os.listdir, "/sys/" + p)) for p in "class/dmi class/net fs/cgroup kernel/security kernel/debug kernel/mm devices/system/cpu firmware module block".split())`},
	{n: 45, what: "kernel log", out: "EPERM", probe: `tally((t, call("syslog", t, ctypes.create_string_buffer(4096), 4096)) for t in (2, 3, 4, 10))`},
	{n: 46, what: "memory and load of the host", out: "True", residual: "sysinfo(2) tells the host's memory, load and uptime; the C library needs it, and only a second kernel would hide them", probe: `
print(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") == HOST["host_memory"] and len(os.getloadavg()) == 3)`},
	{n: 47, what: "uptime of the host", out: "True", residual: "the host's uptime: a time namespace would hide it only from the clocks, not from sysinfo(2)", probe: `
print(abs(time.clock_gettime(time.CLOCK_BOOTTIME) - HOST["boot"]) < 120)`},
	{n: 48, what: "names of the host", out: `sandbox \(none\) True`, residual: "the release of the kernel is the host's", probe: `
u = os.uname(); buffer = ctypes.create_string_buffer(65); libc.getdomainname(buffer, 65)
print(u.nodename, buffer.value.decode(), u.release == HOST["release"])`},
	{n: 49, what: "processors of the host", out: "True True", unless: amd64Only, residual: "what the processor itself tells, its clock and its caches; only a second kernel and processors of its own would hide them", probe: `
print(len(os.sched_getaffinity(0)) == HOST["host_cpus"], machine(bytes.fromhex("0f3148c1e2204809d0c3"))() != 0)`},
	{n: 50, what: "sockets and tokens of the host", out: "", probe: `
for top, dirs, names in os.walk("/"):
    if top == "/":
        dirs[:] = [d for d in dirs if d not in ("proc", "sys", "tmp")]
    for f in dirs + names:
        if f.endswith(".sock") or stat.S_ISSOCK(os.lstat(os.path.join(top, f)).st_mode) or f in ("secrets", "serviceaccount", "containerd", "docker", "kubelet", "cloud"):
            print(top, f)`},
	{n: 50, what: "names of the host in mountinfo", out: "True", residual: "/proc/self/mountinfo names the directories of the host that the root file system is made of; they hold no secret", probe: `
print("lowerdir=" in read("/proc/self/mountinfo").decode())`},
	{n: 51, what: "environment", out: "True", python: `
print(sorted(f"{k}={v}" for k, v in os.environ.items()) == sorted(HOST["environment"]) or os.environ)`},
	{n: 52, what: "names in /etc", out: `sandbox\n127.0.0.1 localhost sandbox\n::1 localhost\n\n\n\[\]`, probe: `
import pwd
print(*(read(f).decode() for f in ("/etc/hostname", "/etc/hosts", "/etc/resolv.conf")), sep="", end="\n\n")
print([p.pw_name for p in pwd.getpwall() if 1000 < p.pw_uid < 65534])`},
	{n: 53, what: "what is in the page cache", out: "(ENOTSUP|ok) ok", residual: "whether a page of the image is in the cache is visible by the time a read takes, and on file systems that know RWF_NOWAIT by preadv2", probe: `
fd = os.open("/usr/bin/bash", os.O_RDONLY); os.pread(fd, 4096, 0)
import mmap
m = mmap.mmap(fd, 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
v = ctypes.create_string_buffer(1)
print(attempt(os.preadv, fd, [bytearray(4096)], 0, os.RWF_NOWAIT), call("mincore", ctypes.addressof(ctypes.c_char.from_buffer(m)), 4096, v))`},
	{n: 54, what: "size of the host's disk", out: "True", residual: "statfs of the root file system tells that of the host's", probe: `s = os.statvfs("/"); print(s.f_blocks * s.f_frsize > 1 << 30)`},
	{n: 55, what: "core dumps", out: `-11 \[\] \(0, 0\)`, probe: `
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
print(child(lambda: os.kill(os.getpid(), 11)), os.listdir("."), resource.getrlimit(resource.RLIMIT_CORE))`},
	{n: 55, what: "core dumps on the host", test: noCoreOnTheHost, unless: func(h *host) string {
		if strings.HasPrefix(h.pattern, "|") {
			return "kernel.core_pattern is a pipe: its handler runs on the host, as root, whatever the limit"
		}
		return ""
	}},
	{n: 56, what: "network devices", out: `lo`, probe: `tally((n, l.split(":")[0].strip()) for n, l in enumerate(read("/proc/self/net/dev").decode().splitlines()[2:]))`},
	{n: 56, what: "network tables", out: `0 0 0`, probe: `
print(*(len(read("/proc/self/net/" + f).splitlines()[skip:]) if os.path.exists("/proc/self/net/" + f) else 0 for f, skip in (("tcp", 1), ("route", 1), ("arp", 1))))`},
}
