package escape

// network: sockets, and what else could carry a word to somebody.
var network = []row{
	{n: 57, what: "sockets of every family", out: `EAFNOSUPPORT\nok`, probe: `
tally(((f, t), attempt(lambda: socket.socket(f, t).close())) for f in [*range(51), 100] if f != 1 for t in (1, 2, 3, 4, 5))
tally((t, attempt(lambda: socket.socket(1, t).close())) for t in (1, 2, 5))`},
	{n: 57, what: "pairs of sockets of every family", out: `EAFNOSUPPORT\nok`, probe: `
pair = ctypes.create_string_buffer(8)
tally(((f, t), call("socketpair", f, t, 0, pair)) for f in [*range(51), 100, 1 << 32 | 2, -1] if f != 1 for t in (1, 2, 5))
tally((t, call("socketpair", 1, t, 0, pair)) for t in (1, 2, 5))`},
	{n: 58, what: "TCP and UDP", out: "EAFNOSUPPORT", probe: `
def connect(address, kind):
    s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind)
    s.settimeout(1); s.connect((address, 80))
tally(((a, k), attempt(connect, a, k)) for a in ("127.0.0.1", "::1", "169.254.169.254", "172.17.0.1", "10.0.0.1", "192.0.2.1") for k in (1, 2))`},
	{n: 60, what: "bash's own sockets", out: "1 1", err: `(/tmp/main.sh: [^\n]*Address family not supported by protocol\n?){4}`, bash: `(: < /dev/tcp/127.0.0.1/80); a=$?; (echo x > /dev/udp/169.254.169.254/53); echo $a $?`},
	{n: 61, what: "the host past the network: AF_VSOCK", out: "EAFNOSUPPORT", probe: `
def vsock(): socket.socket(40, socket.SOCK_STREAM).connect((2, 1024))
print(attempt(vsock))`},
	{n: 62, what: "AF_NETLINK", out: "EAFNOSUPPORT", probe: `tally((p, attempt(lambda: socket.socket(16, 3, p))) for p in (0, 6, 9, 12, 15, 16))`},
	{n: 63, what: "abstract sockets of the host", out: "ECONNREFUSED", probe: `
def connect(name): socket.socket(1).connect(name)
tally((n, attempt(connect, b"\0" + n)) for n in (b"/containerd-shim/default/x/shim.sock", b"/tmp/.X11-unix/X0", b"/tmp/dbus-x", b"snapd", b"/org/freedesktop/systemd1/notify"))`},
	{n: 64, what: "abstract sockets of a neighbour", test: neighbourAbstract},
	{n: 65, what: "sockets in /tmp", out: `\[\]`, probe: `
found = [os.path.join(t, f) for top in ("/tmp", "/dev/shm", "/run", "/var") for t, _, fs in os.walk(top) for f in fs if stat.S_ISSOCK(os.lstat(os.path.join(t, f)).st_mode)]
print(found)`},
	{n: 67, what: "System V objects", out: "ENOSYS", probe: `
tally((c, call(c, 0, 1, 0o1666)) for c in "shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv msgctl".split())`},
	{n: 68, what: "POSIX message queues", out: "ENOSYS", probe: `tally((c, call(c, "x", 0o102, 0o600, 0)) for c in "mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr".split())`},
	{n: 69, what: "POSIX shared memory", out: `ok ENOSPC -7`, probe: `
def make(size):
    fd = os.open(f"/dev/shm/{size}", os.O_CREAT | os.O_RDWR); os.posix_fallocate(fd, 0, size)
def touch():
    import mmap
    fd = os.open("/dev/shm/y", os.O_CREAT | os.O_RDWR); os.ftruncate(fd, 2 * HOST["shm"])
    m = mmap.mmap(fd, 2 * HOST["shm"])
    for i in range(0, len(m), 4096): m[i] = 1
print(attempt(make, HOST["shm"] // 2), attempt(make, HOST["shm"] * 2), child(touch))
for f in os.listdir("/dev/shm"): os.unlink("/dev/shm/" + f)`},
	{n: 70, what: "io_uring and aio", out: "ENOSYS", probe: `tally((c, call(c, 1, 0, 0, 0)) for c in "io_uring_setup io_uring_enter io_uring_register io_setup io_submit io_getevents io_destroy".split())`},
	{n: 71, what: "ping, raw and packet sockets", out: "EAFNOSUPPORT", probe: `
tally((a, attempt(socket.socket, *a)) for a in ((2, 2, 1), (2, 3, 1), (2, 3, 255), (10, 2, 58), (10, 3, 58), (17, 3, 768), (17, 2, 768)))`},
	{n: 72, what: "a socket that was passed in", out: `\[\]`, probe: `
print([l for l in (os.readlink(f"/proc/self/fd/{f}") for f in (0, 1, 2)) if l.startswith("socket")])`},
	{n: 74, what: "memory in socket buffers", end: "out_of_memory|exited 0", out: anything, seconds: 20, python: `
pairs = []
n, error = until(lambda: pairs.append(socket.socketpair(1, 2)), most=480)
total = 0
for p in pairs:
    for s in p:
        s.setblocking(False)
        for o in (socket.SO_SNDBUF, socket.SO_RCVBUF): s.setsockopt(socket.SOL_SOCKET, o, 1 << 30)
        try:
            while True: total += s.send(bytes(60000))
        except OSError as e:
            error = errno.errorcode[e.errno]
print(total < HOST["memory"], error)`},
}

