# Runs the probes that stand on standard input, each in a process and a
# directory of its own, and prints a line of JSON for each.
import shutil

for key, code in json.load(sys.stdin):
    os.makedirs(f"/tmp/{key}")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.close(reader)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        os.close(writer)
        os.chdir(f"/tmp/{key}")
        status = 1
        try:
            exec(compile(code, key, "exec"), dict(globals()))
            status = 0
        except BaseException as e:
            print(f"{type(e).__name__}: {e}")
        finally:
            sys.stdout.flush()
            os._exit(status)
    os.close(writer)
    out, end = b"", time.monotonic() + 10
    while (left := end - time.monotonic()) > 0 and select.select([reader], [], [], left)[0]:
        got = os.read(reader, 65536)
        if not got:
            break
        out += got
    else:
        out += b"\n(not ended after 10 s)"
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(reader)
    shutil.rmtree(f"/tmp/{key}", ignore_errors=True)
    out = out.decode(errors="replace").strip()
    print(json.dumps([key, out if code in (0, -9) else f"{out} (status {code})"]), flush=True)
