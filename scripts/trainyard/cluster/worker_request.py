"""Asks the parent of the workers to fork a worker. Ray runs this file as a program to start one.

python -I -S worker_request.py SOCKET default_worker.py OPTIONS ...

It imports a small part of the standard library only, so that it starts in milliseconds. If there is no parent, it
becomes the worker itself.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import sys

FORKED = b"\1"  # the answer
# Options for Ray's setup_worker.py, which imports Ray to prepare a runtime environment. Sweeps use none.
OF_SETUP = ("--language=", "--serialized-runtime-env-context=")


def main() -> None:
    """Return once the parent has forked the worker, or else execute the worker's program."""
    path, *command = sys.argv[1:]
    command = [word for word in command if not word.startswith(OF_SETUP)]
    request = {
        "command": command,
        "environment": dict(os.environ),
        "group": os.getpgrp(),
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE),  # which Ray raises
        "blocked_signals": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    }
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        with os.fdopen(os.memfd_create("request"), "w+") as file:
            json.dump(request, file)
            file.flush()
            file.seek(0)
            socket.send_fds(connection, [b"\0"], [file.fileno(), 0, 1, 2])
        if connection.recv(1) == FORKED:
            return
    os.execv(sys.executable, [sys.executable, *command])


if __name__ == "__main__":
    main()