const lessLikelyKilled = `
def adjust(n): os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY), str(n).encode())
print(attempt(adjust, -500), attempt(adjust, 0))`

// privilege: more rights, and what needs them.
var privilege = []row{
	{n: 75, what: "new namespaces", out: "EPERM\nEPERM", probe: `
flags = {"NS": 0x20000, "CGROUP": 0x2000000, "UTS": 0x4000000, "IPC": 0x8000000, "USER": 0x10000000, "PID": 0x20000000, "NET": 0x40000000, "TIME": 0x80}
tally((n, call("unshare", f)) for n, f in flags.items())
def clone(f):
    if raw("clone", f | 17, 0, 0, 0, 0) == 0: os._exit(0)
tally((n, attempt(clone, f)) for n, f in [*flags.items(), ("USER+NS", 0x10020000), ("high", 1 << 32 | 0x10000000)] if n != "TIME")`},
	{n: 76, what: "clone3, and what falls back from it", out: "ENOSYS 5 x", probe: `
seen = []
t = [threading.Thread(target=seen.append, args=(1,)) for _ in range(5)]
[x.start() for x in t]; [x.join() for x in t]
sys.stdout.flush()
print(call("clone3", ctypes.create_string_buffer(88), 88), len(seen), subprocess.run(["echo", "x"], capture_output=True, text=True).stdout.strip())`},
	{n: 77, what: "join namespaces", out: "EACCES\nEPERM", probe: `
tally((n, attempt(os.open, f"/proc/1/ns/{n}", os.O_RDONLY)) for n in os.listdir("/proc/self/ns"))
tally((n, call("setns", os.open(f"/proc/self/ns/{n}", os.O_RDONLY), 0)) for n in os.listdir("/proc/self/ns"))`},
	{n: 78, what: "other ids and capabilities", out: "EPERM", probe: `
header = struct = ctypes.create_string_buffer(b"\x22\x05\x08\x20\0\0\0\0", 8); everything = ctypes.create_string_buffer(b"\xff" * 24, 24)
tally({"setuid": call("setuid", 0), "setgid": call("setgid", 0), "setreuid": call("setreuid", 0, 0), "setresuid": call("setresuid", 0, 0, 0), "setresgid": call("setresgid", 0, 0, 0),
    "setgroups": attempt(os.setgroups, [0]), "capset": call("capset", header, everything), "setuid 1001": call("setuid", 1001), "setfsuid": call("setfsuid", 0)}.items())`},
	{n: 79, what: "a setuid program", test: setuidProgram},
	{n: 80, what: "a program with capabilities", test: capableProgram},
	{n: 81, what: "programs that want to be root", out: "", err: anything, bash: `
for c in sudo su mount ping passwd chsh unshare; do
  command -v $c > /dev/null || continue
  case $c in mount) set -- -t tmpfs x /mnt;; unshare) set -- -r true;; su) set -- -c true;; *) set --;; esac
  $c "$@" < /dev/null > /dev/null && echo $c works
done; exit 0`},
	{n: 83, what: "to be traced, then a signal", out: "EPERM", end: "signaled 5", python: `
print(call("ptrace", 0, 0, 0, 0), flush=True)
os.kill(os.getpid(), signal.SIGTRAP)`},
	{n: 83, what: "to be traced, then a stop", out: "EPERM", end: "timed_out", seconds: 1, python: `
print(call("ptrace", 0, 0, 0, 0), flush=True)
os.kill(os.getpid(), signal.SIGSTOP)`},
	{n: 84, what: "into other processes", out: "EPERM", probe: `
pid = os.fork()
if pid == 0: time.sleep(30); os._exit(0)
io = (ctypes.c_long * 2)(ctypes.addressof(ctypes.create_string_buffer(8)), 8)
tally({"readv": call("process_vm_readv", pid, io, 1, io, 1, 0), "writev": call("process_vm_writev", pid, io, 1, io, 1, 0), "kcmp": call("kcmp", pid, os.getpid(), 0, 0, 0),
    "getfd": call("pidfd_getfd", os.pidfd_open(pid), 0, 0), "seize": call("ptrace", 0x4206, pid, 0, 0), "attach": call("ptrace", 16, pid, 0, 0), "madvise": call("process_madvise", os.pidfd_open(pid), io, 1, 20, 0)}.items())
sys.stdout.flush(); os.kill(pid, 9)`},
	{n: 84, what: "memory of the first process and of a sibling", out: "EACCES", probe: `tally((f, attempt(os.open, "/proc/1/" + f, os.O_RDWR)) for f in ("mem", "clear_refs"))`},
	{n: 85, what: "keyrings", out: "ENOSYS", probe: `
tally({"add": call("add_key", "user", "x", "y", 1, -4), "request": call("request_key", "user", "x", 0, -4), "get": call("keyctl", 0, -4, 1), "persistent": call("keyctl", 22, -1, -4)}.items())`},
	{n: 86, what: "bpf and perf", out: "EPERM", probe: `
a = ctypes.create_string_buffer(128)
tally({"bpf": call("bpf", 0, a, 128), "perf": call("perf_event_open", a, 0, -1, -1, 0)}.items())`},
	{n: 87, what: "modules, boot, swap, accounting", out: "EPERM", probe: `
tally((c, call(c, 0, 0, 0, 0, 0)) for c in "init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff acct quotactl quotactl_fd vhangup".split())`},
	{n: 88, what: "ports and segments", out: "EPERM", unless: amd64Only, probe: `tally({"iopl": call("iopl", 3), "ioperm": call("ioperm", 0x80, 1, 1), "modify_ldt": call("modify_ldt", 1, ctypes.create_string_buffer(16), 16)}.items())`},
	{n: 89, what: "host and domain name", out: "EPERM", probe: `tally({"host": call("sethostname", "x", 1), "domain": call("setdomainname", "x", 1)}.items())`},
	{n: 90, what: "set the clocks", out: "EPERM\n1", probe: `
now = ctypes.create_string_buffer(256)
tally({"settimeofday": call("settimeofday", now, 0), "clock_settime": call("clock_settime", 0, now), "adjtimex": call("adjtimex", now), "clock_adjtime": call("clock_adjtime", 0, now)}.items())
print(subprocess.run(["date", "-s", "2000-01-01"], capture_output=True).returncode)`},
	{n: 91, what: "protection from the host's memory shortage", out: "EACCES EACCES", unless: resourceOnly(true), probe: lessLikelyKilled},
	{n: 91, what: "protection from the host's memory shortage, where the runtime cannot keep it", out: "EACCES ok", unless: resourceOnly(false), residual: "a program can lower its oom_score_adj to 0, as every other process of the host has it, but not below", probe: lessLikelyKilled},
	{n: 92, what: "write the id maps", out: "E(PERM|ACCES): .*|EPERM|EACCES", probe: `
def write(f, what): fd = os.open("/proc/self/" + f, os.O_WRONLY); os.write(fd, what)
tally({"uid_map": attempt(write, "uid_map", b"0 0 1"), "gid_map": attempt(write, "gid_map", b"0 0 1"), "setgroups": attempt(write, "setgroups", b"allow"), "projid_map": attempt(write, "projid_map", b"0 0 1")}.items())`},
	{n: 93, what: "priorities", out: "E(PERM|ACCES): .*|EPERM|EACCES", probe: `
tally({"nice": attempt(os.nice, -20), "setpriority": attempt(os.setpriority, 0, 0, -5), "fifo": attempt(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1)),
    "rr": attempt(os.sched_setscheduler, 0, os.SCHED_RR, os.sched_param(1)), "io": call("ioprio_set", 1, 0, 1 << 13 | 4),
    "deadline": call("sched_setattr", 0, (ctypes.c_uint64 * 6)(48 | 6 << 32, 0, 0, 10**7, 10**8, 10**8), 0)}.items())`},
	{n: 94, what: "raise a limit", out: "EPERM", probe: `
def lift(l):
    try: resource.setrlimit(l, (1 << 40, 1 << 40))
    except ValueError: raise OSError(errno.EPERM, "")
tally((l, attempt(lift, l)) for l in (resource.RLIMIT_CORE, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_NICE,
      resource.RLIMIT_NOFILE, resource.RLIMIT_RTPRIO, resource.RLIMIT_SIGPENDING, resource.RLIMIT_STACK))`},
	{n: 95, what: "lock memory", out: "ENOMEM ENOMEM ok", probe: `
b = ctypes.create_string_buffer(1 << 20)
print(call("mlockall", 3), call("mlock", ctypes.addressof(b), 1 << 20), call("mlock", ctypes.addressof(b), 8192))`},
	{n: 96, what: "write into a terminal", out: "ENOTTY", python: `
import fcntl
tally(((fd, hex(r)), attempt(fcntl.ioctl, fd, r, b"x")) for fd in (0, 1, 2) for r in (0x5412, 0x541C, 0x5401, 0x540E))`},
	{n: 97, what: "filters of its own", out: `0 ENOSYS EPERM EPERM`, probe: `
program = (ctypes.c_uint64 * 1)(0x7fff0000 << 32 | 6)  # return SECCOMP_RET_ALLOW
fprog = (ctypes.c_uint64 * 2)(1, ctypes.addressof(program))
print(*until(lambda: raw("seccomp", 1, 0, fprog), most=200), call("prctl", 22, 2, fprog), call("unshare", 0x10000000))`},
	{n: 98, what: "every system call", test: everySyscall},
	{n: 98, what: "locks that hand on a priority", out: "ENOSYS\nETIMEDOUT ok", probe: `
value = ctypes.c_uint32(); word = other = ctypes.byref(value); t = (ctypes.c_long * 2)(0, 1000)
tally(((c, f), call("futex", word, c | f, 0, t, other, 0)) for c in (6, 7, 8, 11, 12, 13) for f in (0, 128, 256, 384))
print(call("futex", word, 128, 0, t), call("futex", word, 129, 1))`},
	{n: 99, what: "confine itself with landlock", out: `([1-9]\d* )?(ok|ENOSYS|EOPNOTSUPP)`, probe: `
try: print(raw("landlock_create_ruleset", 0, 0, 1), call("landlock_create_ruleset", (ctypes.c_uint64 * 1)(1), 8, 0))
except OSError as e: print(errno.errorcode[e.errno])`},
	{n: 100, what: "prctl", out: "EPERM", probe: `
tally((o, call("prctl", *o)) for o in ((35, 1, 0, 0, 0), (35, 14, 0, 0, 0), (28, 1, 0, 0, 0), (47, 2, 0, 0, 0), (47, 4, 0, 0, 0), (62, 1, 0, 1, 0), (0x59616d61, -1, 0, 0, 0), (8, 1, 0, 0, 0), (24, 1, 0, 0, 0)))`},
	{n: 101, what: "change the profile of a security module", out: "EINVAL|EACCES|EPERM|ENOENT|ENOENT: .*", probe: `
def write(f): fd = os.open("/proc/self/attr/" + f, os.O_WRONLY); os.write(fd, b"changeprofile unconfined")
tally((f, attempt(write, f)) for f in ("current", "exec", "apparmor/current") if os.path.exists("/proc/self/attr/" + f)) if os.path.exists("/proc/self/attr") else print("ENOENT")`},
}
