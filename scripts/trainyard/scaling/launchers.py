"""Command lines that start a training on every GPU of a job: Trainyard's own, or a user's script with its launcher."""

import logging
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from trainyard.cluster import host
from trainyard.cluster.job_script import SRUN_ENDED, end_srun, wait_as_shell
from trainyard.cluster.job_step import srun_options
from trainyard.cluster.slurm_allocation import Allocation, current_allocation
from trainyard.cluster.stop_request import GENTLE_SIGNAL, forward_stop_request
from trainyard.config.scaling import split_scale
from trainyard.config.user_programs import GRACE_SECONDS
from trainyard.scaling import rank_failures, rendezvous
from trainyard.scaling.rendezvous import StepEnd
from trainyard.utils.environment_variables import Variables
from trainyard.utils.errors import UserError
from trainyard.utils.import_path import SCRIPTS, helper_command

TRAIN: Final = SCRIPTS / "train.py"
AGENT: Final = "scaling.agent"
WATCH: Final = "scaling.node_step"
STEP: Final = "step.json"  # in the folder of a launch of a user's script: a `NodeStep`,
HOSTFILE: Final = "hostfile"  # and the nodes in the format of DeepSpeed
# Placeholders in the command of a launcher, which `node_step` replaces on each node.
NODE_RANK: Final = "{node_rank}"
MASTER_ADDRESS: Final = "{master_addr}"
MASTER_PORT: Final = "{master_port}"
# The modules of the user's environment that the launchers run; srun needs none.
LAUNCHER_MODULES: Final = {
    "torchrun": "torch.distributed.run",
    "accelerate": "accelerate.commands.launch",
    "deepspeed": "deepspeed.launcher.runner",
}
# What torchrun handles, but for SIGHUP, at which it ends the ranks even if it runs under `nohup`.
SIGNALS_OF_TORCHRUN: Final = "SIGTERM,SIGINT,SIGQUIT"
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class NodeStep:
    """What `node_step` knows of a launch of a user's script."""

    nodes: Sequence[str]
    telemetry: str = ""  # its folder
    overwrites_telemetry: bool = False
    gpus: int | None = None  # of each node, from the first; None for all
    cpus_per_gpu: int = 1
    grace_seconds: float = GRACE_SECONDS
    stop_signal: str = "TERM"
    variables: Mapping[str, Variables] = field(default_factory=dict)  # that `setup` has changed, by node
    python: str = ""  # whose environment is activated
    workdir: str | None = None
    is_per_gpu: bool = False  # whether srun runs it once per GPU, not once per node


def launch(scale: str, options: Sequence[str]) -> int:
    """Run the agents on all nodes of a scale and forward signals to them; returns the exit code, as a shell would.

    On several nodes of a Slurm job, srun starts one agent per node. If the training fails, the last line of the log
    names the nodes that did not meet, or the rank that failed first, its node and the error.
    """
    # Unset, torchrun sets it to 1 with a warning. Each rank then uses the threads of the study.
    environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    # The agents meet and log there. It is on the shared file system, and only this user can enter it.
    with tempfile.TemporaryDirectory(prefix=".torchrun-", dir=Path.cwd()) as folder:
        allocation = current_allocation() if split_scale(scale)[0] > 1 else None
        process = subprocess.Popen(
            training_command(scale, options, folder=folder, allocation=allocation), env=environment
        )
        # srun forwards SIGUSR1 to all tasks; at SIGTERM, it would kill them.
        number = GENTLE_SIGNAL if allocation else signal.SIGTERM
        forward_stop_request(partial(process.send_signal, number))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # torchrun also receives Ctrl-C, and ends first
        code = (
            _wait(process, StepEnd(Path(folder), tasks=split_scale(scale)[0])) if allocation else wait_as_shell(process)
        )
        if reason := failure_reason(Path(folder)):
            log.error("%s", reason)
    return code


def failure_reason(folder: Path) -> str:
    """Why the training whose agents met in this folder failed, in one line; "" if nothing there says so."""
    first = rank_failures.first_failure(folder)
    message = f"rank {first.rank} on {first.node} ended the training: {first.message}" if first else ""
    return rendezvous.problem(folder) or message


