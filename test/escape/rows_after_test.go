package escape

// persistence: what a later or another call could find.
var persistence = []row{
	{n: 168, what: "files of an earlier call", test: filesOfAnEarlierCall},
	{n: 169, what: "keys of an earlier call", test: keysOfAnEarlierCall},
	{n: 170, what: "objects of an earlier call", test: objectsOfAnEarlierCall},
	{n: 171, what: "processes of an earlier call", test: processesOfAnEarlierCall},
	{n: 172, what: "two calls at once", test: twoCalls},
	{n: 173, what: "the files of the image", test: imageOnDisk},
	{n: 174, what: "ranges of user ids", test: rangesOfIDs},
	{n: 175, what: "names that could be guessed", test: names},
	{n: 176, what: "what is left after the end", test: nothingLeft},
	{n: 177, what: "caches of the processor", unless: never("a time measured on a shared processor proves nothing; residual: only cores of their own would separate neighbours")},
	{n: 178, what: "access times of the image", out: "True", probe: `
a = os.stat("/usr/bin/env"); read("/usr/bin/env"); b = os.stat("/usr/bin/env")
print(a.st_atime_ns == b.st_atime_ns and a.st_ctime_ns == b.st_ctime_ns)`},
	{n: 180, what: "crashes of an earlier call", test: crashesOfAnEarlierCall},
}

// python: the interpreter.
var python = []row{
	{n: 181, what: "customization by files", out: "clean", probe: `
for d in ".", "/tmp", "/tmp/.local/lib/python3.13/site-packages":
    os.makedirs(d, exist_ok=True)
    for f in "sitecustomize.py", "usercustomize.py": open(f"{d}/{f}", "w").write("print('loaded')")
    open(f"{d}/x.pth", "w").write("import sys; print('loaded')\n")
p = subprocess.run(["python3", "-I", "-c", "print('clean')"], capture_output=True, text=True, env={"HOME": "/tmp", "PYTHONSTARTUP": "/tmp/usercustomize.py"})
for f in "sitecustomize.py", "usercustomize.py", "x.pth": os.unlink("/tmp/" + f)
print(p.stdout.strip())`},
	{n: 182, what: "a module named like one of the library", out: `\{\}`, python: bare + `
for m in "json", "random", "string", "socket": open(f"/tmp/{m}.py", "w").write("raise SystemExit(9)")
import json, random, string, socket
print(json.dumps({}))`},
	{n: 183, what: "byte code", out: `\['m.py', 'main.py'\]`, python: bare + `
import os, warnings
open("m.py", "w").write("x = 1"); warnings.simplefilter("error")
import m, email, http.server, sqlite3
print(sorted(os.listdir("/tmp")))`},
	{n: 184, what: "end without flushing", end: "exited 3", out: "seen", python: bare + `
import os, sys
print("seen"); f = open(1, "w", closefd=False); f.write("unseen"); os._exit(3)`},
	{n: 185, what: "threads that stay", end: "timed_out", seconds: 1, python: bare + `import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()`},
	{n: 185, what: "exit functions that stay", end: "timed_out", seconds: 1, out: "", python: bare + `
import atexit
def loop():
    while True: pass
atexit.register(loop)`},
	{n: 187, what: "a read of address 0", end: "signaled 11", err: anything, python: bare + `import faulthandler, ctypes; faulthandler.enable(); ctypes.string_at(0)`},
	{n: 187, what: "tracing and the garbage collector", out: "ok", python: bare + `
import gc, sys
gc.unfreeze() # what the interpreter made before the program too
sys.settrace(lambda *a: None); gc.set_threshold(1); gc.collect()
for o in gc.get_objects()[:20000]: str(type(o))
sys.settrace(None); print("ok")`},
	{n: 188, what: "recursion without a limit", end: `signaled (6|11)|out_of_memory|exited 1|timed_out`, err: anything, python: bare + `
import sys
sys.setrecursionlimit(10**7)
def f(): f()
f()`},
	{n: 189, what: "a lone surrogate that stands for a byte", out: `.`, python: bare + `print(chr(56550))`},
	{n: 189, what: "any other lone surrogate", end: "exited 1", err: `.*UnicodeEncodeError.*`, python: bare + `print(chr(0xd800))`},
	{n: 190, what: "bytes that are no text", test: bytesArrive(190)},
	{n: 191, what: "multiprocessing", out: `fork \[1, 4\] 7\nspawn \[1, 4\] 7\nforkserver \[1, 4\] 7`, python: bare + `
import multiprocessing as mp
from multiprocessing.shared_memory import SharedMemory
def square(x): return x * x
def mark(name): s = SharedMemory(name); s.buf[0] = 7; s.close()
if __name__ == "__main__":
    for method in "fork", "spawn", "forkserver":
        c = mp.get_context(method); s = SharedMemory(create=True, size=4096)
        with c.Pool(2) as p: r = p.map(square, [1, 2])
        q = c.Process(target=mark, args=(s.name,)); q.start(); q.join()
        print(method, r, s.buf[0]); s.close(); s.unlink()`},
	{n: 192, what: "asyncio", out: "x 3", python: bare + `
import asyncio
async def main():
    p = await asyncio.create_subprocess_exec("sh", "-c", "echo x; exit 3", stdout=asyncio.subprocess.PIPE)
    print((await p.communicate())[0].decode().strip(), p.returncode)
asyncio.run(main())`},
	{n: 193, what: "network modules", out: "97 97 True [1-9].*", python: bare + `
import http.server, socket, ssl, urllib.request
try: http.server.HTTPServer(("", 0), None)
except OSError as e: print(e.errno, end=" ")
try: urllib.request.urlopen("http://127.0.0.1/", timeout=2)
except OSError as e: print(getattr(e.reason, "errno", e.reason), end=" ")
print(isinstance(ssl.create_default_context(), ssl.SSLContext), len(ssl.create_default_context().get_ca_certs()))`},
	{n: 194, what: "input from nothing", end: "exited 1", err: `.*EOFError.*`, python: bare + `input()`},
	{n: 196, what: "long numbers and nested pickles", end: "exited 0", out: "ValueError", err: anything, python: bare + `
import pickle
try: str(1 << 10**6)
except ValueError: print("ValueError")
try: pickle.loads(b"(" * 10**6)
except Exception: pass`},
	{n: 197, what: "SIGINT to itself", end: `exited 130|signaled 2`, err: `.*KeyboardInterrupt.*`, python: bare + `import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(5)`},
	{n: 197, what: "an alarm", end: `signaled 14`, python: bare + `import signal, time; signal.alarm(1); time.sleep(5)`},
	{n: 198, what: "traceback", end: "exited 1", err: `Traceback \(most recent call last\):\n  File "/tmp/main.py", line 2, in <module>\n    1/0\n    ~\^~\nZeroDivisionError: division by zero`, python: bare + `1/0`},
}

