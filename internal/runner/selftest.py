# Runs in a sandbox before any program of a caller does, and prints one line
# for each protection that does not hold. Silence means that all hold. The
# server puts a line before this one that sets USERNS, whether user ids are
# mapped, and ENVIRONMENT, the list of all variables.
import ctypes, errno, os, socket, stat

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
claim("seccomp filters", status["Seccomp"] == "2")
if USERNS:
    host = int(open("/proc/self/uid_map").read().split()[1])
    claim("user ids are not the host's", host > 0)
for path in ("/", "/etc", "/usr/bin", "/var"):
    claim(f"{path} is read-only", refused(errno.EROFS)(lambda: os.open(f"{path}/x", os.O_CREAT | os.O_WRONLY)))
tmp = os.stat("/tmp")
claim("/tmp has mode 1777", stat.S_IMODE(tmp.st_mode) == 0o1777)
with open("/tmp/x", "w") as f:
    f.write("#!/bin/true\n")
os.chmod("/tmp/x", 0o700)
claim("/tmp is noexec", refused(errno.EACCES)(lambda: os.execv("/tmp/x", ["x"])))
os.unlink("/tmp/x")
others = [e for e in os.listdir("/proc") if not e.isdigit() and e not in ("self", "thread-self")]
claim("/proc shows processes only", not others)
claim("/sys is empty", not os.path.isdir("/sys") or not os.listdir("/sys"))
claim("no namespaces can be made", refused(errno.EPERM)(lambda: libc.unshare(CLONE_NEWUSER)))
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET, socket.AF_VSOCK, 38):
    claim(f"socket family {int(family)} is refused",
          refused(errno.EAFNOSUPPORT)(lambda: socket.socket(family, socket.SOCK_DGRAM).detach()))
claim("only lo exists", {l.split(":")[0].strip() for l in list(open("/proc/self/net/dev"))[2:]} <= {"lo"})
claim("the environment is ours", sorted(f"{k}={v}" for k, v in os.environ.items()) == sorted(ENVIRONMENT))
