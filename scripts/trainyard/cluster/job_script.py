"""What the script of a batch job runs: `job_script.py COMMAND...`.

sbatch exports its own options, such as SLURM_NTASKS or SLURM_MEM_PER_NODE, to the job, and srun reads them as defaults
that may contradict its command line. The command runs without them. Variables that name the job stay.

If slurmstepd of a step is killed, srun waits for the end of its task until the end of the walltime, and the task can
write no more. So the task of a command `srun ... job_script.py --task @ended PROGRAM ...` is this file again, which
runs a module or a Python file. Through a socket of the node, the first process gives it its own standard output and
error, and it reports its exit code.

This file runs first in each job, so it imports nothing of Trainyard.
"""

import contextlib
import gc
import importlib
import importlib.machinery
import importlib.util
import math
import os
import runpy
import secrets
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

TASK: Final = "--task"
TASK_PID: Final = "TRAINYARD_TASK"  # environment variable: the first process of its step, by its PID
ENDED: Final = "@ended"  # in the command line: replaced by the name of the socket
OUTPUTS: Final = (1, 2)  # descriptors of standard output and standard error
SRUN_SECONDS: Final = 15.0  # from the end of the task to the end of srun
SRUN_ENDED: Final = "terminating srun, which still runs although its tasks have exited: slurmstepd may have been killed"
# Objects between two collections: what Snakemake imports stays, and to look through it again takes 0.1 s of CPU time.
GARBAGE_THRESHOLD: Final = 100_000
# What Snakemake's Slurm executor imports for a report that jobs do not write: 0.4 s of CPU time.
LAZY_MODULES: Final = ("numpy", "pandas")
OPTIONS: Final = ("SLURM_", "SRUN_", "SBATCH_")
KEPT: Final = {"SLURM_CONF", "SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_RESTART_COUNT",
               "SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST"}  # fmt: skip


def without_options(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables that Slurm's commands read as options."""
    return {name: value for name, value in environment.items() if name in KEPT or not name.startswith(OPTIONS)}


def main(command: list[str]) -> int:
    """Run the command, or become it if it has no task that reports its end; returns its exit code."""
    if command[0] == TASK:
        return _run_task(command[1], command[2:])
    environment = without_options(os.environ)
    try:
        if ENDED in command:
            return run_step(command, environment)
        os.execvpe(command[0], command, environment)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
    return 1


def run_step(command: list[str], environment: Mapping[str, str], *, forwards: bool = False) -> int:
    """Run srun until its task, on this node, has ended; returns the exit code, as a shell would.

    With `forwards`, the task gets the signals of this process; Slurm sends those of a job to its steps.
    """
    name, codes = f"trainyard-{secrets.token_hex(16)}", list[int]()
    srun: subprocess.Popen[bytes] | None = None

    def forward(number: int, _: object) -> None:
        if forwards and srun:
            srun.send_signal(number if number == signal.SIGINT else signal.SIGUSR1)  # at SIGTERM, it kills its task

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as SIGHUP under `nohup`
                signal.signal(number, forward)
        line = [name if word == ENDED else word for word in command]
        srun = subprocess.Popen(line, env=environment, process_group=0 if forwards else None)
        threading.Thread(target=_end_with_task, args=(srun, listener, codes), daemon=True).start()
        code = wait_as_shell(srun)
    return codes[0] if codes else code


def wait_as_shell(process: "subprocess.Popen[bytes]", timeout: float = math.inf) -> int:
    """Wait for a process; returns its exit code, or 128 + the number of the signal that ended it.

    Signals are handled meanwhile. With a timeout, even an infinite one, `wait` returns to Python every 50 ms; without
    one, a signal that arrives just before it blocks would be handled only once the process has ended.
    """
    code = process.wait(timeout)
    return code if code >= 0 else 128 - code


def _end_with_task(srun: "subprocess.Popen[bytes]", listener: socket.socket, codes: list[int]) -> None:
    """End srun soon after its task has ended; `codes` then gets the exit code of the task."""
    while True:
        connection, _ = listener.accept()
        _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user == os.getuid():
            break
        connection.close()
    with contextlib.suppress(OSError):
        socket.send_fds(connection, [b"\n"], OUTPUTS)
    reported = b""
    while part := connection.recv(16):  # b"" once the task has ended
        reported += part
    with contextlib.suppress(subprocess.TimeoutExpired):
        srun.wait(SRUN_SECONDS)
        return
    codes.append(int(reported or b"1"))
    with contextlib.suppress(OSError):  # the slurmstepd that takes this output may have been killed, too
        os.write(sys.stdout.fileno(), f"{SRUN_ENDED}\n".encode())  # what cannot be written remains in a buffer
    end_srun(srun)


def end_srun(srun: "subprocess.Popen[bytes]") -> None:
    """End a srun that does not notice the end of its tasks."""
    srun.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        srun.wait(SRUN_SECONDS)
    srun.kill()


def _run_task(name: str, command: list[str]) -> int:
    """Run a program in this process; its exit code goes to the socket with this name, which closes with the process."""
    task = socket.socket(socket.AF_UNIX)
    code = 1
    try:
        with contextlib.suppress(OSError):
            task.connect(f"\0{name}")
            for number, given in zip(OUTPUTS, socket.recv_fds(task, 1, len(OUTPUTS))[1], strict=False):
                os.dup2(given, number)
                os.close(given)
        sys.argv, os.environ[TASK_PID] = command, str(os.getpid())
        if command[0].endswith(".py"):
            sys.path[0] = str(Path(command[0]).absolute().parent)
            runpy.run_path(command[0], run_name="__main__")
        else:
            sys.path[0] = str(Path.cwd())  # as with `python -m`
            gc.set_threshold(GARBAGE_THRESHOLD)
            _import_executor()
            runpy.run_module(command[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        raise
    finally:
        with contextlib.suppress(OSError):
            task.sendall(str(code).encode())
        _open_until_end.append(task)
    return code


class _LazyFinder:
    """Imports LAZY_MODULES without executing them until one of their attributes is used."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if name in LAZY_MODULES else None
        if spec and spec.loader:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def _import_executor() -> None:
    """Import Snakemake's Slurm executor without executing LAZY_MODULES, which it needs only for a report.

    A later import of one of them, for example in a user's Snakefile, executes it as usual.
    """
    sys.meta_path.insert(0, _LazyFinder)
    with contextlib.suppress(ImportError):  # Snakemake reports it
        importlib.import_module("snakemake_executor_plugin_slurm")
    sys.meta_path.remove(_LazyFinder)


_open_until_end: list[socket.socket] = []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