// shell: bash.
var shell = []row{
	{n: 199, what: "traps that stay", end: "timed_out", seconds: 1, bash: `trap '' TERM INT HUP; trap 'sleep 99' EXIT; sleep 60`},
	{n: 200, what: "job control", seconds: 5, out: "(.*\n)?end", err: anything, bash: `set -m; sleep 0.1 & fg; sleep 0.1 & bg; wait; echo end`},
	{n: 201, what: "set -e", end: "exited 1", bash: "set -e\nfalse\necho no"},
	{n: 201, what: "set -u", end: "exited 1", err: `.*unbound variable`, bash: `set -u; echo $nope`},
	{n: 201, what: "pipefail", end: "exited 3", bash: `set -o pipefail; (exit 3) | true`},
	{n: 203, what: "exchanged streams", out: "to stdout", err: "to stderr", bash: `exec 3>&1 1>&2 2>&3; echo to stderr; echo to stdout >&2`},
	{n: 204, what: "here-documents, substitution, coproc", out: "a\nb\nc\nd", bash: "cat <<X\na\nX\ncat <<< b\ncat <(echo c)\ncoproc cat; echo d >&${COPROC[1]}; exec {COPROC[1]}>&-; cat <&${COPROC[0]}", err: anything},
	{n: 205, what: "what is left in the background", out: "end", bash: `nohup sleep 60 >/dev/null 2>&1 & (while :; do sleep 1; done) & disown -a; echo end`},
	{n: 206, what: "the classic", seconds: 2, end: `timed_out|exited \d+|signaled 9|out_of_memory`, out: anything, err: anything, bash: `:(){ :|:& };:; sleep 60`},
	{n: 207, what: "/dev/stdin and its like", out: "in\nfd\nself\nout", stdin: "in\n", err: "err", bash: `cat /dev/stdin; cat /dev/fd/3 3<<<fd; cat /proc/self/fd/4 4<<<self; echo out > /dev/stdout; echo err > /dev/stderr`},
	{n: 208, what: "read from nothing", out: "1", bash: `read x; echo $?; cat`},
	{n: 209, what: "exit 256", bash: `exit 256`},
	{n: 209, what: "exit abc", end: "exited 2", err: `.*numeric argument required`, bash: `exit abc`},
	{n: 209, what: "return at the top", end: "exited 0", err: ".*can only `return' .*", out: "on", bash: `return 5; echo on`},
	{n: 211, what: "NUL in the program", end: `exited \d+`, out: anything, err: anything, bash: "echo a\x00b\necho c"},
	{n: 211, what: "carriage returns", end: `exited \d+`, out: anything, err: anything, bash: "echo a\r\nif true; then\r\necho b\r\nfi\r\n"},
	{n: 211, what: "no final newline", out: "x", bash: `echo x`},
	{n: 211, what: "10 MB", test: tooLong},
	{n: 212, what: "ulimit -a", test: ulimits},
}
