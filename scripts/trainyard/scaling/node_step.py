"""Run a command and record the telemetry of its node: wraps the launcher of a user's script, once per node.

First, the nodes meet; the command gets the address and the port for its own rendezvous. With srun, it wraps the script
itself, once per GPU, and sets the variables that torchrun would set. `user_script` starts it as
`python scripts/trainyard scaling.node_step FOLDER COMMAND...`, with a `launchers.NodeStep` in the folder.
"""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil

from trainyard.cluster import gpus, host
from trainyard.cluster.job_script import wait_as_shell
from trainyard.cluster.stop_request import STOP_SIGNALS, StopRequest, forward_stop_request
from trainyard.cluster.telemetry import record_telemetry, visible_gpus
from trainyard.programs.user_environment import module_path, program_environment, thread_variables
from trainyard.scaling.launchers import (
    LAUNCHER_MODULES,
    MASTER_ADDRESS,
    MASTER_PORT,
    NODE_RANK,
    SIGNALS_OF_TORCHRUN,
    STEP,
    NodeStep,
)
from trainyard.scaling.rendezvous import (
    Endpoint,
    Rendezvous,
    RendezvousError,
    end_together,
    find_node_rank,
    report_problem,
)
from trainyard.utils.environment_variables import changed_environment
from trainyard.utils.guard import request_end

# Seconds from SIGTERM to SIGKILL of the ranks, for torchrun and accelerate; torch before 2.12 always waits 30.
SHUTDOWN_TIMEOUT = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
# Variables that torchrun sets for a rank, and the suffixes of Slurm's names for them.
RANKS = {"RANK": "PROCID", "LOCAL_RANK": "LOCALID", "WORLD_SIZE": "NTASKS", "LOCAL_WORLD_SIZE": "NTASKS_PER_NODE"}


def main() -> int:
    """Run the command; returns its exit code, as a shell would."""
    meeting = Path(sys.argv[1])
    line = sys.argv[2:]
    step = NodeStep(**json.loads((meeting / STEP).read_text()))
    if error := _gpu_error(line):
        print(error, file=sys.stderr, flush=True)
        report_problem(meeting, error)  # not a failure of the script, which may resume
        return 1
    task, tasks, node_rank, local_rank = find_task(step.nodes, per_gpu=step.is_per_gpu)
    rendezvous = Rendezvous(meeting, step.nodes, rank=node_rank, everywhere=True)
    try:
        endpoint = rendezvous.await_release() if local_rank else rendezvous.meet_and_release()
    except RendezvousError:
        return 1  # user_script reports it
    values = {NODE_RANK: str(node_rank), MASTER_ADDRESS: endpoint.address, MASTER_PORT: str(endpoint.port)}
    for placeholder, value in values.items():
        line = [word.replace(placeholder, value) for word in line]
    process, stop_request = _start(line, _environment(step, endpoint), step)
    me = psutil.Process()
    root = (me.parent() if step.is_per_gpu else None) or me  # of the ranks of this node, which with srun are siblings
    with ExitStack() as stack:
        if not local_rank:
            # A machine without Slurm may show more GPUs, whose energy is not that of this training.
            watched = stack.enter_context(visible_gpus())[: step.gpus]
            telemetry = record_telemetry(
                Path(step.telemetry), host.node_name(), root=root, overwrite=step.overwrites_telemetry, gpus=watched
            )
            stack.enter_context(telemetry)
        code = wait_as_shell(process)
    # After a stop request, wait for the other tasks: srun would end them before they have saved their state.
    seconds = step.grace_seconds if stop_request.is_made else 0.0
    end_together(meeting, task=task, tasks=tasks, code=code, seconds=seconds)
    return code


def find_task(nodes: Sequence[str], *, per_gpu: bool) -> tuple[int, int, int, int]:
    """This task of its step, the number of tasks, the rank of its node, and its rank there.

    With `per_gpu`, nodes are in the order of Slurm, whose first task is rank 0; otherwise, each has one task.
    """
    if per_gpu:
        names = ("PROCID", "NTASKS", "NODEID", "LOCALID")
        task, tasks, node_rank, local_rank = (int(os.environ[f"SLURM_{name}"]) for name in names)
        return task, tasks, node_rank, local_rank
    rank = find_node_rank(nodes)
    return rank, len(nodes), rank, 0


def _gpu_error(command: Sequence[str]) -> str:
    """Why DeepSpeed's launcher would use GPUs that this job does not have; "" if it would not.

    With a hostfile, it ignores CUDA_VISIBLE_DEVICES and counts the GPUs of a node from 0. Where Slurm does not confine
    jobs to their GPUs (ConstrainDevices=no), those may be of another job.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if LAUNCHER_MODULES["deepspeed"] not in command or visible is None or gpus.are_hidden():
        return ""
    counted = [str(number) for number in range(len(visible.split(",")))]
    if sorted(visible.split(",")) == sorted(counted):
        return ""
    return (
        f"on {host.node_name()}, this job has GPU {visible}, but DeepSpeed's launcher ignores CUDA_VISIBLE_DEVICES and "
        f"would use GPU {','.join(counted)}: set `launcher: torchrun`"
    )


def _start(
    line: Sequence[str], environment: Mapping[str, str], step: NodeStep
) -> tuple["subprocess.Popen[bytes]", StopRequest]:
    """Start the command and forward stop requests to it, also one made meanwhile. No other thread may run yet."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    process = subprocess.Popen(line, cwd=step.workdir, env=environment, preexec_fn=_ignore_user_signals)
    number = signal.Signals[f"SIG{step.stop_signal}"]
    stop_request = forward_stop_request(partial(request_end, number, [process.pid]))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    return process, stop_request


def _ignore_user_signals() -> None:
    """In the process of the command: ignore the user signals until the command installs handlers of its own.

    Some sites send the signals of a step to all of its processes. SIGUSR1, the request to this program, would kill the
    launcher and the ranks before they get SIGTERM.
    """
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _environment(step: NodeStep, endpoint: Endpoint) -> dict[str, str]:
    """The environment variables of the command."""
    # The user's own value comes first.
    python = Path(step.python) if step.python else None
    variables = {SHUTDOWN_TIMEOUT: str(math.ceil(step.grace_seconds))} | program_environment(python)
    variables = changed_environment(variables, step.variables[host.node_name()] if step.variables else {})
    variables |= thread_variables(step.cpus_per_gpu, variables)
    variables |= module_path(Path.cwd(), variables) if step.workdir else {}
    if signal.SIGHUP not in STOP_SIGNALS:  # under nohup
        variables |= {"PET_SIGNALS_TO_HANDLE": SIGNALS_OF_TORCHRUN}  # how torchrun reads an option from the environment
    if not gpus.has_gpu():
        variables |= {"ACCELERATE_USE_CPU": "true", "DS_ACCELERATOR": "cpu"}
    if step.is_per_gpu:
        variables |= {name: os.environ[f"SLURM_{of_slurm}"] for name, of_slurm in RANKS.items()}
        variables |= {"MASTER_ADDR": endpoint.address, "MASTER_PORT": str(endpoint.port)}
    return variables


if __name__ == "__main__":
    sys.exit(main())
