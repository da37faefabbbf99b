"""Requests a fork from the parent of the workers. Ray runs this file as a program to start a worker.

python -I -S worker_request.py SOCKET SECONDS default_worker.py OPTIONS ...

All workers start at once, so besides `os` it imports only modules in C: with `json` and `socket`, it takes twice as
long. If there is no parent, or none that answers within SECONDS, it becomes the worker itself.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import marshal
import os
import resource
import sys

FORKED = b"\1"  # the answer
INT_BYTES = 4
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
        "blocked_signals": sorted(_signal.pthread_sigmask(_signal.SIG_BLOCK, ())),
    }
    try:
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        connection.connect(path)  # waits if many do; with a timeout, it would fail at once
        connection.settimeout(float(seconds))
        file = os.memfd_create("request")
        os.write(file, marshal.dumps(request))
        os.lseek(file, 0, os.SEEK_SET)
        descriptors = b"".join(fd.to_bytes(INT_BYTES, sys.byteorder) for fd in (file, 0, 1, 2))
        connection.sendmsg([b"\0"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)])
        if _answer(connection, path) == FORKED:
            return
    except OSError:
        pass
    os.execv(sys.executable, [sys.executable, *command])


def _answer(connection: _socket.socket, path: str) -> bytes:
    """The answer of the parent; empty if it gives none in time."""
    try:
        return connection.recv(1)
    except TimeoutError:
        try:  # noqa: SIM105  (contextlib takes long to import)
            os.unlink(path)  # noqa: PTH108  (so does pathlib); nobody else shall wait
        except FileNotFoundError:
            pass
        connection.shutdown(_socket.SHUT_RD)  # a worker that it forks later cannot answer, and ends
        return connection.recv(1)  # of one that it has just forked


if __name__ == "__main__":
    main()