def _wait(srun: "subprocess.Popen[bytes]", step: StepEnd) -> int:
    """Wait for srun, and end it if it misses that its tasks have ended; returns the code, as a shell would.

    Otherwise, the job would hold its GPUs until the end of the walltime.
    """
    while (code := step.overdue_code()) is None:
        with suppress(subprocess.TimeoutExpired):
            return wait_as_shell(srun, rendezvous.LOOK_SECONDS)
    log.warning("%s", SRUN_ENDED)
    end_srun(srun)
    return code


def training_command(
    scale: str, options: Sequence[str], *, folder: str, allocation: Allocation | None, program: Path = TRAIN
) -> list[str]:
    """The command that starts all ranks of a scale, each of which runs the program with these options.

    Raises:
        UserError: the scale has several nodes, but there is no Slurm job with this number of nodes.
    """
    gpus = split_scale(scale)[1]
    checked = check_allocation(scale, allocation)
    names = checked.nodes if checked else [host.node_name()]
    agent = [*helper_command(AGENT), folder, ",".join(names), str(gpus)]
    srun = srun_command(checked.nodes, 1, cpus=checked.cpus_per_node) if checked else []
    return [*srun, *agent, str(program), *options]


def check_allocation(scale: str, allocation: Allocation | None) -> Allocation | None:
    """The allocation for a scale of several nodes; None for one node, which does not need one.

    Raises:
        UserError: there is no allocation, it has a different number of nodes, or the time to connect is invalid.
    """
    rendezvous.seconds_to_connect()
    nodes = split_scale(scale)[0]
    if nodes == 1:
        return None
    if allocation is None or len(allocation.nodes) != nodes:
        held = "this is not a Slurm job" if allocation is None else f"the job has {len(allocation.nodes)}"
        raise UserError(f"scale {scale} needs {nodes} nodes, but {held}: run Snakemake with `--profile profiles/slurm`")
    return allocation


def script_command(
    scale: str,
    words: Sequence[str],
    *,
    launcher: str,
    launcher_options: Sequence[str] = (),
    python: str,
    meeting: str,
    cpus_per_gpu: int,
    job_nodes: Sequence[str],
) -> list[str]:
    """The command that starts a user's script on all GPUs of a scale.

    It runs `node_step` once per node, which reads the `NodeStep` in the folder `meeting`, replaces the placeholders
    and runs the launcher. With the launcher `srun`, it runs `node_step` once per GPU, which runs the script.
    `job_nodes` are the nodes of the Slurm job, none outside of one.
    """
    nodes, gpus = split_scale(scale)
    watch = [*helper_command(WATCH), meeting]
    if launcher == "srun":
        if not job_nodes:
            raise UserError("launcher: srun needs a Slurm job; use torchrun here")
        srun = srun_command(job_nodes[:nodes], gpus, cpus=cpus_per_gpu)
        return [*srun, *launcher_options, *watch, python, *words]
    # The rendezvous of each unpickles nothing from the network: torchrun's `static`, which is accelerate's, too.
    options = {
        "torchrun": ["--nproc-per-node", str(gpus), "--nnodes", str(nodes), "--node-rank", NODE_RANK,
                     "--rdzv-backend", "static", "--master-addr", MASTER_ADDRESS, "--master-port", MASTER_PORT],
        "accelerate": [*(["--multi_gpu"] if nodes * gpus > 1 else []), "--num_machines", str(nodes),
                       "--num_processes", str(nodes * gpus), "--machine_rank", NODE_RANK,
                       "--main_process_ip", MASTER_ADDRESS, "--main_process_port", MASTER_PORT,
                       "--rdzv_backend", "static", "--mixed_precision", "no", "--dynamo_backend", "no"],
        "deepspeed": ["--hostfile", f"{meeting}/{HOSTFILE}", "--no_ssh", "--node_rank", NODE_RANK,
                      "--master_addr", MASTER_ADDRESS, "--master_port", MASTER_PORT],
    }[launcher]  # fmt: skip
    each = [*watch, python, "-m", LAUNCHER_MODULES[launcher], *options, *launcher_options, *words]
    return [*srun_command(job_nodes, 1, cpus=cpus_per_gpu * gpus), *each] if nodes > 1 else each


def srun_command(nodes: Sequence[str], tasks_per_node: int, *, cpus: int) -> list[str]:
    """The beginning of a command that srun starts on these nodes; all tasks end once one has failed."""
    options = srun_options(nodes, tasks_per_node=tasks_per_node, cpus_per_task=cpus)
    return ["srun", *options, "--kill-on-bad-exit=1"]
