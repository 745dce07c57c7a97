"""Lets a booted interpreter wait for its program.

The launcher starts "python3 -X launcher /tmp/main.py" before that file exists.
The interpreter imports this module as the last step of its start-up, just
before it opens the file: here it says that it is ready and waits at the gate
until the launcher has written the program. Then it goes on by itself, so the
program is an ordinary main script, with no frame of ours below it.

Any other interpreter in the sandbox finds nothing to do here.
"""

import sys

if sys._xoptions.pop("launcher", False):
    import os

    os.write(1, b"R")
    if os.read(3, 1) != b"G":
        os._exit(120)
    os.close(3)
    # Modules that a program writes beside itself can be imported, but cannot
    # stand in for a module of the library.
    sys.path.append("/tmp")
