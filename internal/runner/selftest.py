# Runs in a sandbox before any program of a caller does, and prints one line
# for each protection that does not hold, and "proven" at its end. The
# server puts a line before this one that sets FACTS: userns, whether user ids
# are mapped; environment, the list of all variables; arch; pids, the limit of
# processes and threads; profile, the AppArmor profile or ""; gvisor, whether
# programs run on gVisor's kernel, which keeps most doors of its own open, since
# they lead to nothing of the host's.
import _thread, ctypes, errno, mmap, os, signal, socket, stat, sys, threading

libc = ctypes.CDLL(None, use_errno=True)
status = dict(l.rstrip("\n").split(":\t", 1) for l in open("/proc/self/status") if ":\t" in l)
CLONE_NEWUSER = 0x10000000


def refused(*allowed):
    """Whether the last thing tried fails with one of these errors."""

    def check(act):
        ctypes.set_errno(0)
        try:
            got = act()
        except OSError as e:
            return e.errno in allowed
        return got == -1 and ctypes.get_errno() in allowed

    return check


def claim(name, holds):
    if not holds:
        print(name)


claim("user is not root", set(status["Uid"].split() + status["Gid"].split()) == {"1000"})
claim("no supplementary groups", set(status["Groups"].split()) <= {"1000"})
for caps in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
    claim(f"{caps} is empty", int(status[caps], 16) == 0)
claim("no_new_privs is set", status["NoNewPrivs"] == "1")
if FACTS["gvisor"]:
    claim("the kernel is gVisor's", os.path.isdir("/proc/gvisor"))
else:
    claim("seccomp filters", status["Seccomp"] == "2")
if FACTS["userns"] and not FACTS["gvisor"]:
    host = int(open("/proc/self/uid_map").read().split()[1])
    claim("user ids are not the host's", host > 0)
for path in ("/", "/etc", "/usr/bin", "/var"):
    claim(f"{path} is read-only", refused(errno.EACCES if FACTS["gvisor"] else errno.EROFS)(lambda: os.open(f"{path}/x", os.O_CREAT | os.O_WRONLY)))
tmp = os.stat("/tmp")
claim("/tmp has mode 1777", stat.S_IMODE(tmp.st_mode) == 0o1777)
with open("/tmp/x", "w") as f:
    f.write("#!/bin/true\n")
os.chmod("/tmp/x", 0o700)
# In a child, which it would otherwise become.
pid = os.fork()
if pid == 0:
    os._exit(7 if refused(errno.EACCES)(lambda: os.execv("/tmp/x", ["x"])) else 0)
claim("/tmp is noexec", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7)
os.unlink("/tmp/x")
claim("only lo exists", {l.split(":")[0].strip() for l in list(open("/proc/self/net/dev"))[2:]} <= {"lo"})
claim("the environment is ours", sorted(f"{k}={v}" for k, v in os.environ.items()) == sorted(FACTS["environment"]))
if FACTS["profile"]:
    current = "/proc/self/attr/apparmor/current"
    if not os.path.exists(current):
        current = "/proc/self/attr/current"
    # Debian's own profile of crun, which allows everything, stays in a stack with
    # ours: "ours//&crun (mixed)".
    label, _, mode = open(current).read().strip().rpartition(" ")
    claim("AppArmor confines", FACTS["profile"] in label.split("//&") and mode in ("(enforce)", "(mixed)"))

for family, address in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
    claim(f"no way out by socket family {int(family)}",
          refused(errno.EAFNOSUPPORT, errno.ENETUNREACH)(lambda: socket.socket(family, socket.SOCK_DGRAM).connect((address, 53))))
if FACTS["gvisor"]:
    print("proven", flush=True)
    os._exit(0)

# What follows is refused by the mounts and by the system call filter.
others = [e for e in os.listdir("/proc") if not e.isdigit() and e not in ("self", "thread-self")]
claim("/proc shows processes only", not others)
claim("/sys is empty", not os.path.isdir("/sys") or not os.listdir("/sys"))
claim("no namespaces can be made", refused(errno.EPERM)(lambda: libc.unshare(CLONE_NEWUSER)))
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET, socket.AF_VSOCK, 38):
    claim(f"socket family {int(family)} is refused",
          refused(errno.EAFNOSUPPORT)(lambda: socket.socket(family, socket.SOCK_DGRAM).detach()))
# One call for each door that the system call filter keeps shut by a rule of its
# own. None of them would do any harm.
for name, answer, call in (
    ("ptrace", errno.EPERM, lambda: libc.ptrace(0, 0, 0, 0)),
    ("mount", errno.EPERM, lambda: libc.mount(b"x", b"/tmp", b"tmpfs", 0, 0)),
    ("personality", errno.EPERM, lambda: libc.personality(0x0040000)),
    ("splice", errno.ENOSYS, lambda: libc.splice(-1, 0, -1, 0, 1, 0)),
    ("memfd_create", errno.ENOSYS, lambda: libc.memfd_create(b"x", 0)),
    ("shmget", errno.ENOSYS, lambda: libc.shmget(0, 1, 0)),
):
    claim(f"{name} is refused", refused(answer)(call))


def killed(act, *signals):
    """Whether the kernel ends a child that tries this with one of the signals."""
    pid = os.fork()
    if pid == 0:
        act()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) in [-s for s in signals]


def by_interrupt():
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20 (getpid); int 0x80; ret
    ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()


if FACTS["arch"] == "amd64":
    # Some processors, real and virtual, have no such interrupt at all.
    claim("32-bit system calls kill", killed(by_interrupt, signal.SIGSYS, signal.SIGSEGV))
    claim("x32 system calls kill", killed(lambda: libc.syscall(0x40000000 | 39), signal.SIGSYS))  # getpid

# A denied signal would be noticed only at the end of a program that leaves
# something behind: by its time limit.
pid = os.fork()
if pid == 0:
    signal.pause()
    os._exit(0)
try:
    os.kill(pid, signal.SIGKILL)
except OSError:
    print("a child can be ended", flush=True)
else:
    claim("a child can be ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL)

# More threads than there may be. With very many the time and the memory that
# they take would be the test; the limit itself is looked at from outside.
if FACTS["pids"] <= 1024:
    threading.stack_size(64 << 10)
    gate, threads = threading.Lock(), 0
    gate.acquire()
    try:
        while threads <= FACTS["pids"]:
            _thread.start_new_thread(gate.acquire, ())
            threads += 1
    except RuntimeError:
        pass
    claim("the number of threads is limited", threads < FACTS["pids"])
print("proven", flush=True)
os._exit(0)  # the threads wait for ever
