"""What the script of a batch job runs: `job_script.py srun ... python job_script.py --task @ended PROGRAM ...`.

sbatch exports its own options, such as SLURM_NTASKS or SLURM_MEM_PER_NODE, to the job, and srun reads them as defaults
that may contradict its command line. It runs without them. Variables that name the job stay.

With proctrack/cgroup, Slurm sends SIGTERM to the first process of each step only. So the program, a Python file, is
the first process of its step.

If slurmstepd of a step is killed, srun waits for the end of its task until the end of the walltime, and the task can
write no more. So the task is this file again, which runs the program. Through a socket of the node, the first process
gives it its own standard output and error, and it reports its exit code.

This file runs first in each job. So it imports nothing of Trainyard, nor `pathlib` and `typing`, which take a quarter
of its start, and the first process does without installed packages (`-I -S`).
"""

import contextlib
import math
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping

TASK = "--task"
ENDED = "@ended"  # in the command line: replaced by the name of the socket
OUTPUTS = (1, 2)  # descriptors of standard output and standard error
SRUN_SECONDS = 15.0  # from the end of the task to the end of srun
SRUN_ENDED = "terminating srun, which still runs although its tasks have exited: slurmstepd may have been killed"
OPTIONS = ("SLURM_", "SRUN_", "SBATCH_")
KEPT = {"SLURM_CONF", "SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_RESTART_COUNT",
        "SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST"}  # fmt: skip


def without_options(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables that Slurm's commands read as options."""
    return {name: value for name, value in environment.items() if name in KEPT or not name.startswith(OPTIONS)}


def main(command: list[str]) -> int:
    """Run a step, or the task of one; returns its exit code."""
    if command[0] == TASK:
        return _run_task(command[1], command[2:])
    try:
        return run_step(command, without_options(os.environ))
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
    return 1


def run_step(command: list[str], environment: Mapping[str, str]) -> int:
    """Run srun until its task, on this node, has ended; returns the exit code, as a shell would.

    Slurm sends the signals of a job to its steps, too; this process ignores them.
    """
    name = f"trainyard-{os.urandom(16).hex()}"
    codes = list[int]()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda *_: None)  # srun does not inherit this, as it would with SIG_IGN
        line = [name if word == ENDED else word for word in command]
        srun = subprocess.Popen(line, env=environment)
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
        sys.argv = command
        sys.path[0] = os.path.dirname(os.path.abspath(command[0]))  # noqa: PTH100, PTH120
        runpy.run_path(command[0], run_name="__main__")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        raise
    finally:
        with contextlib.suppress(OSError):
            task.sendall(str(code).encode())
        _open_until_end.append(task)
    return code


_open_until_end: list[socket.socket] = []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
