import ctypes, errno, json, os, resource, select, signal, socket, stat, subprocess, sys, threading, time

NR = {}  # numbers of the system calls
HOST = {}  # what the test knows of the host and of the limits in force
libc = ctypes.CDLL(None, use_errno=True)
LINK = {"amd64": "/lib64/ld-linux-x86-64.so.2", "arm64": "/lib/ld-linux-aarch64.so.1"}.get(HOST.get("arch"))


def attempt(act, *args, **keywords):
    """The answer of the kernel: ok, or the name of the error."""
    try:
        act(*args, **keywords)
    except OSError as e:
        return errno.errorcode.get(e.errno, str(e.errno))
    return "ok"


def raw(name, *args):
    """A system call without the C library: its value, or an OSError."""
    args = [a.encode() + b"\0" if isinstance(a, str) else a for a in args]
    ctypes.set_errno(0)
    value = libc.syscall(ctypes.c_long(NR[name]), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    if value == -1:
        raise OSError(ctypes.get_errno(), name)
    return value


def call(name, *args):
    return attempt(raw, name, *args)


def tally(answers):
    """Prints one answer when all are the same, else each with its items."""
    by = {}
    for item, answer in answers:
        by.setdefault(answer, []).append(str(item))
    if len(by) == 1:
        print(*by)
    else:
        print("; ".join(f"{answer}: {' '.join(items)}" for answer, items in sorted(by.items())))


def read(path):
    with open(path, "rb") as f:
        return f.read()


def until(act, *args, most=1 << 20):
    """How often act succeeds, and the error that ends it."""
    kept = []
    for n in range(most):
        try:
            kept.append(act(*args))
        except OSError as e:
            return n, errno.errorcode[e.errno]
    return most, "ok"


def child(act):
    """The wait status of a child that does act: an exit code, or -signal."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = act() or 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def machine(code):
    """A function of native code, in anonymous memory."""
    import mmap
    m = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    m.write(code)
    f = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(m)))
    f.memory = m
    return f


def flag():
    """Shows the test outside that this point is reached: ten more processes."""
    for _ in range(10):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
    sys.stdout.flush()
