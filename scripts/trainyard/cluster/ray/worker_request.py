"""Requests a fork from the parent of the workers. Ray runs this file as a program to start a worker.

python -I -S worker_request.py SOCKET SECONDS default_worker.py OPTIONS ...

It imports a small part of the standard library only, so that it starts in milliseconds. If there is no parent, or none
that answers within SECONDS, it becomes the worker itself.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import sys

FORKED = b"\1"  # the answer
# Options for Ray's setup_worker.py, which imports Ray to prepare a runtime environment. Sweeps have none.
OF_SETUP = ("--language=", "--serialized-runtime-env-context=")


def main() -> None:
    """Return once the parent has forked the worker, or else execute the worker's program."""
    path, seconds, *command = sys.argv[1:]
    command = [word for word in command if not word.startswith(OF_SETUP)]
    request = {
        "command": command,
        "environment": dict(os.environ),
        "group": os.getpgrp(),
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE),  # which Ray raises
        "blocked_signals": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    }
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)  # waits if many do; with a timeout, it would fail at once
        connection.settimeout(float(seconds))
        with os.fdopen(os.memfd_create("request"), "w+") as file:
            json.dump(request, file)
            file.flush()
            file.seek(0)
            socket.send_fds(connection, [b"\0"], [file.fileno(), 0, 1, 2])
        if _answer(connection, path) == FORKED:
            return
    os.execv(sys.executable, [sys.executable, *command])


def _answer(connection: socket.socket, path: str) -> bytes:
    """The answer of the parent; empty if it gives none in time."""
    try:
        return connection.recv(1)
    except TimeoutError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108  (pathlib takes long to import); nobody else shall wait
        connection.shutdown(socket.SHUT_RD)  # a worker that it forks later cannot answer, and ends
        return connection.recv(1)  # of one that it has just forked


if __name__ == "__main__":
    main()
