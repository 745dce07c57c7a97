"""Lets a booted interpreter wait for its program.

The launcher starts "python3 -X launcher /tmp/main.py" before that file exists.
The interpreter imports this module as the last step of its start-up, just
before it opens the file: here it says that it is ready and waits at the gate
until the launcher has written the program. Then it goes on by itself, so the
program is an ordinary main script, with no frame of ours below it.

"-X launcher=numpy,pandas" imports these modules first.

Any other interpreter in the sandbox finds nothing to do here.
"""

import sys


def _preload(names):
    """Imports modules whose own words are nobody's output."""
    import importlib
    import os

    streams = os.dup(1), os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    failure = None
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as e:
            failure = f"pool.preload: {name}: {type(e).__name__}: {e}\n"
            break
    for to, stream in enumerate(streams, 1):
        os.dup2(stream, to)
        os.close(stream)
    os.close(null)
    if failure:
        os.write(2, failure.encode())
        os._exit(121)


_launched = sys._xoptions.pop("launcher", None)
if _launched:
    if _launched is not True:
        _preload(_launched.split(","))
    import gc
    import os

    # What the interpreter has made for itself lives until its end: the collector
    # need not go through it again and again, least of all at the end, where each
    # call waits for it. Measured: 0.6 of the 8.1 ms of "print(1)".
    gc.freeze()
    # The module that becomes the program must not be among it: the objects in it
    # are finalized at the end only if the collector sees all that they hang on.
    _main = type(sys)("__main__")
    vars(_main).update(vars(sys.modules["__main__"]))
    if "__annotations__" in vars(_main):
        _main.__annotations__ = {}
    sys.modules["__main__"] = _main
    del _main
    os.write(1, b"R")
    if os.read(3, 1) != b"G":
        os._exit(120)
    os.close(3)
    # Modules that a program writes beside itself can be imported, but cannot
    # stand in for a module of the library.
    sys.path.append("/tmp")
